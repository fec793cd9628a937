import numpy as np
import pytest
import safetensors.torch
import torch

from deepfishing.errors import LayerError, OptionError, WeightsError
from deepfishing.extraction.extract import extract
from deepfishing.networks.load import load_network, random_network
from deepfishing.networks.network import _check_bfloat16
from deepfishing.networks.reference import sha256_of
from deepfishing.networks.zoo import RECORDS

WIDTHS = {6: 8, 7: 8, 8: 5}


@pytest.fixture(scope="module")
def narrow():
    return random_network("alexnet-torchvision", widths=WIDTHS)


@pytest.mark.parametrize("name", RECORDS)
def test_a_batch_of_one_equals_a_batch_of_many(name):
    widths = {k: width for k, width in WIDTHS.items() if k in RECORDS[name].layers}
    net = random_network(name, widths=widths, dtype="float64")
    # any size will do but for Caffe's, whose pooled map has to be 6 x 6 or 7 x 7
    size = {"alexnet-caffe": 227, "vgg16-caffe": 224}.get(name, 64)
    seeded = torch.Generator().manual_seed(0)
    images = torch.randn(2, 3, size, size, dtype=torch.float64, generator=seeded)
    with torch.inference_mode():
        together = net.module(images)
        alone = torch.cat([net.module(image[None]) for image in images])
    torch.testing.assert_close(together, alone, rtol=1e-10, atol=1e-10)
    assert together.std(0).min() > 1e-3  # and the images are told apart at all


def test_half_precision_weights_of_any_width_load_as_float32(tmp_path, narrow):
    path = tmp_path / "narrow.safetensors"
    half = {
        name: t.half().contiguous() for name, t in narrow.module.state_dict().items()
    }
    safetensors.torch.save_file(half, path)
    net = load_network("alexnet-torchvision", weights=path)
    assert net.dtype == torch.float32
    assert net.weights_sha256 == sha256_of(path)
    assert net.layers == narrow.layers
    for name, tensor in net.module.state_dict().items():
        assert torch.equal(tensor, half[name].float())
    images = torch.randn(2, 3, 224, 224)
    torch.testing.assert_close(
        net.module(images), narrow.module(images), rtol=0.05, atol=0.05
    )


def test_a_loaded_network_is_frozen():
    for net in (load_network(), random_network()):
        assert not any(module.training for module in net.module.modules())
        assert not any(parameter.requires_grad for parameter in net.module.parameters())
        assert net.device == torch.device("cpu")
        assert not any(t.is_meta for t in net.module.state_dict().values())


@pytest.mark.parametrize("dtype", ["float32", "float64", "float16", "bfloat16"])
def test_every_floating_tensor_has_the_precision_asked_for(dtype):
    net = load_network(dtype=dtype)
    kinds = {t.dtype for t in net.module.state_dict().values() if t.is_floating_point()}
    assert kinds == {net.dtype} == {getattr(torch, dtype)}


def test_a_seed_decides_the_random_weights_and_leaves_torchs_own_numbers_alone():
    state = torch.random.get_rng_state()
    first, same, other = (
        random_network(seed=seed).module.state_dict() for seed in (1, 1, 2)
    )
    assert torch.equal(state, torch.random.get_rng_state())
    assert all(torch.equal(first[name], same[name]) for name in first)
    assert not torch.equal(first["_fc.weight"], other["_fc.weight"])


def test_random_weights_refuse_a_width_for_a_layer_that_is_not_there():
    with pytest.raises(LayerError, match=r"layers \[7, 8\]"):
        random_network(widths={6: 10})


def test_a_layer_is_named_by_its_number_or_by_its_path(narrow):
    assert narrow.layer(6) == "classifier.1"
    assert narrow.layer("features.3") == "features.3"


@pytest.mark.parametrize(
    ("layer", "message"),
    [
        (5, r"one of 6, 7, 8 .* got 5; run `deepfish models alexnet-torchvision`"),
        ("classifer.4", r"got 'classifer.4'; did you mean classifier.4\?"),
        ("zzz", "run `deepfish models"),
        ("", "got ''"),
    ],
)
def test_an_unknown_layer_lists_the_known_ones(narrow, layer, message):
    with pytest.raises(LayerError, match=message):
        narrow.layer(layer)


@pytest.mark.parametrize("device", ["gpu", "cuda:99", "xla", "meta", "", "cpu:x"])
def test_an_unknown_device_is_one_line(device):
    with pytest.raises(OptionError, match="device must be") as error:
        load_network(device=device)
    assert "\n" not in str(error.value)
    assert len(str(error.value)) < 300


def test_an_unknown_precision_is_one_line():
    with pytest.raises(OptionError, match=r"got 'float23'; did you mean float\d\d\?"):
        load_network(dtype="float23")


def test_published_weights_with_another_hash_are_refused(tmp_path, monkeypatch, narrow):
    monkeypatch.setenv("DEEPFISHING_HOME", str(tmp_path))
    path = tmp_path / "weights" / "alexnet-owt-7be5be79.pth"
    path.parent.mkdir()
    torch.save(narrow.module.state_dict(), path)
    with pytest.raises(
        WeightsError, match=r"must have the sha256 7be5be79[0-9a-f]*\.\., got "
    ) as error:
        load_network("alexnet-torchvision")
    assert str(path) in str(error.value)
    # given by hand, it is the user's choice
    load_network("alexnet-torchvision", weights=path)


def test_a_weight_too_large_for_float16_is_named(tmp_path, narrow):
    tensors = narrow.module.state_dict() | {"classifier.6.bias": torch.full((5,), 1e6)}
    torch.save(tensors, tmp_path / "large.pth")
    load_network("alexnet-torchvision", weights=tmp_path / "large.pth")
    with pytest.raises(WeightsError, match=r"classifier.6.bias \(torch.float16\)"):
        load_network(
            "alexnet-torchvision", weights=tmp_path / "large.pth", dtype="float16"
        )


def test_weights_of_another_network_are_one_error_that_names_the_file(tmp_path, narrow):
    torch.save(narrow.module.state_dict(), tmp_path / "alexnet.pth")
    with pytest.raises(WeightsError, match="for vgg11 does not fit") as error:
        load_network("vgg11", weights=tmp_path / "alexnet.pth")
    assert "features.2.bias" not in str(error.value).split("missing")[0]
    assert str(tmp_path / "alexnet.pth") in str(error.value)
    assert "\n" not in str(error.value)


def test_a_processor_on_which_bfloat16_ends_the_process_is_told(monkeypatch):
    class Died:
        returncode = -4

    _check_bfloat16.cache_clear()
    monkeypatch.setattr("subprocess.run", lambda *arguments, **options: Died)
    with pytest.raises(OptionError, match="use float32, or set ONEDNN_MAX_CPU_ISA"):
        load_network(weights="random", dtype="bfloat16")
    _check_bfloat16.cache_clear()


def test_bfloat16_features_are_near_those_of_float32(rng):
    images = [rng.integers(0, 256, (60, 80, 3), dtype=np.uint8) for _ in range(2)]
    exact, coarse = (
        extract(load_network(dtype=d), images, "x7") for d in ("float32", "bfloat16")
    )
    assert (exact["x7"] * coarse["x7"]).sum(axis=1).min() > 0.98


def test_a_layer_that_does_not_exist_is_told_with_those_that_do(narrow):
    with pytest.raises(
        LayerError, match=r"layer must be one of .* or the path of a module for"
    ):
        narrow.layer(9)

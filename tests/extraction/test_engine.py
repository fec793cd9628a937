import importlib.util
import warnings

import numpy as np
import pytest
import torch
from torch import nn

from deepfishing.errors import MissingDependencyError, NetworkError, OptionError
from deepfishing.extraction import compute as computing
from deepfishing.extraction import trunk as trunks
from deepfishing.extraction.engines import BY_SPEED, choose_engines, missing_packages
from deepfishing.extraction.extract import extract
from deepfishing.extraction.trunk import exported, start_engine
from deepfishing.images.preprocess import Preprocess
from deepfishing.networks.load import load_network, random_network
from deepfishing.networks.network import Network

INSTALLED = [name for name in BY_SPEED if not missing_packages(name)]
OTHERS = [name for name in INSTALLED if name != "torch"]
installed = pytest.mark.parametrize("name", INSTALLED)
needs_one = pytest.mark.skipif(
    not OTHERS, reason="no engine besides torch is installed"
)


@pytest.fixture(autouse=True)
def home(tmp_path, monkeypatch):
    monkeypatch.setenv("DEEPFISHING_HOME", str(tmp_path / "home"))
    return tmp_path / "home"


@pytest.fixture
def images(rng):
    return [rng.integers(0, 256, (40, 60, 3), dtype=np.uint8) for _ in range(5)]


@pytest.fixture
def tiny():
    torch.manual_seed(0)
    layers = nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.AdaptiveAvgPool2d(1)
    module = nn.Sequential(
        *layers, nn.Flatten(), nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 3)
    )
    preprocess = Preprocess(16, 16, mean=(127.0,) * 3, std=(128.0,) * 3)
    return Network("tiny", module.eval(), {7: "5", 8: "7"}, preprocess, "none")


@pytest.fixture
def whole(monkeypatch):
    """Features without any cut: one module, one thread, as torch computes it."""

    def compute(network, images, features="all", **options):
        with monkeypatch.context() as patch:
            patch.setattr(computing, "cut", lambda module, read: None)
            return extract(network, images, features, engine="torch", **options)

    return compute


def arrays(features):
    for name, value in features.items():
        yield from (
            [(name, value.x), (name, value.delta)]
            if hasattr(value, "x")
            else [(name, value)]
        )


def assert_same(got, expected):
    for (name, a), (_, b) in zip(arrays(got), arrays(expected), strict=True):
        np.testing.assert_allclose(
            a, b, atol=2e-5 * np.abs(b).max(), rtol=0, err_msg=name
        )


@installed
@pytest.mark.usefixtures("small_input")
def test_every_feature_of_the_default_network_is_that_of_torch(name, images, whole):
    network = load_network()
    for names in (["all", "y7", "dW7@exact", "dW7@4x4", "x:_blocks.15"], ["x8"]):
        assert_same(
            extract(network, images[:2], names, engine=name),
            whole(network, images[:2], names),
        )


@installed
@pytest.mark.parametrize("network", ["alexnet-caffe", "alexnet-torchvision", "vgg11"])
def test_every_feature_of_a_narrow_random_network_is_that_of_torch(
    name, network, images, whole
):
    narrow = random_network(network, widths={6: 8, 7: 8, 8: 5})
    assert_same(extract(narrow, images[:2], engine=name), whole(narrow, images[:2]))


@pytest.mark.usefixtures("small_input")
def test_a_network_runs_in_many_threads_as_in_one(images, whole):
    network = load_network()
    before = torch.get_num_threads()
    images = images * 2
    expected = whole(network, images)
    torch.set_num_threads(3)
    try:
        for name in INSTALLED:
            assert_same(extract(network, images, batch_size=7, engine=name), expected)
            assert torch.get_num_threads() == 3
    finally:
        torch.set_num_threads(before)


@needs_one
def test_a_trunk_is_exported_once_and_again_when_its_weights_or_its_file_change(
    home, monkeypatch
):
    trunk = nn.Conv2d(3, 2, 1)
    first = exported(trunk, 4)
    (file,) = (home / "engines").iterdir()
    assert file.read_bytes() == first
    with monkeypatch.context() as patch:
        patch.setattr(
            trunks, "export", lambda trunk, size: pytest.fail("exported again")
        )
        assert exported(trunk, 4) == first
    file.write_bytes(first[:-1])
    with pytest.warns(UserWarning, match="was damaged; it is made again"):
        assert exported(trunk, 4) == first
    trunk.bias.data += 1
    assert exported(trunk, 4) != first
    assert exported(nn.Conv2d(3, 2, 1, stride=2), 4) != exported(nn.Conv2d(3, 2, 1), 4)


@needs_one
def test_a_home_that_cannot_be_written_costs_only_the_file(home):
    home.parent.mkdir(exist_ok=True)
    home.write_text("a file where the folder should be")
    assert exported(nn.ReLU(), 4)


@installed
def test_an_engine_takes_any_number_of_images(name):
    run = start_engine(
        name, nn.Conv2d(3, 2, 1).requires_grad_(False), size=4, threads=2
    )
    assert [len(run(np.zeros((n, 3, 4, 4), np.float32))) for n in (1, 5, 2)] == [
        1,
        5,
        2,
    ]


def test_auto_warns_and_goes_on_with_torch_where_an_engine_differs(
    tiny, images, whole, monkeypatch
):
    expected = whole(tiny, images)
    monkeypatch.setattr(
        computing, "choose_engines", lambda engine: ("openvino", "torch")
    )

    def wrong(engine, trunk, size, threads):
        run = start_engine("torch", trunk, size, threads)
        return run if engine == "torch" else lambda pixels: run(pixels) * 1.01

    monkeypatch.setattr(computing, "start_engine", wrong)
    with pytest.warns(
        UserWarning, match="tiny does not run in openvino as in torch: x6"
    ) as told:
        got = extract(tiny, images, engine="auto")
    assert len(told) == 1
    assert_same(got, expected)
    with pytest.raises(NetworkError, match="take --engine torch"):
        extract(tiny, images, engine="openvino")


@pytest.mark.parametrize("name", OTHERS)
def test_a_trunk_that_an_engine_cannot_run_is_one_line(name, tiny, images, monkeypatch):
    monkeypatch.setattr(trunks, "exported", lambda trunk, size: b"not a network")
    with pytest.raises(NetworkError, match=f"does not run in {name}") as told:
        extract(tiny, images, engine=name)
    assert "\n" not in str(told.value)


@needs_one
@pytest.mark.parametrize("change", ["dtype", "first layer", "control flow"])
def test_a_network_that_cannot_be_cut_needs_torch(change, tiny, images, whole):
    features = "all"
    if change == "dtype":
        tiny.module.double()
    elif change == "first layer":
        features = "dW:0"
    else:
        tiny.module.forward = lambda x: tiny.module[1:](
            tiny.module[0](x if x.sum() < 9e9 else -x)
        )
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert_same(extract(tiny, images, features), whole(tiny, images, features))
    with pytest.raises(NetworkError, match="cannot be cut there; take --engine torch"):
        extract(tiny, images, features, engine=OTHERS[0])


@pytest.mark.parametrize("name", OTHERS)
def test_a_layer_whose_code_depends_on_its_input_is_not_frozen_for_one_case(
    name, tiny, images
):
    class Choosing(nn.Module):
        def forward(self, x):
            return torch.relu(x) if x.sum() < 9e9 else x

    tiny.module[2] = Choosing()
    with pytest.raises(NetworkError, match="might cause the trace to be incorrect"):
        extract(tiny, images, engine=name)


def test_a_trunk_that_mixes_images_is_still_refused(tiny, images):
    class Centre(nn.Module):
        def forward(self, x):
            return x - x.mean(dim=0, keepdim=True)

    tiny.module[2] = Centre()
    with pytest.raises(NetworkError, match="must treat each image on its own"):
        extract(tiny, images, engine="torch")


def test_a_missing_package_names_its_command_and_auto_does_without(monkeypatch):
    find = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util,
        "find_spec",
        lambda name: None if name == "openvino" else find(name),
    )
    assert "openvino" not in choose_engines("auto")
    with pytest.raises(MissingDependencyError, match=r"pip install .*\[openvino\]'`"):
        choose_engines("openvino")
    with pytest.raises(OptionError, match="engine must be one of"):
        choose_engines("tensorrt")
    with pytest.raises(OptionError, match="did you mean onnxruntime"):
        choose_engines("onxruntime")

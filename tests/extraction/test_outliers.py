"""Channels far above the others cost int8 its digits; float16 takes its place where it matters."""

import numpy as np
import pytest
import torch
from PIL import Image
from torch import nn

from deepfishing import Preprocess, extract_to, read_folder, reproduce, wrap
from deepfishing.errors import StoreError
from deepfishing.extraction.imported import import_vectors
from deepfishing.store import Store
from deepfishing.store.precision import CODECS, kernel_error

PIXELS = Preprocess(8, 8, mean=(127.0,) * 3, std=(128.0,) * 3)


def clustered(rng, ratio, n=60, d=64):
    x = rng.normal(size=(10, d))[rng.integers(10, size=n)] + 0.5 * rng.normal(
        size=(n, d)
    )
    x[:, :2] = ratio * (1 + 0.1 * rng.normal(size=(n, 2)))
    return x.astype(np.float32)


def test_the_error_is_that_of_the_centred_kernel(rng):
    x = clustered(rng, 30)
    codes, scale = CODECS["int8"].encode(x, np.linalg.norm(x, axis=1))
    read = CODECS["int8"].decode(codes, x.shape[1]) * scale[:, None]
    kernels = []
    for values in (x, read):
        rows = values / np.linalg.norm(values, axis=1, keepdims=True)
        rest = rows - rows.mean(axis=0)
        rest /= np.linalg.norm(rest, axis=1, keepdims=True)
        kernels.append(rest @ rest.T)
    expected = np.linalg.norm(kernels[1] - kernels[0]) / np.linalg.norm(kernels[0])
    assert kernel_error(x) == pytest.approx(expected, rel=1e-3)


def test_outliers_cost_int8_its_digits_and_float16_keeps_them(rng):
    plain, far = clustered(rng, 1), clustered(rng, 300)
    assert kernel_error(plain) < 0.01 < kernel_error(far)
    assert kernel_error(far, "float16") < 0.01
    assert kernel_error(np.ones((9, 5))) == 0


class Outliers(nn.Module):
    """An embedding two of whose channels are far above the others."""

    def __init__(self, ratio):
        super().__init__()
        torch.manual_seed(0)
        self.conv = nn.Conv2d(3, 64, 4, stride=4)
        self.ratio = ratio

    def forward(self, x):
        x = self.conv(x).mean(dim=(2, 3)).tanh()
        far = self.ratio * (1 + 0.1 * x[:, :2])
        return torch.cat([far, x[:, 2:]], dim=1)


@pytest.mark.parametrize(("ratio", "kept"), [(1.0, "int8"), (300.0, "float16")])
def test_a_new_store_has_the_precision_that_its_network_needs(
    rng, tmp_path, ratio, kept
):
    images = [rng.integers(0, 256, (9, 12, 3), dtype=np.uint8) for _ in range(12)]
    paths = []
    for number, image in enumerate(images):
        paths.append(tmp_path / f"{number}.png")
        Image.fromarray(image).save(paths[-1])
    network = wrap(Outliers(ratio), preprocess=PIXELS)
    said = []
    extract_to(
        tmp_path / "store", paths, network=network, features="x7", notice=said.append
    )
    assert Store.open(tmp_path / "store").precision == kept
    assert any("kept in float16" in line for line in said) == (kept == "float16")
    extract_to(
        tmp_path / "asked", paths, network=network, features="x7", precision="int8"
    )
    assert Store.open(tmp_path / "asked").precision == "int8"
    # keeps its own
    extract_to(tmp_path / "asked", paths, network=network, features="x7")
    assert Store.open(tmp_path / "asked").precision == "int8"


def test_imported_vectors_have_the_precision_that_they_need(rng, tmp_path):
    for name, ratio, kept in (("plain", 1, "int8"), ("far", 300, "float16")):
        np.save(tmp_path / f"{name}.npy", clustered(rng, ratio))
        made = import_vectors(tmp_path / f"{name}.npy", tmp_path / name)
        assert made.precision == kept
    asked = import_vectors(
        tmp_path / "far.npy", tmp_path / "asked", precision="int8", network="far"
    )
    assert asked.precision == "int8"


def test_vectors_that_a_store_would_spoil_are_refused(rng, tmp_path):
    x = clustered(rng, 300)
    keys = [f"{number:064x}" for number in range(len(x))]
    store = Store(tmp_path / "store", {"network": "toy"})
    with pytest.raises(StoreError, match=r"int8 would change its kernel by .* float16"):
        store.append(keys, {"x7": x})
    assert store.factors() == []
    store.append(keys, {"x7": clustered(rng, 1), "delta8": x})  # gradients are not
    with pytest.raises(StoreError, match="x6 has channels far above the others"):
        Store.open(tmp_path / "store").append(keys, {"x6": x})
    Store(tmp_path / "asked", {"network": "toy"}, "int8").append(keys, {"x7": x})
    Store(tmp_path / "half", {"network": "toy"}, "float16").append(keys, {"x7": x})


def test_images_from_python_are_measured_too(rng, tmp_path):
    images = (rng.integers(0, 256, (9, 12, 3), dtype=np.uint8) for _ in range(12))
    network = wrap(Outliers(300.0), preprocess=PIXELS)
    done = extract_to(tmp_path / "store", images, network=network, features="x7")
    assert len(done.keys) == 12  # the images that were measured are stored, too
    assert Store.open(tmp_path / "store").precision == "float16"


def test_reproduce_measures_it_too(rng, tmp_path):
    for part in ("train/a", "train/b", "test/a", "test/b"):
        (tmp_path / "photos" / part).mkdir(parents=True)
        for number in range(6):
            image = rng.integers(0, 256, (9, 12, 3), dtype=np.uint8)
            Image.fromarray(image).save(tmp_path / "photos" / part / f"{number}.png")
    network = wrap(Outliers(300.0), preprocess=PIXELS)
    reproduce(read_folder(tmp_path / "photos"), network, tmp_path / "out", "x7")
    assert Store.open(tmp_path / "out").precision == "float16"

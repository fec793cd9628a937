"""A store, whatever its network, describes one more image without being told how."""

import json
import shutil

import numpy as np
import pytest
import torch
from torch import nn

from deepfishing import Resources, Searcher, Store, extract, extract_to, wrap
from deepfishing.errors import OptionError, StoreError, WeightsError
from deepfishing.images.preprocess import Preprocess
from deepfishing.networks.load import load_network, random_network

SMALL = Preprocess(8, 8, mean=(127.0,) * 3, std=(128.0,) * 3)
HUB = "timm:mobilenetv3_small_050"
QUICK = Resources(engine="torch")


@pytest.fixture
def photos(shapes, tmp_path):
    """Three photos for the store, and one more."""
    for name in ("dark/0", "dark/1", "light/0"):
        (tmp_path / "photos").mkdir(exist_ok=True)
        shutil.copy(
            shapes / f"train/{name}.jpg",
            tmp_path / f"photos/{name.replace('/', '')}.jpg",
        )
    return tmp_path / "photos", shapes / "test/light/3.jpg"


def check(searcher, network, photos):
    """A new photo is as similar to those of the store as if all were described at once."""
    folder, new = photos
    hits = {hit.id: hit.score for hit in searcher.search(new, k=3)}
    paths = [new, *(folder / name for name in hits)]
    direct = extract(network, paths, "dW8", engine="torch")["dW8"]
    expected = (direct.x[1:] @ direct.x[0]) * (direct.delta[1:] @ direct.delta[0])
    np.testing.assert_allclose(list(hits.values()), expected, atol=2e-3)


def test_random_weights_are_drawn_again(photos, tmp_path):
    store = tmp_path / "store"
    options = {"features": "dW8", "precision": "float32", "resources": QUICK}
    extract_to(store, photos[0], network=HUB, weights="random", **options)
    check(Searcher(store, "dW8"), load_network(HUB, "random"), photos)
    assert extract_to(store, [photos[1]], **options).computed == 1


@pytest.mark.parametrize("name", ["efficientnet-lite0", HUB])
def test_a_weight_file_is_found_again_by_path_and_checksum(name, photos, tmp_path):
    source = (
        random_network(name, seed=3) if name != HUB else load_network(HUB, "random")
    )
    tensors = {
        n: t + 0.01 if t.ndim > 1 else t for n, t in source.module.state_dict().items()
    }
    torch.save(tensors, tmp_path / "w.pth")
    store, weights = tmp_path / "store", tmp_path / "w.pth"
    options = {"features": "dW8", "precision": "float32", "resources": QUICK}
    extract_to(store, photos[0], network=name, weights=weights, **options)
    check(Searcher(store, "dW8"), load_network(name, weights), photos)

    moved = weights.rename(tmp_path / "moved.pth")
    with pytest.raises(
        WeightsError, match=rf"weights file {weights} with the sha256 .* --weights"
    ):
        Searcher(store, "dW8").search(photos[1])
    check(Searcher(store, "dW8", weights=moved), load_network(name, moved), photos)
    torch.save({n: t + 1 for n, t in tensors.items()}, weights)
    with pytest.raises(WeightsError, match=r"got a file with [0-9a-f]{64}"):
        Searcher(store, "dW8").search(photos[1])
    with pytest.raises(
        StoreError, match=r"was made with weights = sha256 .*leave --weights out"
    ):
        extract_to(store, [photos[1]], weights=weights, **options)
    (tmp_path / "other.onnx").write_bytes(b"another network")
    with pytest.raises(
        StoreError,
        match=r"made with network = .* got .*other.onnx; leave --network out",
    ):
        extract_to(store, [photos[1]], network=str(tmp_path / "other.onnx"), **options)
    assert extract_to(store, [photos[1]], weights=moved, **options).computed == 1
    kept = json.loads((store / "store.json").read_text())["settings"]["source"]
    assert kept["files"]["weights"]["path"] == str(moved)


def test_a_module_of_ones_own_is_given_again(photos, tmp_path):
    torch.manual_seed(0)
    module = nn.Sequential(nn.Flatten(), nn.Linear(192, 9), nn.ReLU(), nn.Linear(9, 4))
    network = wrap(module, preprocess=SMALL)
    options = {"features": "dW8", "precision": "float32"}
    extract_to(tmp_path / "store", photos[0], network=network, **options)
    with pytest.raises(
        WeightsError, match=r"'Sequential' is not one .* only Python has it"
    ):
        Searcher(tmp_path / "store", "dW8").search(photos[1])
    check(Searcher(tmp_path / "store", "dW8", network=network), network, photos)
    other = wrap(module, preprocess=SMALL, head="sigmoid")
    with pytest.raises(
        WeightsError, match="with head = softmax, got Sequential with sigmoid"
    ):
        Searcher(tmp_path / "store", "dW8", network=other).search(photos[1])
    with pytest.raises(
        OptionError, match="beside a loaded network must be tau, label, views"
    ):
        extract_to(tmp_path / "store", photos[0], network=network, dtype="float64")


def test_the_page_describes_a_photo_by_the_store_alone(photos, tmp_path):
    from deepfishing.web.gallery import Gallery

    extract_to(
        *(tmp_path / "store", photos[0]),
        **{
            "network": HUB,
            "weights": "random",
            "features": "x7,dW8",
            "resources": QUICK,
        },
    )
    gallery = Gallery(tmp_path / "store")
    found = gallery.uploads.recall(gallery.uploads.add(photos[1].read_bytes()))
    x7 = extract(load_network(HUB, "random"), [photos[1]], "x7", engine="torch")["x7"]
    np.testing.assert_allclose(found["x7"] / np.linalg.norm(found["x7"]), x7, atol=1e-4)


def test_models_shows_a_model_of_timm_without_its_weights(deepfish):
    shown = deepfish("models", HUB)
    assert shown.code == 0, shown.err
    assert "8 = classifier" in shown.out
    (facts,) = json.loads(deepfish("models", HUB, "--json").out)
    network = load_network(HUB, "random")
    assert facts["layers"] == {str(k): path for k, path in network.layers.items()}
    assert "dW8" in facts["features"]
    assert facts["preprocess"]["size"] == network.preprocess.size


def test_a_store_made_twice_in_python_is_the_same(photos, tmp_path):
    options = {"features": "x7", "resources": QUICK, "weights": "random"}
    first = extract_to(tmp_path / "store", photos[0], **options)
    again = extract_to(tmp_path / "store", str(photos[0]), **options)
    assert (first.computed, again.computed, again.factors) == (3, 0, ("x7",))
    assert Store.open(tmp_path / "store").precision == "int8"

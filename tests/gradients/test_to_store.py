import numpy as np
import pytest
import torch
from PIL import Image

import deepfishing.gradients.to_store as to_store
from deepfishing.gradients.to_store import extract_to_store, store_settings
from deepfishing.images.preprocess import Preprocess
from deepfishing.networks.network import Network
from deepfishing.store import Store

FACTORS = ("x7", "delta8")


@pytest.fixture
def network():
    torch.manual_seed(0)
    module = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(3 * 8 * 8, 5))
    preprocess = Preprocess(8, 8, mean=(127.0,) * 3, std=(128.0,) * 3)
    return Network("flat", module, {8: "1"}, preprocess, "none")


@pytest.fixture
def paths(rng, tmp_path):
    made = []
    for i in range(10):
        made.append(tmp_path / f"{i}.png")
        Image.fromarray(rng.integers(0, 256, (8, 8, 3), dtype=np.uint8)).save(made[-1])
    return made


@pytest.fixture
def open_store(network, tmp_path):
    return lambda name="s": Store(tmp_path / name, store_settings(network, 2.0, "uniform"))


def test_a_second_run_computes_nothing(network, paths, open_store):
    first = extract_to_store(network, paths, open_store(), FACTORS)
    second = extract_to_store(network, paths, open_store(), FACTORS)
    assert (first.computed, second.computed) == (10, 0)
    assert first.keys == second.keys


def test_new_images_and_new_factors_are_all_that_is_computed(network, paths, open_store):
    extract_to_store(network, paths[:6], open_store(), ("x7",))
    assert extract_to_store(network, paths, open_store(), ("x7",)).computed == 4
    assert extract_to_store(network, paths, open_store(), FACTORS).computed == 10


def test_an_interrupted_run_resumes_to_the_same_features(network, paths, open_store, monkeypatch):
    whole = open_store("whole")
    keys = extract_to_store(network, paths, whole, FACTORS).keys
    monkeypatch.setattr(to_store, "SHARD_IMAGES", 2)

    def interrupt(done, total):
        if done >= 6:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        extract_to_store(network, paths, open_store(), FACTORS, batch_size=2, progress=interrupt)
    resumed = extract_to_store(network, paths, open_store(), FACTORS, batch_size=3)
    assert resumed.computed == 4
    for factor in FACTORS:
        np.testing.assert_allclose(
            open_store().read(keys, factor), whole.read(keys, factor), rtol=1e-3, atol=1e-6
        )


def test_the_same_content_under_two_names_is_computed_once(network, paths, open_store, tmp_path):
    twin = tmp_path / "twin.png"
    twin.write_bytes(paths[0].read_bytes())
    extraction = extract_to_store(network, [*paths, twin], open_store(), FACTORS)
    assert extraction.computed == 10
    assert extraction.keys[0] == extraction.keys[-1]


def test_unreadable_files_are_reported_and_the_rest_is_kept(network, paths, open_store, tmp_path):
    (tmp_path / "bad.jpg").write_bytes(b"\xff\xd8\xff")
    every = [tmp_path / "absent.jpg", *paths, tmp_path / "bad.jpg"]
    extraction = extract_to_store(network, every, open_store(), FACTORS)
    assert extraction.computed == 10
    assert extraction.keys[0] is extraction.keys[-1] is None
    assert {path.name for path in extraction.failures} == {"absent.jpg", "bad.jpg"}
    assert open_store().read(extraction.keys[1:-1], "x7").shape == (10, 192)


def test_progress_counts_every_image_to_do(network, paths, open_store):
    seen = []
    extract_to_store(
        network, paths, open_store(), FACTORS, batch_size=4, progress=lambda *a: seen.append(a)
    )
    assert seen == [(0, 10), (4, 10), (8, 10), (10, 10)]

"""Copies on both sides of a split are moved, or counted and left out of a second figure."""

import hashlib

import numpy as np
import pytest

from deepfishing.core.metrics import evaluate
from deepfishing.errors import DatasetError
from deepfishing.evaluation.experiment import Protocol
from deepfishing.evaluation.protocols.table import reproduce
from deepfishing.evaluation.report.words import leak_words
from deepfishing.evaluation.splits import (
    choose_sides,
    figures_apart,
    has_similar_in_training,
)
from deepfishing.images.folder import read_folder


def test_a_group_is_on_one_side_and_classes_stay_spread():
    rng = np.random.default_rng(0)
    groups = rng.integers(0, 40, 120)
    was_test = np.arange(120) % 2 == 0
    label_of_group = rng.integers(0, 3, 40)
    labels = np.where(label_of_group[groups][:, None] == np.arange(3), 1, -1)
    is_test = choose_sides(labels, groups, was_test)
    for group in np.unique(groups):
        assert len(np.unique(is_test[groups == group])) == 1
    for shows in (labels == 1).T:
        assert abs((shows & is_test).sum() - (shows & was_test).sum()) <= 4
    alone = np.isin(groups, np.flatnonzero(np.bincount(groups) == 1))
    np.testing.assert_array_equal(is_test[alone], was_test[alone])


def test_a_split_without_similar_photos_stays():
    was_test = np.arange(20) % 2 == 0
    is_test = choose_sides(np.ones((20, 1)), np.arange(20), was_test)
    np.testing.assert_array_equal(is_test, was_test)


def test_a_class_keeps_a_training_image():
    """Its one training image is in a group that is mostly for testing."""
    labels = np.array([[1, -1], [1, -1], [1, -1], [-1, 1], [-1, 1]])
    was_test = np.array([False, True, True, False, True])
    is_test = choose_sides(labels, np.array([0, 0, 0, 1, 2]), was_test)
    np.testing.assert_array_equal(is_test, [False, False, False, False, True])


def test_the_figure_apart_is_that_of_the_other_test_images(rng):
    labels = np.where(rng.random((40, 2)) < 0.5, 1, -1)
    scores = rng.normal(size=(40, 2))
    # 5 test images have a copy
    groups = np.concatenate([np.arange(30), np.arange(25, 65)])
    similar = has_similar_in_training(groups, 30)
    np.testing.assert_array_equal(np.flatnonzero(similar), np.arange(5))
    found = figures_apart(labels, scores, "ab", similar, groups[30:])
    assert found["similar_across"] == 5
    assert found["map_apart"] == evaluate(labels[5:], scores[5:], "ab").map
    low, high = found["map_apart_interval"]["area"]
    assert low <= found["map_apart"]["area"] <= high
    assert figures_apart(labels, scores, "ab", np.zeros(40, bool), groups[30:]) == {
        "similar_across": 0
    }


def test_words_state_how_many_test_images_have_a_copy():
    row = {"similar_across": 12, "n_test": 40, "official_ap": "area", "feature": "x7"}
    row |= {"map": {"area": 91.2}, "map_apart": {"area": 70.14}}
    assert leak_words([row]) == (
        "12 of 40 test photos are nearly the same as a training photo, so figures on new photos "
        "may be lower; without them x7 has 70.1 instead of 91.2 mAP."
    )
    assert leak_words([{**row, "map_apart": None}]).endswith(
        "the mAP is not measurable."
    )
    assert leak_words([{**row, "similar_across": 0}]) == leak_words([]) == ""


@pytest.fixture(scope="module")
def wide_network():
    """Embeddings of 64 numbers, in which unrelated pictures are far apart."""
    import torch

    from deepfishing import Preprocess, wrap

    torch.manual_seed(0)
    module = torch.nn.Sequential(
        *(
            torch.nn.Flatten(),
            torch.nn.Linear(192, 64),
            torch.nn.Tanh(),
            torch.nn.Linear(64, 5),
        )
    )
    return wrap(module, preprocess=Preprocess(8, 8, mean=(127.0,) * 3, std=(60.0,) * 3))


def write_noise(root, photos, copies, rng, split_copies=False):
    """Pictures of noise in two random classes, each `copies` times with a little noise."""
    from PIL import Image

    for number in range(photos):
        label = "ab"[int(rng.random() < 0.5)]
        pixels = rng.integers(0, 256, (8, 8, 3), dtype=np.uint8)
        for copy in range(copies):
            changed = pixels.astype(int) + copy * rng.integers(-1, 2, pixels.shape)
            name = hashlib.sha256(f"{number}-{copy}".encode()).hexdigest()[:12]
            split = ("train", "test")[copy % 2] if split_copies else ""
            folder = root / split / label
            folder.mkdir(parents=True, exist_ok=True)
            Image.fromarray(np.uint8(changed.clip(0, 255))).save(folder / f"{name}.png")


@pytest.mark.parametrize("copies", [1, 2, 5])
def test_random_labels_are_at_chance_however_many_copies_there_are(
    wide_network, tmp_path, copies
):
    """Chance is the AP of scores that do not depend on the photo, and copies share their scores."""
    inside, excess = 0, []
    for seed in range(6):
        rng = np.random.default_rng(seed)
        root = tmp_path / f"{copies}-{seed}"
        write_noise(root / "photos", 60, copies, rng)
        (row,) = reproduce(
            read_folder(root / "photos"),
            wide_network,
            root / "o",
            "x7",
            Protocol(engine="torch"),
        )
        assert row["similar_across"] == 0
        low, high = row["map_interval"]["area"]
        chance = chance_map(root / "o", row)
        inside += low <= chance <= high
        excess.append(row["map"]["area"] - chance)
    assert inside >= 4
    assert abs(np.mean(excess)) < 8


def chance_map(folder, row):
    from deepfishing.evaluation.results import Results

    results = Results(folder)
    scores, labels, _ = results.scores(row)
    groups = results.groups(row)
    rng = np.random.default_rng(0)
    found = []
    for _ in range(60):
        random = rng.random((groups.max() + 1, scores.shape[1]))[groups]
        found.append(evaluate(labels, random, row["classes"]).map["area"])
    return np.mean(found)


def test_copies_across_the_users_own_split_are_counted_and_left_out(
    wide_network, tmp_path
):
    write_noise(tmp_path / "photos", 40, 2, np.random.default_rng(0), split_copies=True)
    (tmp_path / "photos/train/a").mkdir(exist_ok=True)
    dataset = read_folder(tmp_path / "photos")
    (row,) = reproduce(
        dataset, wide_network, tmp_path / "o", "x7", Protocol(engine="torch")
    )
    assert row["similar_across"] == row["n_test"] == 40
    assert row["map"]["area"] > 95
    assert row["map_apart"] is None
    assert "not measurable" in leak_words([row])


def test_a_folder_of_copies_of_one_photo_is_refused_in_one_line(wide_network, tmp_path):
    rng = np.random.default_rng(0)
    write_noise(tmp_path / "photos", 1, 6, rng)
    (label,) = (tmp_path / "photos").iterdir()
    other = tmp_path / "photos" / ("b" if label.name == "a" else "a")
    other.mkdir()
    for path in sorted(label.iterdir())[:3]:
        path.rename(other / path.name)
    with pytest.raises(DatasetError, match="unlike all training images"):
        reproduce(read_folder(tmp_path / "photos"), wide_network, tmp_path / "o", "x7")

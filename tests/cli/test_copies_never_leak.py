"""Random labels of imported vectors with copies: no command finds more than chance."""

import csv
import json

import numpy as np
import pytest

from deepfishing.core.metrics import average_precision

PHOTOS = 40


@pytest.fixture
def imported(deepfish, tmp_path):
    """A store of vectors, each several times with a little noise, and a table of random labels."""

    def make(copies, seed):
        rng = np.random.default_rng(seed)
        photo = np.repeat(np.arange(PHOTOS), copies)
        x = rng.normal(size=(PHOTOS, 64))[photo]
        x = (
            x
            + 0.02
            * rng.normal(size=x.shape)
            * (np.arange(len(x)) % copies > 0)[:, None]
        )
        truth = rng.permutation(PHOTOS)[photo] % 2
        names = [f"{copies}-{seed}-{number}.jpg" for number in range(len(x))]
        for name in names:
            (tmp_path / name).write_bytes(name.encode())
        paths = [str(tmp_path / name) for name in names]
        np.savez(tmp_path / "v.npz", x7=x.astype(np.float32), path=np.array(paths))
        store = tmp_path / f"store-{copies}-{seed}"
        ran = deepfish("import", "v.npz", store)
        assert ran.code == 0, ran.err
        table = tmp_path / "labels.csv"
        with table.open("w", newline="") as file:
            rows = csv.writer(file)
            rows.writerow(["path", "label"])
            rows.writerows(zip(paths, np.array(["heads", "tails"])[truth], strict=True))
        return store, table, photo, truth

    return make


def interval_of_chance(photo, truth):
    """Of the mAP of scores that do not depend on the photo and are equal for its copies."""
    rng = np.random.default_rng(0)
    found = []
    for _ in range(300):
        scores = rng.random(PHOTOS)[photo]
        tails = average_precision(np.where(truth == 1, 1, -1), scores, "area")
        heads = average_precision(np.where(truth == 0, 1, -1), -scores, "area")
        found.append((tails + heads) / 2)
    return np.percentile(found, [2.5, 97.5])


@pytest.mark.parametrize("copies", [1, 2, 5])
def test_no_figure_of_random_labels_is_above_chance(
    deepfish, imported, tmp_path, copies
):
    inside, doubted = [], []
    for seed in range(3):
        store, table, photo, truth = imported(copies, seed)
        _, high = interval_of_chance(photo, truth)
        for features in ("x7", "auto"):
            model = tmp_path / f"model-{copies}-{seed}-{features}"
            options = ["--features", features, "--labels", table, "--json"]
            ran = deepfish("train", store, model, *options)
            assert ran.code == 0, ran.err
            figure = json.loads(ran.out)["cross_validated_map"]
            inside.append(figure <= high)
        choice = json.loads((model / "model.json").read_text())["training"]["auto"]
        tried = [
            one["map"] for one in choice["tried"] if one["recipe"] == choice["recipe"]
        ]
        # of the same data, but one photo is left out here and a third there, and the standard
        # error of either on 40 photos is about 8
        assert min(abs(one - figure) for one in tried) < 20
        ran = deepfish("curate", "labels", store, "--labels", table, "--json")
        assert ran.code == 0, ran.err
        doubted.append(json.loads(ran.out)["doubtful"] / len(photo))
    assert np.mean(inside) >= 5 / 6
    assert 0.3 < np.mean(doubted) < 0.7  # a label that a copy tells is never doubted

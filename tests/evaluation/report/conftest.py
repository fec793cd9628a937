"""Synthetic results: random labels, scores that know them more or less, rows as measured."""

import hashlib
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from deepfishing.core.accuracy import measure_accuracy
from deepfishing.core.metrics import evaluate
from deepfishing.core.statistics import bootstrap
from deepfishing.evaluation.results import Curves, Results, row_key
from deepfishing.images.dataset import Split
from deepfishing.images.voc import CLASSES
from deepfishing.store.manifest import Row, write_index

STRENGTH = {
    **{
        "x5": 1.3,
        "x6": 1.6,
        "x7": 1.7,
        "y8": 1.65,
        "x8": 1.5,
        "x5;x6": 1.6,
        "dW6": 1.8,
    },
    **{"x6;x7": 1.7, "dW7": 1.9, "x7;y8": 1.75, "dW8": 1.72},
}
KNN = ("neighbours k", "mAP, %")
DIGITS = (
    "zero",
    "one",
    "two",
    "three",
    "four",
    "five",
    "six",
    "seven",
    "eight",
    "nine",
)


@pytest.fixture
def add_rows(rng):
    """Measure synthetic rows and keep them in a folder."""

    def add(
        folder,
        features=tuple(STRENGTH),
        n=60,
        labelled=True,
        strength=None,
        intervals=False,
        one_class=False,
        **changes,
    ):
        row = {
            "dataset": "voc2007",
            "train": "trainval",
            "test": "test",
            "network": "alexnet-torchvision",
            "weights_sha256": "ab" * 32,
            "tau": 2.0,
            "label": "uniform",
            "C": 1.0,
            "difficult": "negative",
            "official_ap": "11point",
            "classes": list(CLASSES),
            "n_train": n + 1,
            "n_test": n,
            "left_out": {},
            "unreadable": [],
            "command": "deepfish reproduce voc2007 --data VOCdevkit --network alexnet-torchvision",
            "version": "0.1.0",
            **changes,
        }
        labels = rng.choice(
            [-1, 0, 1], p=[0.75, 0.05, 0.2], size=(n, len(row["classes"]))
        )
        labels = labels.astype(np.int8)
        labels[0] = 1  # every class has a positive example
        if one_class:
            names = len(row["classes"])
            labels = np.where(np.eye(names)[np.arange(n) % names] == 1, 1, -1).astype(
                np.int8
            )
        ids = tuple(f"{i:06d}" for i in range(n))
        split = Split("test", ids, tuple(map(Path, ids)), labels if labelled else None)
        noise = rng.normal(size=labels.shape)
        results = Results(folder)
        for feature in features:
            scores = labels * (strength or STRENGTH)[feature] / 2 + 0.8 * noise
            scores += 0.6 * rng.normal(size=labels.shape)
            measured = evaluate(labels, scores, row["classes"])
            new = {
                **row,
                "feature": feature,
                "map": measured.map if labelled else None,
                "ap": measured.ap if labelled else None,
                "seconds": 1.25,
            }
            if intervals:
                new |= bootstrap(labels, scores, row["classes"]).as_row()
            if one_class:
                new |= measure_accuracy(labels, scores, row["classes"]).as_row()
            if not labelled:
                new["submission"] = f"submission/{feature.replace(';', '_')}"
            new["key"] = row_key(
                **{k: v for k, v in new.items() if k not in ("map", "ap")}
            )
            results.add(new, scores, split)
        return results

    return add


@pytest.fixture
def groceries():
    """What differs in rows on the embedded data set: a network that the paper does not have."""
    return {
        "dataset": "groceries",
        "network": "efficientnet-lite0",
        "official_ap": "area",
        "classes": list(DIGITS),
        "command": "deepfish reproduce groceries",
    }


@pytest.fixture
def add_images(rng):
    """Write one picture per id, each of its own colour, and the index that knows them."""

    def add(folder, images, ids, path_of=str, store="one"):
        rows = []
        images.mkdir(parents=True, exist_ok=True)
        for image_id in ids:
            path = images / f"{image_id}.png"
            path.parent.mkdir(parents=True, exist_ok=True)
            colour = tuple(rng.integers(256, size=3).tolist())
            Image.new("RGB", (120, 90), colour).save(path)
            content = path.read_bytes()
            sha256 = hashlib.sha256(content).hexdigest()
            rows.append(
                Row(path_of(path), path_of(path), sha256, len(content), status="ok")
            )
        place = folder / "features" / store
        place.mkdir(parents=True, exist_ok=True)
        write_index(place, rows)
        return rows

    return add


@pytest.fixture
def add_points():
    """Keep synthetic points of a protocol in a folder; each is (series, x, y, low, high)."""

    def add(
        folder,
        points,
        protocol="knn",
        feature=None,
        axes=("neighbours k", "mAP, %"),
        **changes,
    ):
        lines = [
            {
                "protocol": protocol,
                "feature": feature or series,
                "series": series,
                "dataset": "voc2007",
                "train": "trainval",
                "test": "test",
                "network": "efficientnet-lite0",
                "weights_sha256": "ab" * 32,
                "tau": 2.0,
                "label": "uniform",
                "views": "centre",
                "C": 1.0,
                "difficult": "negative",
                "official_ap": "11point",
                "x_axis": axes[0],
                "x": x,
                "y_axis": axes[1],
                "y": y,
                "low": low,
                "high": high,
                "note": "" if y is not None else "no room",
                "n_train": 5011,
                "n_test": 4952,
                "seconds": 1.5,
                "command": f"deepfish reproduce voc2007 --protocol {protocol}",
                "version": "0.1.0",
                "key": row_key(
                    protocol=protocol, series=series, x=x, axes=axes, **changes
                ),
                **changes,
            }
            for series, x, y, low, high in points
        ]
        curves = Curves(folder)
        curves.keep(lines)
        return curves.rows

    return add

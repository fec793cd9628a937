from pathlib import Path

import numpy as np
import pytest

from deepfishing.errors import DatasetError
from deepfishing.images.dataset import Dataset, Split


def split(
    name="train", ids=("a", "b"), paths=None, labels=((1, -1), (-1, 0)), dtype=np.int8
):
    paths = tuple(Path(f"{name}-{i}.jpg") for i in ids) if paths is None else paths
    return Split(
        name, ids, paths, None if labels is None else np.array(labels, dtype=dtype)
    )


def dataset(train=None, test=None, classes=("cat", "dog"), official_ap="area"):
    return Dataset(
        "pets", classes, train or split(), test or split("test"), official_ap
    )


def test_good_data_set_is_accepted_with_and_without_test_labels():
    assert len(dataset().train) == 2
    assert dataset(test=split("test", labels=None)).test.labels is None


@pytest.mark.parametrize(
    ("parts", "message"),
    [
        ({"ids": (), "labels": ()}, "at least one image"),
        ({"paths": (Path("a.jpg"),)}, "2 ids and 1 paths"),
        ({"ids": ("a", "a")}, "'a' 2 times"),
        ({"labels": ((1, -1),)}, r"shape \(2, n_classes\), got \(1, 2\)"),
        ({"labels": (1, -1)}, r"got \(2,\)"),
        ({"labels": ((1, -1), (-1, 7))}, r"of \[-1, 1, 7\]"),
        ({"dtype": np.int64}, "must be int8"),
    ],
)
def test_inconsistent_split_is_refused(parts, message):
    with pytest.raises(DatasetError, match=message):
        split(**parts)


@pytest.mark.parametrize(
    ("parts", "message"),
    [
        ({"classes": ("cat", "cat")}, "unique plain names"),
        ({"classes": ()}, "unique plain names"),
        ({"classes": ("cat", "../dog")}, "unique plain names"),
        ({"classes": ("cat", "dog", "cow")}, "3 columns, one per class, got 2"),
        ({"train": split(labels=None)}, "train split .* must have labels"),
        ({"test": split("train")}, "share images, got 2 in both, first train-a.jpg"),
        ({"official_ap": "best"}, "got 'best'"),
    ],
)
def test_inconsistent_data_set_is_refused(parts, message):
    with pytest.raises(DatasetError, match=message):
        dataset(**parts)

"""Copies and similar scenes on both sides of a split: moved to one side, or counted.

A test image that has a copy among the training images is no test. A split that was drawn by the
package is changed until no group of similar photos is on both sides. A split of the user's own, or
of a published data set, stays as it is; then the figures without such test images are given, too.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from deepfishing.core.rank_one import Array
from deepfishing.core.statistics import bootstrap
from deepfishing.errors import DatasetError
from deepfishing.images.dataset import Dataset, Split
from deepfishing.learn.folds import EMBEDDING, read_groups
from deepfishing.store import Store

GIVEN = "as the data set has it"
DRAWN = "half of each class, similar photos on one side"


def find_groups(store: Store, keys: Sequence[str]) -> Array:
    """Return the group of each image of a store, by its content and its embedding."""
    if store.missing(keys, [EMBEDDING]):  # a network without this feature
        _, by_content = np.unique(np.asarray(keys), return_inverse=True)
        return np.asarray(by_content)

    def read(rows: Array) -> dict[str, Array]:
        return {EMBEDDING: store.read([keys[row] for row in rows], EMBEDDING)}

    return read_groups(read, keys)


def keep_together(
    dataset: Dataset, keys: Sequence[str], groups: Array
) -> tuple[Dataset, list[str], list[str]]:
    """Move images so that no group is on both sides of a split; return the keys of both sides.

    Keys and groups are of the training images, then of the test images. Classes stay spread as they
    were, as far as the groups allow; one that would lose all of its training images keeps them.
    """
    train, test = dataset.train, dataset.test
    if train.labels is None or test.labels is None:
        return dataset, list(keys[: len(train)]), list(keys[len(train) :])
    labels = np.concatenate([train.labels, test.labels])
    was_test = np.arange(len(labels)) >= len(train)
    is_test = choose_sides(labels, groups, was_test)
    if not is_test.any():
        raise DatasetError(
            "a test image must be unlike all training images, got only similar ones among "
            f"{len(labels)} images of {dataset.name}; add other photos, or sort them into train "
            "and test"
        )
    ids, paths = (*train.ids, *test.ids), (*train.paths, *test.paths)
    splits, sides = [], []
    for split, chosen in ((train, ~is_test), (test, is_test)):
        rows = sorted(np.flatnonzero(chosen).tolist(), key=ids.__getitem__)
        its_ids = tuple(ids[row] for row in rows)
        its_paths = tuple(paths[row] for row in rows)
        splits.append(Split(split.name, its_ids, its_paths, labels[rows]))
        sides.append([keys[row] for row in rows])
    return replace(dataset, train=splits[0], test=splits[1]), sides[0], sides[1]


def choose_sides(labels: Array, groups: Array, was_test: Array) -> Array:
    """Return whether each image is for testing, the same for all images of a group.

    Groups that are on both sides are dealt out again, the largest first: to the side that lacks
    more of what they show, so that each side keeps about as many images of each class as it had.
    """
    _, group = np.unique(groups, return_inverse=True)
    sizes = np.bincount(group)
    tested = np.bincount(group, weights=was_test)
    is_split = (tested > 0) & (tested < sizes)
    is_test = np.array(was_test, dtype=bool)
    shows = labels == 1
    is_open = is_split[group]
    # images of each class that a side had and that are to be dealt out again
    lacking = {
        side: shows[is_open & (is_test == side)].sum(axis=0) for side in (False, True)
    }
    order = np.argsort(-sizes, kind="stable")
    for number in order[is_split[order]].tolist():
        members = group == number
        class_counts = shows[members].sum(axis=0)
        side = bool(lacking[True] @ class_counts > lacking[False] @ class_counts)
        lacking[side] = lacking[side] - class_counts
        is_test[members] = side
    for column in shows.T:
        if (column & ~was_test).any() and not (column & ~is_test).any():
            is_test[np.isin(group, group[column & ~was_test])] = False
    return is_test


def has_similar_in_training(groups: Array, n_train: int) -> Array:
    """Return whether each test image is in one group with a training image."""
    return np.isin(groups[n_train:], groups[:n_train])


def figures_apart(
    labels: Array,
    scores: Array,
    classes: Sequence[str],
    similar: Array,
    test_groups: Array,
) -> dict[str, Any]:
    """Return the keys of a row on test images that have a similar photo in training.

    `map_apart` and its interval are the mAP without them; None if no class is left.
    """
    keys: dict[str, Any] = {"similar_across": int(similar.sum())}
    if not similar.any():
        return keys
    apart = ~similar
    keys |= {"map_apart": None, "map_apart_interval": None}
    if (labels[apart] == 1).any():
        draws = bootstrap(
            labels[apart], scores[apart], classes, groups=test_groups[apart]
        )
        keys["map_apart"] = draws.measured.map
        keys["map_apart_interval"] = draws.as_row()["map_interval"]
    return keys

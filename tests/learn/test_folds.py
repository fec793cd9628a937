"""Folds keep groups together, spread classes, and say where a figure cannot be measured."""

import numpy as np
import pytest

from deepfishing.errors import FeatureError, OptionError
from deepfishing.learn.folds import make_folds


def one_class_each(classes):
    return np.where(np.asarray(classes)[:, None] == np.arange(max(classes) + 1), 1, -1)


@pytest.mark.parametrize("seed", range(5))
def test_a_group_is_never_split(seed):
    rng = np.random.default_rng(seed)
    labels = one_class_each(rng.integers(0, 4, 200))
    groups = rng.integers(0, rng.integers(2, 150), 200)
    number = make_folds(labels, groups, 3, seed).number
    for group in np.unique(groups):
        assert len(np.unique(number[groups == group])) == 1


def test_classes_and_images_are_spread_evenly():
    rng = np.random.default_rng(0)
    labels = one_class_each(rng.choice(5, 300, p=[0.5, 0.2, 0.15, 0.1, 0.05]))
    number = make_folds(labels, None, 3).number
    for column in labels.T:
        counts = np.bincount(number[column == 1], minlength=3)
        assert np.ptp(counts) <= 1
    assert np.ptp(np.bincount(number)) <= len(labels.T)


def test_every_measurable_class_can_be_trained_and_tested_in_every_fold():
    rng = np.random.default_rng(1)
    for _ in range(20):
        groups = rng.integers(0, 60, 150)
        labels = one_class_each(rng.integers(0, 6, 60)[groups])
        folds = make_folds(labels, groups, 3, 0)
        for column in np.flatnonzero(folds.measurable):
            for train, held in folds:
                assert (labels[held, column] == 1).any()
                assert len(np.unique(labels[train, column])) == 2


def test_folds_hold_every_image_out_once():
    labels = one_class_each(np.arange(31) % 2)
    held = [rows for _, rows in make_folds(labels, np.arange(31) // 2, 4)]
    np.testing.assert_array_equal(np.sort(np.concatenate(held)), np.arange(31))


def test_fewer_groups_than_folds_are_said_in_words():
    labels = one_class_each([0] * 10 + [1] * 10)
    groups = np.array([0] * 5 + [1] * 5 + list(range(2, 12)))
    folds = make_folds(labels, groups, 3)
    assert not folds.measurable.any()
    reasons = [folds.reason(0), folds.reason(1)]
    assert "needs 3 different photos with the class, has 2;" in reasons[0]
    assert "needs 3 different photos without the class, has 2;" in reasons[1]
    assert make_folds(labels, None, 3).reason(0) == ""


def test_one_group_of_all_images_has_no_fold():
    assert list(make_folds(one_class_each([0, 1, 0, 1]), [7, 7, 7, 7], 3)) == []


def test_difficult_images_count_on_neither_side():
    labels = np.array([[1], [1], [0], [-1], [-1], [0]])
    folds = make_folds(labels, None, 3)
    assert (folds.positive_groups.tolist(), folds.negative_groups.tolist()) == (
        [2],
        [2],
    )


def test_folds_repeat_with_their_seed_and_differ_between_seeds():
    labels = one_class_each(np.arange(40) % 3)
    a, b, c = (make_folds(labels, None, 3, seed).number for seed in (0, 0, 1))
    np.testing.assert_array_equal(a, b)
    assert (a != c).any()


def test_wrong_groups_and_folds_are_refused_in_one_line():
    labels = one_class_each([0, 1, 0])
    with pytest.raises(FeatureError, match="one entry for each of 3 images"):
        make_folds(labels, [0, 1])
    with pytest.raises(FeatureError, match="n_classes"):
        make_folds(labels[:, 0])
    with pytest.raises(OptionError, match="at least 2"):
        make_folds(labels, None, 1)

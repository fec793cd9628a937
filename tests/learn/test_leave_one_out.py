import numpy as np
import pytest

from deepfishing.learn.choice import Kernels
from deepfishing.learn.folds import make_folds
from deepfishing.learn.leave_one_out import (
    choose_by_leaving_out,
    held_out_scores,
    left_out_scores,
)
from deepfishing.learn.mixtures import (
    MIXTURES,
    NO_GAIN,
    Mixture,
    likeness,
    mixtures_for,
)
from deepfishing.learn.pool import Pool

LAYERS = {7: "c", 8: "fc"}


def refitted(K, labels, ridge, group):
    """The same scores, each by a fit without the image's group."""
    scores = np.zeros(labels.shape)
    for column, truth in enumerate(labels.T):
        for image in np.flatnonzero(truth):
            others = np.flatnonzero((truth != 0) & (group != group[image]))
            positive, negative = truth[others] == 1, truth[others] == -1
            target = positive / max(positive.sum(), 1) - negative / max(
                negative.sum(), 1
            )
            G = K[np.ix_(others, others)] + 1 + ridge * np.eye(len(others))
            scores[image, column] = (K[image, others] + 1) @ np.linalg.solve(G, target)
    return scores


@pytest.mark.parametrize("copies", [False, True])
def test_scores_are_those_of_fits_without_each_image(rng, copies):
    x = rng.normal(size=(14, 6))
    K = x @ x.T
    labels = np.where(rng.normal(size=(14, 3)) > 0, 1, -1)
    labels[:4, 1] = 0
    group = np.arange(14) // (2 if copies else 1)
    expected = refitted(K, labels, 0.5, group)
    np.testing.assert_allclose(
        left_out_scores(K, labels, 0.5, group), expected, atol=1e-9
    )


def test_a_kernel_that_says_nothing_scores_all_images_alike():
    """Holding out a positive image must not lower its score by itself."""
    labels = np.repeat([[1], [-1]], [3, 9], axis=0)
    scores = left_out_scores(np.ones((12, 12)), labels)
    assert np.ptp(scores) < 1e-9


class TwoKernels:
    """Kernels of which either the one with neighbours or the other one knows the classes."""

    layers = LAYERS
    pool = range(100)

    def __init__(self, informative, other, knows_with_neighbours):
        self.informative, self.other = informative, other
        self.knows_with_neighbours = knows_with_neighbours

    def without(self, held):
        return self

    def of(self, name):
        with_neighbours = "smooth" in name
        return (
            self.informative
            if with_neighbours == self.knows_with_neighbours
            else self.other
        )


@pytest.mark.parametrize("neighbours_know", [True, False])
@pytest.mark.parametrize("expected", [2.0, -2.0])
def test_labels_overrule_what_was_best_on_other_collections(
    rng, neighbours_know, expected
):
    mixtures = (
        Mixture(NO_GAIN, NO_GAIN),
        Mixture((expected,) * 5, (expected,) * 5, neighbours=1),
    )
    labels = np.where(np.arange(16)[:, None] % 2 == np.arange(2), 1, -1)
    noise = np.eye(16) + 0.01 * np.cov(rng.normal(size=(16, 40)))
    informative = noise + 0.2 * labels @ labels.T
    kernels = TwoKernels(informative, noise, neighbours_know)
    choice = choose_by_leaving_out(mixtures, kernels, labels, 8.0)
    assert ("smooth" in choice.recipe) == neighbours_know


@pytest.mark.parametrize(("copies", "overrules"), [(1, False), (25, True)])
def test_a_few_labels_do_not_overrule_what_many_collections_have_shown(
    rng, copies, overrules
):
    """The gain on eight images that are left out is mostly chance, on two hundred it is not."""
    mixtures = (
        Mixture(NO_GAIN, NO_GAIN),
        Mixture((4.0,) * 5, (4.0,) * 5, neighbours=1),
    )
    n = 8 * copies
    labels = np.where(np.arange(n)[:, None] % 2 == np.arange(2), 1, -1)
    noise = np.eye(n) + 0.01 * np.cov(rng.normal(size=(n, 40)))
    kernels = TwoKernels(noise + 0.2 * labels @ labels.T, noise, False)
    choice = choose_by_leaving_out(mixtures, kernels, labels, 4.0 * copies)
    assert ("smooth" not in choice.recipe) == overrules


def test_a_photo_that_is_left_out_is_left_out_of_the_pool_too(rng):
    """Prototypes and neighbours fit the photos that they were made of better than new ones."""
    x = rng.normal(size=(120, 16))
    labels = np.where(np.arange(120)[:, None] % 2 == np.arange(2), 1, -1)
    names = ["x7", "own(x7,64)", "smooth(x7)"]
    kernels = Kernels({"x7": x}, {8: "-"}, Pool({"x7": x}))
    group = np.arange(120) // 2
    found = held_out_scores(names, kernels, labels, group)
    half = make_folds(labels, group, 2).number
    for name, scores in zip(names, found, strict=True):
        for number in (0, 1):
            pool = Pool({"x7": x[half != number]})
            K = Kernels({"x7": x}, {8: "-"}, pool).of(name)
            expected = left_out_scores(K, labels, groups=group)
            held = half == number
            np.testing.assert_allclose(scores[held], expected[held], atol=1e-5)


def test_few_labelled_photos_are_all_left_out_of_the_pool(rng):
    x = rng.normal(size=(120, 16))
    labels = np.where(np.arange(12)[:, None] % 2 == np.arange(2), 1, -1)
    kernels = Kernels({"x7": x[:12]}, {8: "-"}, Pool({"x7": x}))
    (scores,) = held_out_scores(["smooth(x7)"], kernels, labels, np.arange(12))
    K = Kernels({"x7": x[:12]}, {8: "-"}, Pool({"x7": x[12:]})).of("smooth(x7)")
    np.testing.assert_allclose(scores, left_out_scores(K, labels), atol=1e-6)


def test_photos_that_are_all_alike_leave_no_pool_and_speak_for_nothing(rng):
    x = np.ones((40, 16))
    labels = np.where(np.arange(40)[:, None] % 2 == np.arange(2), 1, -1)
    kernels = Kernels({"x7": x}, {8: "-"}, Pool({"x7": x}))
    (scores,) = held_out_scores(["smooth(x7)"], kernels, labels, np.arange(40))
    assert not scores.any()


def test_one_label_per_class_takes_what_was_best_on_other_collections(rng):
    labels = np.where(np.eye(3) > 0, 1, -1)
    mixtures = mixtures_for("auto", {8: "-"}, ["x7"], has_pool=True)
    kernels = Kernels({"x7": rng.normal(size=(3, 8))}, {8: "-"})
    choice = choose_by_leaving_out(mixtures, kernels, labels, 1.0)
    best = max(mixtures, key=lambda mixture: mixture.expected(1))
    assert choice.recipe == best.recipe({8: "-"})
    assert choice.gain is None
    assert not choice.tried
    assert "best on other collections" in choice.why


def test_the_network_being_unsure_of_the_photos_speaks_against_gradients(rng):
    """Its classes and prototypes mislead on photos unlike those it was trained on."""
    labels = np.where(np.eye(3) > 0, 1, -1)
    mixtures = mixtures_for("auto", LAYERS, ["x6", "x7", "delta8"], has_pool=True)
    kernels = Kernels({"x7": rng.normal(size=(3, 8))}, LAYERS)
    scores = {"sure": 12 * np.eye(10), "unsure": 0.1 * np.eye(10)}
    chosen = {}
    for name, values in scores.items():
        alike = likeness(values)
        chosen[name] = choose_by_leaving_out(
            mixtures, kernels, labels, 1.0, alike=alike
        ).recipe
    assert "own" in chosen["sure"]
    assert "own" not in chosen["unsure"]
    assert "dW8" not in chosen["unsure"]


def test_candidates_are_those_whose_factors_are_there():
    layers, columns = LAYERS, ["x6", "x7", "delta8"]
    everything = mixtures_for("auto", layers, columns, has_pool=True)
    assert len(everything) == len(MIXTURES)
    forward = mixtures_for("auto-forward", layers, columns, has_pool=True)
    assert all(not mixture.is_gradient for mixture in forward)
    alone = mixtures_for("forward", layers, columns, has_pool=False)
    assert not any(mixture.is_gradient or mixture.uses_pool for mixture in alone)
    assert all(
        not one.head for one in mixtures_for("auto", {8: "-"}, ["x7"], has_pool=True)
    )
    assert mixtures_for("auto", layers, ["x6"], has_pool=True) == ()

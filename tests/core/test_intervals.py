"""Whatever labels and scores there are, a figure is a percentage and its interval holds it."""

import numpy as np
import pytest
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from deepfishing.core.metrics import DEFINITIONS
from deepfishing.core.statistics import bootstrap, bounded, compare
from deepfishing.evaluation.protocols.low_shot import LowShot
from deepfishing.evaluation.protocols.neighbours import nearest_neighbours

SHAPES = st.tuples(st.integers(1, 40), st.integers(1, 3))
LABELS = SHAPES.flatmap(
    lambda shape: arrays(np.int8, shape, elements=st.sampled_from([-1, 0, 1]))
)
FLOATS = st.floats(-4, 4, width=32)
TIES = st.integers(-1, 1).map(float)


@st.composite
def problems(draw):
    """Labels and scores: any, with many ties, all correct, all wrong, or one positive per class."""
    labels = draw(LABELS)
    # others are refused: test_metrics
    assume(-1 in labels or 0 not in labels or 1 not in labels)
    kind = draw(st.sampled_from(["any", "ties", "correct", "wrong", "one positive"]))
    if kind == "one positive":
        labels = np.full_like(labels, -1)
        labels[draw(st.integers(0, len(labels) - 1))] = 1
    if kind in ("correct", "wrong"):
        scores = labels * (1.0 if kind == "correct" else -1.0)
    else:
        scores = draw(
            arrays(
                np.float64, labels.shape, elements=TIES if kind == "ties" else FLOATS
            )
        )
    return labels, scores


def perfect(n):
    """A class of n images that are all ranked before one other."""
    labels = np.ones((n + 1, 1), np.int8)
    labels[-1] = -1
    return labels, -np.arange(n + 1.0)[:, None]


def holds(figure, interval):
    low, high = interval
    return 0.0 <= low <= figure <= high <= 100.0


@given(problems())
@example(
    perfect(20)
)  # its area used to be 100.00000000000001, and its interval turned around
@example(perfect(45))
@settings(max_examples=150, deadline=None)
def test_every_ap_is_a_percentage_that_its_interval_holds(problem):
    labels, scores = problem
    classes = [str(column) for column in range(labels.shape[1])]
    result = bootstrap(labels, scores, classes, resamples=25)
    for method in DEFINITIONS:
        draws = result.ap[method]
        assert ((draws >= 0) & (draws <= 100) | np.isnan(draws)).all()
        intervals = result.ap_interval(method)
        for name, ap in result.measured.ap[method].items():
            assert (ap is None) == (intervals[name] is None)
            assert ap is None or holds(ap, intervals[name])
        mean = result.measured.map[method]
        assert mean is None or holds(mean, result.map_interval(method))


@given(problems(), st.randoms(use_true_random=False))
@settings(max_examples=60, deadline=None)
def test_a_difference_lies_in_its_interval_and_within_100_points(problem, random):
    labels, scores = problem
    assume((labels == 1).any())
    other = np.array([[random.uniform(-1, 1) for _ in row] for row in scores])
    for method in DEFINITIONS:
        found = compare(labels, scores, other, method, resamples=25)
        assert -100.0 <= found.low <= found.mean <= found.high <= 100.0


@pytest.mark.parametrize("n", [1, 3, 10, 20, 21, 45, 98])
def test_a_class_that_is_ranked_right_has_exactly_100(n):
    result = bootstrap(*perfect(n), ["cat"], resamples=40)
    for method in DEFINITIONS:
        assert result.measured.ap[method]["cat"] == 100.0
        assert result.ap_interval(method)["cat"] == (100.0, 100.0)


@given(st.lists(st.floats(0, 100), min_size=2, max_size=6))
def test_few_examples_have_an_interval_of_percentages(values):
    point = LowShot(1, {"area": tuple(values)})
    assert holds(point.mean("area"), point.interval("area"))


@given(st.integers(1, 60), st.data())
@settings(max_examples=40, deadline=None)
def test_the_accuracy_of_neighbours_lies_in_its_interval(n, data):
    shown = np.array(
        data.draw(st.lists(st.sampled_from([-1, 1]), min_size=n, max_size=n))
    )
    labels = np.stack([shown, -shown], axis=1)
    seen = np.eye(2)[(shown * data.draw(st.sampled_from([-1, 1])) + 1) // 2]
    (found,) = nearest_neighbours(
        np.eye(2), 2 * np.eye(2) - 1, seen, labels, ["no", "yes"], [1]
    )
    assert holds(found.accuracy, found.interval)


def test_an_interval_is_put_in_order_and_around_its_figure():
    assert bounded((100.00000000000001, 100.0), 100.0) == (100.0, 100.0)
    assert bounded((-3.0, 104.0), 50.0) == (0.0, 100.0)
    assert bounded((60.0, 70.0), 50.0) == (50.0, 70.0)
    assert bounded((10.0, 20.0), 50.0) == (10.0, 50.0)

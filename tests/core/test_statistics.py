import json

import numpy as np
import pytest
from scipy.stats import binom, binomtest

import deepfishing.core.statistics as module
from deepfishing.core.metrics import DEFINITIONS, evaluate
from deepfishing.core.statistics import (
    Difference,
    bootstrap,
    compare,
    difference,
    proportion_interval,
)
from deepfishing.errors import DatasetError, FeatureError, OptionError


def problem(rng, n=60, C=5, ties=False):
    """Labels with difficult images, a class with one positive and one without; scores."""
    labels = rng.choice([-1, 0, 1], p=[0.6, 0.1, 0.3], size=(n, C))
    labels[:, 0] = -1
    labels[:, 1] = -1
    labels[n // 2, 1] = 1
    scores = rng.normal(size=(n, C)) + labels
    return labels, scores.round(0) if ties else scores


def drawn(n, resamples, seed):
    """The images of each draw, one by one."""
    rng = np.random.default_rng(seed)
    return [rng.integers(0, n, n) for _ in range(resamples)]


@pytest.mark.parametrize("ties", [False, True])
def test_each_draw_has_the_ap_of_the_images_drawn(rng, ties):
    labels, scores = problem(rng, ties=ties)
    result = bootstrap(labels, scores, "abcde", resamples=40, seed=7)
    for draw, images in enumerate(drawn(len(labels), 40, seed=7)):
        slow = evaluate(labels[images], scores[images], "abcde")
        for method in DEFINITIONS:
            each = [np.nan if v is None else v for v in slow.ap[method].values()]
            np.testing.assert_allclose(result.ap[method][draw], each, rtol=1e-12)
            assert result.map(method)[draw] == pytest.approx(
                slow.map[method], rel=1e-12
            )
    assert np.isnan(result.ap["area"][:, 0]).all()
    # 1 positive is not in every draw
    assert 0 < np.isnan(result.ap["area"][:, 1]).sum() < 40


def test_the_measured_figures_are_those_of_metrics(rng):
    labels, scores = problem(rng)
    assert bootstrap(labels, scores, "abcde", resamples=1).measured == evaluate(
        labels, scores, "abcde"
    )


def test_draws_do_not_depend_on_how_many_fit_in_memory(rng, monkeypatch):
    labels, scores = problem(rng)
    whole = bootstrap(labels, scores, "abcde", resamples=50)
    monkeypatch.setattr(module, "BLOCK_VALUES", 7 * len(labels))
    blocks = bootstrap(labels, scores, "abcde", resamples=50)
    for method in DEFINITIONS:
        np.testing.assert_allclose(blocks.ap[method], whole.ap[method], rtol=1e-12)


def test_the_same_seed_gives_the_same_draws_and_another_one_others(rng):
    labels, scores = problem(rng)
    first, again, other = (
        bootstrap(labels, scores, "abcde", ("area",), resamples=20, seed=seed)
        for seed in (1, 1, 2)
    )
    np.testing.assert_array_equal(first.ap["area"], again.ap["area"])
    assert not np.array_equal(first.map("area"), other.map("area"))


def test_an_interval_is_the_percentiles_of_the_draws_moved_to_the_measured_figure(rng):
    labels, scores = problem(rng)
    result = bootstrap(labels, scores, "abcde", resamples=300)
    for method in DEFINITIONS:
        draws = sorted(result.map(method))
        middle = result.measured.map[method] - sum(draws) / 300
        low, high = result.map_interval(method)
        assert draws[6] <= low - middle <= draws[8]  # 2.5 percent of 300 is 7.5
        assert draws[291] <= high - middle <= draws[293]
        each = result.ap_interval(method)
        assert list(each) == list("abcde")
        assert each["a"] is None
        for name in "cde":
            assert (
                0
                <= each[name][0]
                < result.measured.ap[method][name]
                < each[name][1]
                <= 100
            )


def test_an_interval_ends_at_100_where_the_move_would_carry_it_further():
    # AP is 100 for draws without the last image
    labels = np.array([[1], *[[-1]] * 500, [1]])
    beyond = 0
    for seed in range(10):
        result = bootstrap(labels, -np.arange(502.0)[:, None], "a", ("area",), 30, seed)
        draws = result.ap["area"][~np.isnan(result.ap["area"])]
        moved = np.quantile(draws, 0.975) + result.measured.map["area"] - draws.mean()
        assert result.map_interval("area")[1] == pytest.approx(min(moved, 100))
        beyond += moved > 101
    assert beyond


def test_a_row_has_the_intervals_of_every_method_and_class_as_plain_json(rng):
    labels, scores = problem(rng)
    result = bootstrap(labels, scores, "abcde", resamples=5)
    row = result.as_row()
    assert json.loads(json.dumps(row, allow_nan=False)) == row
    for method in DEFINITIONS:
        assert row["map_interval"][method] == list(result.map_interval(method))
        assert row["ap_interval"][method]["a"] is None
        assert row["ap_interval"][method]["c"] == list(result.ap_interval(method)["c"])


def test_there_is_no_interval_without_a_positive(rng):
    labels, scores = problem(rng)
    result = bootstrap(labels[:, :1], scores[:, :1], "a", resamples=5)
    assert result.map_interval("area") is None
    assert result.as_row()["map_interval"] == dict.fromkeys(DEFINITIONS)


@pytest.mark.slow
def test_a_95_percent_interval_covers_in_95_percent_of_test_sets():
    """200 test sets of 5 classes; the truth is the mean figure of many such sets."""
    rng = np.random.default_rng(3)

    def test_set(n=300):
        labels = np.where(rng.random((n, 5)) < 0.15, 1, -1)
        return labels, rng.normal(size=labels.shape) + 2.0 * (labels == 1)

    truth = dict.fromkeys(DEFINITIONS, 0.0)
    for _ in range(1000):
        for method, value in evaluate(*test_set(), "abcde").map.items():
            truth[method] += value / 1000
    below, above = dict.fromkeys(DEFINITIONS, 0), dict.fromkeys(DEFINITIONS, 0)
    for number in range(200):
        result = bootstrap(*test_set(), "abcde", resamples=200, seed=number)
        for method in DEFINITIONS:
            low, high = result.map_interval(method)
            below[method] += truth[method] < low
            above[method] += truth[method] > high
    for method in DEFINITIONS:
        # 10 of 200 expected; 20 or more in 1 of 400 such simulations
        assert 2 <= below[method] + above[method] < 20
        assert max(below[method], above[method]) < 13  # on either side about as often


def test_a_difference_is_that_of_each_draw(rng):
    labels, a = problem(rng)
    b = a + rng.normal(size=a.shape)
    result = compare(labels, a, b, "11point", resamples=60, seed=5)
    slow = []
    for images in drawn(len(labels), 60, seed=5):
        pair = [
            evaluate(labels[images], s[images], "abcde").map["11point"] for s in (a, b)
        ]
        slow.append(pair[0] - pair[1])
    measured = [evaluate(labels, s, "abcde").map["11point"] for s in (a, b)]
    assert result.mean == pytest.approx(measured[0] - measured[1])
    moved = np.array(slow) - np.mean(slow) + result.mean
    assert (result.low, result.high) == pytest.approx(
        tuple(np.percentile(moved, [2.5, 97.5]))
    )
    fewer = min((moved <= 0).sum(), (moved >= 0).sum())
    assert result.p == pytest.approx(min(1, 2 * (1 + fewer) / 61))


def test_pairing_narrows_the_interval_of_rows_that_err_on_the_same_images(rng):
    labels = rng.choice([-1, 1], p=[0.8, 0.2], size=(400, 4))
    common = labels + 1.2 * rng.normal(size=labels.shape)
    a, b = (common + 0.3 * rng.normal(size=labels.shape) for _ in range(2))
    paired = compare(labels, a, b, "area", resamples=200)
    one = bootstrap(labels, a, "abcd", resamples=200, seed=1)
    # other draws: not paired
    other = bootstrap(labels, b, "abcd", resamples=200, seed=2)
    unpaired = difference(paired.mean, one.map("area") - other.map("area"))
    assert paired.high - paired.low < 0.6 * (unpaired.high - unpaired.low)


def test_a_difference_that_is_there_holds_and_turns_its_sign_with_the_rows(rng):
    labels = rng.choice([-1, 1], size=(300, 3))
    noise = rng.normal(size=labels.shape)
    good, bad = labels + noise, 0.4 * labels + noise
    up, down = (
        compare(labels, *pair, "area", 300) for pair in ((good, bad), (bad, good))
    )
    assert up.holds
    assert down.holds
    assert up.low > 0 > down.high
    assert up.mean == -down.mean
    assert up.p == down.p < 0.02


def test_equal_rows_differ_by_nothing(rng):
    labels, scores = problem(rng)
    same = compare(labels, scores, 2 * scores + 1, "area", resamples=50)
    assert same == Difference(0.0, 0.0, 0.0, 1.0)
    assert not same.holds


@pytest.mark.slow
def test_a_difference_that_is_not_there_holds_in_about_1_of_20_test_sets():
    rng = np.random.default_rng(4)
    held = 0
    for number in range(200):
        labels = np.where(rng.random((200, 4)) < 0.2, 1, -1)
        common = rng.normal(size=labels.shape) + 2.0 * (labels == 1)
        a, b = (common + 0.5 * rng.normal(size=labels.shape) for _ in range(2))
        held += compare(labels, a, b, "area", resamples=200, seed=number).holds
    assert 2 <= held < 20


def test_wrong_input_is_one_clear_error(rng):
    labels, scores = problem(rng)
    with pytest.raises(OptionError, match="resamples must be at least 1, got 0"):
        bootstrap(labels, scores, "abcde", resamples=0)
    with pytest.raises(OptionError, match="got 'roc'"):
        compare(labels, scores, scores, "roc")
    with pytest.raises(FeatureError, match=r"got \(60, 5\) and \(60, 4\)"):
        compare(labels, scores, scores[:, :4], "area")
    with pytest.raises(DatasetError, match="at least one test image"):
        bootstrap(labels[:0], scores[:0], "abcde")
    with pytest.raises(DatasetError, match="class with an AP, got none"):
        compare(labels[:, :1], scores[:, :1], scores[:, :1], "area", resamples=5)


def test_the_interval_of_a_mean_is_students():
    low, high = module.mean_interval([40.0, 42.0, 44.0])
    assert (round(low, 2), round(high, 2)) == (37.03, 46.97)
    assert module.mean_interval([40.0]) is None


def test_an_interval_is_moved_so_that_the_mean_of_the_draws_is_the_figure():
    low, high = module.interval_of(np.linspace(70.0, 80.0, 1001), 76.0)
    assert (round(low, 2), round(high, 2)) == (71.25, 80.75)


@pytest.mark.parametrize(
    ("n", "p"), [(30, 0.99), (30, 0.9), (100, 0.5), (10, 0.8), (400, 0.98)]
)
def test_the_interval_of_a_proportion_covers_it(n, p):
    """Exactly: the probability of all counts whose interval holds p."""
    counts = np.arange(n + 1)
    intervals = np.array([proportion_interval(int(count), n) for count in counts])
    holds = (intervals[:, 0] <= 100 * p) & (100 * p <= intervals[:, 1])
    assert 0.93 <= binom.pmf(counts[holds], n, p).sum() <= 0.99


def test_the_interval_of_a_proportion_is_wilsons():
    for right, n in ((0, 4), (3, 7), (30, 30)):
        expected = binomtest(right, n).proportion_ci(method="wilson")
        low, high = proportion_interval(right, n)
        assert (low, high) == pytest.approx(
            (100 * expected.low, 100 * expected.high), abs=1e-9
        )
    with pytest.raises(OptionError, match="1 or more images, got 3 of 2"):
        proportion_interval(3, 2)


def test_copies_are_drawn_together_and_single_images_as_without_groups(rng):
    labels, scores = problem(rng)
    n = len(labels)
    plain = bootstrap(labels, scores, "abcde", resamples=20)
    alone = bootstrap(labels, scores, "abcde", resamples=20, groups=100 - np.arange(n))
    np.testing.assert_array_equal(plain.ap["area"], alone.ap["area"])
    twice, again = np.repeat(labels, 2, axis=0), np.repeat(scores, 2, axis=0)
    groups = np.repeat(np.arange(n), 2)
    together = bootstrap(twice, again, "abcde", resamples=20, groups=groups)
    np.testing.assert_allclose(together.ap["sklearn"], plain.ap["sklearn"])
    frequent = twice[:, 2:], again[:, 2:], "cde"
    apart = bootstrap(*frequent, resamples=200)
    wide = bootstrap(*frequent, resamples=200, groups=groups)
    width = [np.diff(one.map_interval("area"))[0] for one in (apart, wide)]
    assert width[0] < 0.85 * width[1]

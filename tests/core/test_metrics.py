import json
import re
from dataclasses import asdict
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
from sklearn.metrics import average_precision_score

from deepfishing.core.metrics import (
    DEFINITIONS,
    Definition,
    average_precision,
    evaluate,
    official_ap,
    precision_recall,
)
from deepfishing.core.statistics import bootstrap
from deepfishing.errors import DatasetError, FeatureError, OptionError
from deepfishing.images.dataset import Dataset, Split


def curve(truth, scores):
    """Straight from the definition, in exact fractions: one point per distinct score."""
    kept = [(t, s) for t, s in zip(truth, scores, strict=True) if t != 0]
    total = sum(t == 1 for t, _ in kept)
    points = []
    for threshold in sorted({s for _, s in kept}, reverse=True):
        above = [t for t, s in kept if s >= threshold]
        found = sum(t == 1 for t in above)
        points.append((Fraction(found, total), Fraction(found, len(above))))
    return points


def brute_11point(truth, scores):
    points = curve(truth, scores)
    best = [max(p for r, p in points if r >= Fraction(t, 10)) for t in range(11)]
    return float(100 * sum(best) / 11)


def brute_area(truth, scores):
    points = curve(truth, scores)
    total = sum(t == 1 for t in truth)
    best = [
        max(p for r, p in points if r >= Fraction(k, total))
        for k in range(1, total + 1)
    ]
    return float(100 * sum(best) / total)


def devkit_area(truth, scores):
    """The devkit's VOCap with sentinels, in floating point; right only without ties."""
    order = sorted((i for i, t in enumerate(truth) if t != 0), key=lambda i: -scores[i])
    tp = np.cumsum([truth[i] == 1 for i in order])
    recall = [0.0, *(tp / tp[-1]), 1.0]
    precision = [0.0, *(tp / np.arange(1, len(tp) + 1)), 0.0]
    for i in range(len(precision) - 2, -1, -1):
        precision[i] = max(precision[i], precision[i + 1])
    steps = [i + 1 for i in range(len(recall) - 1) if recall[i + 1] != recall[i]]
    return 100 * sum((recall[i] - recall[i - 1]) * precision[i] for i in steps)


def problems():
    """Random rankings of every kind: with ties, difficult images, one positive, all positive."""
    rng = np.random.default_rng(0)
    for case in range(120):
        n = int(rng.integers(1, 40))
        p = (0.1, 0.3, 0.6) if case % 2 else (0.0, 0.5, 0.5)
        truth = rng.choice([0, 1, -1], size=n, p=p)
        truth[rng.integers(n)] = 1
        scores = rng.integers(0, 5, size=n) / 4 if case % 3 else rng.normal(size=n)
        yield truth, scores
    yield np.ones(7, dtype=int), rng.normal(size=7)
    yield np.array([-1, -1, 1, -1]), np.array([0.4, 0.3, 0.2, 0.1])
    yield np.array([1, -1, 1, -1]), np.zeros(4)


@pytest.mark.parametrize(
    ("method", "brute"),
    [("11point", brute_11point), ("area", brute_area)],
    ids=["11point", "area"],
)
def test_average_precision_is_its_definition(method, brute):
    for truth, scores in problems():
        got = average_precision(truth, scores, method)
        assert got == pytest.approx(brute(truth, scores), abs=1e-9)


def test_sklearn_method_is_scikit_learns():
    for truth, scores in problems():
        kept = truth != 0
        expected = 100 * average_precision_score(truth[kept] == 1, scores[kept])
        assert average_precision(truth, scores, "sklearn") == pytest.approx(
            expected, abs=1e-9
        )


def test_area_is_the_devkits_where_no_scores_are_tied():
    for truth, scores in problems():
        if len(set(scores.tolist())) == len(scores):
            got = average_precision(truth, scores, "area")
            assert got == pytest.approx(devkit_area(truth, scores), abs=1e-9)


def test_eleven_points_count_a_recall_of_three_in_ten_as_reaching_three_tenths():
    # 3 of 10 at full precision, then negatives only: t = 0, 0.1, 0.2 and 0.3 reach precision 1
    truth = np.array([1] * 3 + [-1] * 70 + [1] * 7)
    scores = -np.arange(80.0)
    expected = 100 * (4 * 1.0 + 7 * 10 / 80) / 11
    assert average_precision(truth, scores, "11point") == pytest.approx(
        expected, abs=1e-9
    )


@pytest.mark.parametrize("method", DEFINITIONS)
def test_order_of_the_images_does_not_matter_even_with_ties(method):
    rng = np.random.default_rng(1)
    truth = rng.choice([-1, 1, 0], size=60)
    scores = rng.integers(0, 4, size=60)
    shuffle = rng.permutation(60)
    got = average_precision(truth[shuffle], scores[shuffle], method)
    assert got == average_precision(truth, scores, method)


@pytest.mark.parametrize("dtype", [np.float32, np.int64, np.uint8, bool])
def test_scores_of_any_number_type_are_ranked_by_value(dtype):
    truth, scores = np.array([1, -1, 1, -1]), np.array([1, 0, 1, 0], dtype=dtype)
    assert average_precision(truth, scores, "area") == 100.0


def test_difficult_images_do_not_count_wherever_they_rank():
    truth, scores = np.array([1, -1, 1]), np.array([3.0, 2.0, 1.0])
    for score in (9.0, 2.5, 0.0):
        for method in DEFINITIONS:
            with_difficult = average_precision(
                np.append(truth, 0), np.append(scores, score), method
            )
            assert with_difficult == average_precision(truth, scores, method)


def test_precision_recall_is_the_curve_of_fractions():
    for truth, scores in problems():
        precision, recall = precision_recall(truth, scores)
        points = curve(truth, scores)
        np.testing.assert_allclose(recall, [float(r) for r, _ in points], rtol=1e-12)
        np.testing.assert_allclose(precision, [float(p) for _, p in points], rtol=1e-12)


def test_evaluate_is_average_precision_per_class_and_its_mean():
    rng = np.random.default_rng(2)
    labels, scores = rng.choice([-1, 0, 1], size=(50, 4)), rng.normal(size=(50, 4))
    result = evaluate(labels, scores, "abcd")
    for method in DEFINITIONS:
        each = [average_precision(labels[:, c], scores[:, c], method) for c in range(4)]
        assert list(result.ap[method].values()) == each
        assert result.map[method] == pytest.approx(sum(each) / 4)
    assert result.skipped == ()


def test_class_without_a_positive_is_skipped_and_the_result_is_plain_json():
    labels = np.array([[1, -1, 0], [-1, -1, -1]])
    result = evaluate(
        labels, np.array([[2.0, 0, 0], [1.0, 0, 0]]), ["cat", "dog", "cow"]
    )
    assert result.skipped == ("dog", "cow")
    assert result.map == dict.fromkeys(DEFINITIONS, 100.0)
    assert result.ap["area"] == {"cat": 100.0, "dog": None, "cow": None}
    assert "NaN" not in json.dumps(asdict(result), allow_nan=False)


def test_no_class_with_a_positive_gives_no_mean():
    result = evaluate(-np.ones((3, 2)), np.zeros((3, 2)), ["cat", "dog"])
    assert result.map == dict.fromkeys(DEFINITIONS, None)


def test_average_precision_without_a_positive_is_an_error():
    with pytest.raises(DatasetError, match="got none of 2"):
        average_precision(np.array([-1, 0]), np.zeros(2), "area")
    with pytest.raises(DatasetError, match="got none of 0"):
        precision_recall(np.empty(0), np.empty(0))


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_scores_that_are_not_finite_are_refused(bad):
    with pytest.raises(FeatureError, match="1 NaN or infinite of 2"):
        average_precision(np.array([1, -1]), np.array([bad, 0.0]), "area")


def test_wrong_shapes_labels_and_methods_are_refused():
    one = np.array([1, -1])
    with pytest.raises(FeatureError, match=r"\(2,\) and \(3,\)"):
        average_precision(one, np.zeros(3), "area")
    with pytest.raises(FeatureError, match=r"\(n, 2\).*got \(2, 1\) and \(2, 1\)"):
        evaluate(one[:, None], np.zeros((2, 1)), ["cat", "dog"])
    with pytest.raises(DatasetError, match=r"got \[7\]"):
        average_precision(np.array([1, 7]), np.zeros(2), "area")
    with pytest.raises(OptionError, match="did you mean 11point"):
        average_precision(one, np.zeros(2), "11points")


def test_another_definition_is_one_more_record(monkeypatch):
    first = Definition(
        "first",
        "first",
        "precision of the first score",
        lambda r: 100 * r.precision[0],
        ("mine",),
    )
    monkeypatch.setitem(DEFINITIONS, "first", first)
    labels, scores = np.array([[1], [-1], [1]]), np.array([[0.5], [0.5], [0.1]])
    assert evaluate(labels, scores, ["cat"]).map["first"] == 50.0
    assert set(
        bootstrap(labels, scores, ["cat"], resamples=5).as_row()["map_interval"]
    ) == set(DEFINITIONS)
    assert official_ap("mine") == "first"
    split = Split("a", ("a",), (Path("a.jpg"),), np.array([[1]], np.int8))
    other = Split("b", ("b",), (Path("b.jpg"),), np.array([[1]], np.int8))
    assert (
        Dataset("mine", ("cat",), split, other, official_ap("mine")).official_ap
        == "first"
    )
    with pytest.raises(
        OptionError, match=r"sklearn, first, got 'frist'; did you mean first"
    ):
        average_precision(np.array([1]), np.array([1.0]), "frist")


def test_the_docs_say_what_the_records_say():
    text = (Path(__file__).parents[2] / "docs/notation.md").read_text()
    rows = re.findall(r"\| `(\w+)` \| (.*) \| ?(.*) \|\n", text)
    for one in DEFINITIONS.values():
        assert (one.name, one.help, ", ".join(one.official_for)) in rows


def test_labels_of_0_and_1_are_refused_since_0_is_difficult():
    labels, scores = np.array([[1], [0], [0]]), np.array([[0.1], [0.9], [0.8]])
    for wrong in (labels, labels.astype(bool)):
        with pytest.raises(FeatureError, match=r"-1 for absent .* pass np\.where"):
            evaluate(wrong, scores, ["cat"])
    assert evaluate(np.where(labels > 0, 1, -1), scores, ["cat"]).map["area"] < 50

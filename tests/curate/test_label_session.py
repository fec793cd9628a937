"""Learning while somebody labels: the estimate, the advice and what is asked next."""

import numpy as np
import pytest

from deepfishing.curate.label_session import (
    MAX_LABELLED,
    NONE,
    advice_in_words,
    advise,
    choose_next,
    learn,
    learning_curve,
    newest,
    targets,
)
from deepfishing.learn.few_labels import RIDGE, FewLabels


def collection(noise, n=600, classes=4, d=12, seed=0):
    rng = np.random.default_rng(seed)
    truth = np.arange(n) % classes
    x = rng.normal(size=(classes, d))[truth] + noise * rng.normal(size=(n, d))
    x /= np.linalg.norm(x, axis=1, keepdims=True)
    return FewLabels(x.astype(np.float32)), truth


def named(truth, rows):
    return [(f"c{truth[row]}",) for row in rows]


def test_targets_have_a_class_for_photos_that_show_none():
    classes, target = targets([("a",), (), ("a", "b")])
    assert classes == ("a", "b", NONE)
    np.testing.assert_array_equal(target, [[1, -1, -1], [-1, -1, 1], [1, 1, -1]])


def test_left_out_scores_are_those_of_training_without_the_group():
    few, truth = collection(1.0)
    rows, groups = np.arange(24), np.arange(600)
    groups[[0, 1, 2]] = 0
    learned = learn(few, rows, named(truth, rows), groups)
    for held in ([0, 1, 2], [7]):
        train = np.setdiff1d(rows, held)
        v = few.vectors[train].astype(float)
        dual = np.linalg.solve(
            v @ v.T + 1 + RIDGE * np.eye(len(v)), learned.target[train]
        )
        expected = (few.vectors[held].astype(float) @ v.T + 1) @ dual
        np.testing.assert_allclose(learned.left_out[held], expected, atol=1e-8)


def test_copies_do_not_make_the_estimate_better():
    few, truth = collection(2.5)
    rows = np.repeat(np.arange(30), 2)
    copies = FewLabels(few.vectors[rows])
    answers = named(truth, rows)
    apart = learn(copies, np.arange(60), answers, rows).estimate()
    blind = learn(copies, np.arange(60), answers).estimate()
    assert blind.accuracy > apart.accuracy + 10
    low, high = apart.interval
    assert high - low > blind.interval[1] - blind.interval[0]


def test_the_interval_has_the_accuracy_of_the_rest():
    inside = 0
    for seed in range(20):
        few, truth = collection(1.5, seed=seed)
        rows = np.random.default_rng(seed).permutation(600)[:60]
        learned = learn(few, rows, named(truth, rows))
        rest = np.setdiff1d(np.arange(600), rows)
        names = np.array([f"c{one}" for one in truth])
        right = (
            np.array(learned.classes)[learned.scores[rest].argmax(axis=1)]
            == names[rest]
        )
        low, high = learned.estimate().interval
        inside += low <= 100 * right.mean() <= high
    assert inside >= 16


def test_photos_that_were_asked_first_because_they_are_hard_do_not_spoil_the_estimate():
    """Half of the labelled photos are outliers, which one photo in fifteen is."""
    gaps, raw = [], []
    for seed in range(10):
        few, truth = collection(0.9, d=24, seed=seed)
        rng = np.random.default_rng(seed + 100)
        hard = np.arange(0, 600, 15)
        vectors = few.vectors.copy()
        noise = rng.normal(size=(len(hard), 24))
        vectors[hard] = noise / np.linalg.norm(noise, axis=1, keepdims=True)
        easy = np.setdiff1d(np.arange(600), hard)
        rows = np.concatenate([hard, rng.permutation(easy)[:40]])
        learned = learn(FewLabels(vectors), rows, named(truth, rows))
        rest = np.setdiff1d(np.arange(600), rows)
        first = np.array(learned.classes)[learned.scores[rest].argmax(axis=1)]
        right = 100 * np.mean(first == [f"c{one}" for one in truth[rest]])
        gaps.append(learned.estimate().accuracy - right)
        raw.append(100 * learned.right.mean() - right)
    assert np.mean(raw) < -25  # what counting the labelled photos would say
    assert abs(np.mean(gaps)) < 6


def test_labels_at_random_are_expected_to_be_right_by_chance():
    inside = 0
    for seed in range(20):
        few, _ = collection(1.0, seed=seed)
        rows = np.random.default_rng(seed).permutation(600)[:60]
        labels = np.random.default_rng(seed + 100).integers(4, size=600)
        low, high = learn(few, rows, named(labels, rows)).estimate().interval
        inside += low <= 25 <= high
    assert inside >= 18


def test_more_labels_are_advised_while_they_help_and_not_after():
    easy, truth = collection(0.25)
    rows = np.arange(120)
    assert advise(easy, learn(easy, rows, named(truth, rows))).verdict == "enough"
    hard, truth = collection(1.6, d=60)
    rows = np.arange(40)
    assert advise(hard, learn(hard, rows, named(truth, rows))).verdict == "helps"
    few = learn(hard, rows[:8], named(truth, rows[:8]))
    assert advise(hard, few).verdict == "early"
    for verdict in (
        advise(easy, learn(easy, range(120), named(truth, range(120)))),
        advise(hard, few),
    ):
        assert advice_in_words(verdict).endswith(".")


def test_what_is_asked_next_is_not_labelled_and_covers_more_than_chance():
    few, truth = collection(0.6, classes=12)
    chosen = choose_next(few, [], n=12)
    by_chance = [
        len(set(truth[np.random.default_rng(s).permutation(600)[:12]]))
        for s in range(20)
    ]
    assert len(set(truth[chosen])) > np.mean(by_chance)
    again = choose_next(few, chosen, n=12)
    assert not set(again) & set(chosen)
    assert set(choose_next(few, [3], among=np.array([3, 4, 5]))) == {4, 5}
    assert len(choose_next(few, [3], among=np.array([3]))) == 0


def test_photos_that_the_classifier_is_unsure_of_come_first():
    few, truth = collection(0.9, classes=3)
    rows = np.random.default_rng(1).permutation(600)[:40]
    learned = learn(few, rows, named(truth, rows))
    best = np.partition(learned.scores, -2, axis=1)
    margin = best[:, -1] - best[:, -2]
    chosen = choose_next(few, rows, learned)
    assert margin[chosen].mean() < 0.8 * margin.mean()


def test_the_curve_ends_with_the_estimate():
    few, truth = collection(1.5)
    rows = np.random.default_rng(0).permutation(600)[:80]
    curve = learning_curve(few, rows, named(truth, rows))
    last = learn(few, rows, named(truth, rows)).estimate()
    assert curve[-1].accuracy == pytest.approx(last.accuracy)
    assert curve[-1].interval == pytest.approx(last.interval)
    assert [point.labels for point in curve] == sorted(
        {point.labels for point in curve}
    )
    asked = iter([True, True, False])  # a new label comes while it is made
    begun = learning_curve(few, rows, named(truth, rows), is_wanted=lambda: next(asked))
    assert begun == curve[:2]
    assert learning_curve(few, rows[:5], named(truth, rows[:5])) == []
    assert learn(few, rows[:3], [("a",)] * 3) is None


@pytest.mark.parametrize("n", [10, MAX_LABELLED, 5 * MAX_LABELLED])
def test_of_very_many_labels_the_newest_and_a_sample_are_learned_from(n):
    kept = newest(n)
    assert len(kept) == len(set(kept.tolist())) == min(n, MAX_LABELLED)
    assert kept[-1] == n - 1
    assert kept[0] == 0

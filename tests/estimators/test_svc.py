import numpy as np
import pytest
from sklearn.model_selection import (
    GridSearchCV,
    StratifiedKFold,
    cross_val_score,
    train_test_split,
)
from sklearn.pipeline import Pipeline
from sklearn.svm import SVC
from sklearn.utils.estimator_checks import parametrize_with_checks

from deepfishing.core.kernels import KernelProduct, KernelSum, gram
from deepfishing.core.rank_one import RankOne
from deepfishing.errors import FeatureError, OptionError
from deepfishing.estimators import Power, Project, TraceKernelSVC, Whiten


def expected_failures(estimator):
    why = "of one class against the rest only the positives are weighted, by a number"
    known = {"check_class_weight_classifiers": why}
    if estimator.calibrated:
        why = "Platt's sigmoid need not be 1/2 where the score is 0, so the best class may differ"
        known["check_classifiers_train"] = why
    return known


@parametrize_with_checks(
    [TraceKernelSVC(), TraceKernelSVC(calibrated=True)],
    expected_failed_checks=expected_failures,
)
def test_on_arrays_it_passes_the_checks_of_scikit_learn(estimator, check):
    check(estimator)


@pytest.fixture
def problem(rng, random_rank_one):
    """Gradients of 90 images in three classes that overlap."""
    gradients = random_rank_one(90)
    y = rng.permutation(np.repeat(["ant", "bee", "cow"], 30))
    x = gradients.x + 1.5 * np.eye(3, 7)[np.unique(y, return_inverse=True)[1]]
    return RankOne(x, gradients.delta + 0.5).normalize(), y


def machine(train, target, test, C=1.0, **options):
    svc = SVC(C=C, kernel="precomputed", **options).fit(gram(train), target)
    return svc.decision_function(gram(test, train))


def test_for_two_classes_it_is_a_plain_svc_on_the_gram_matrix(problem):
    X, y = problem
    train, test = X[:60], X[60:]
    target = np.where(y == "cow", "cow", "other")[:60]
    svc = TraceKernelSVC(C=0.7).fit(train, target)
    expected = SVC(C=0.7, kernel="precomputed").fit(gram(train), target)
    K = gram(test, train)
    np.testing.assert_allclose(
        svc.decision_function(test), expected.decision_function(K)
    )
    np.testing.assert_array_equal(svc.predict(test), expected.predict(K))
    assert svc.classes_.tolist() == ["cow", "other"]


def test_for_more_classes_it_is_one_machine_against_the_rest_each(problem):
    X, y = problem
    train, test = X[:60], X[60:]
    svc = TraceKernelSVC(n_jobs=2).fit(train, y[:60])
    scores = np.stack(
        [machine(train, y[:60] == c, test) for c in ("ant", "bee", "cow")], axis=1
    )
    np.testing.assert_allclose(svc.decision_function(test), scores)
    np.testing.assert_array_equal(
        svc.predict(test), svc.classes_[scores.argmax(axis=1)]
    )


def test_an_indicator_matrix_gives_each_image_any_number_of_labels(rng, problem):
    X, _ = problem
    Y = (rng.random((90, 4)) < 0.4).astype(int)
    Y[:60, 2], Y[:60, 3] = 0, 1  # never there, always there: no machine, but an answer
    svc = TraceKernelSVC(C=10).fit(X[:60], Y[:60])
    scores = svc.decision_function(X[60:])
    for label in range(2):
        expected = machine(X[:60], Y[:60, label], X[60:], C=10)
        np.testing.assert_allclose(scores[:, label], expected)
    np.testing.assert_array_equal(svc.predict(X[60:]), scores > 0)
    assert svc.predict(X)[:, 2:].tolist() == [[0, 1]] * 90
    assert svc.classes_.tolist() == [0, 1, 2, 3]


def test_balanced_machines_are_those_of_scikit_learn(problem):
    X, y = problem
    svc = TraceKernelSVC(class_weight="balanced").fit(X, y)
    expected = machine(X, y == "bee", X, class_weight="balanced")
    np.testing.assert_allclose(svc.decision_function(X)[:, 1], expected)


def test_probabilities_are_there_if_asked_for_and_rise_with_the_score(rng, problem):
    X, y = problem
    assert not hasattr(TraceKernelSVC(), "predict_proba")
    three = TraceKernelSVC(calibrated=True).fit(X, y).predict_proba(X)
    np.testing.assert_allclose(three.sum(axis=1), 1)
    assert (three > 0).all()
    two = TraceKernelSVC(calibrated=True).fit(X, y == "ant")
    order = np.argsort(two.decision_function(X))
    probabilities = two.predict_proba(X)
    np.testing.assert_allclose(probabilities.sum(axis=1), 1)
    assert (np.diff(probabilities[order, 1]) >= 0).all()
    Y = (rng.random((90, 2)) < 0.4).astype(int)
    labels = TraceKernelSVC(calibrated=True).fit(X, Y)
    np.testing.assert_array_equal(labels.predict_proba(X), labels.svm_.probabilities(X))


def test_probabilities_far_from_all_training_images_are_numbers(rng):
    y = np.repeat([0, 1, 2], 20)
    X = rng.normal(size=(60, 8)) + np.repeat([[2], [-2], [0]], 20, axis=0)
    far = 1e5 * rng.normal(size=(500, 8))
    probabilities = TraceKernelSVC(calibrated=True).fit(X, y).predict_proba(far)
    np.testing.assert_allclose(probabilities.sum(axis=1), 1)


def test_a_weight_may_be_a_number_of_numpy_as_a_grid_search_gives_it(problem):
    X, y = problem
    plain = TraceKernelSVC(class_weight=2.0).fit(X, y).decision_function(X)
    for weight in np.array([2]), np.array([2.0], dtype=np.float32):
        weighted = TraceKernelSVC(class_weight=weight[0]).fit(X, y)
        np.testing.assert_array_equal(weighted.decision_function(X), plain)


def test_sums_and_products_of_kernels_can_be_classified(problem):
    X, y = problem
    for combine in (KernelSum, KernelProduct):
        both = combine((X, X.x))
        got = cross_val_score(
            TraceKernelSVC(), both, y == "ant", cv=3, scoring="roc_auc"
        )
        folds = StratifiedKFold(3).split(y, y == "ant")
        K = gram(both)
        by_hand = []
        for train, test in folds:
            svc = SVC(kernel="precomputed").fit(
                K[np.ix_(train, train)], y[train] == "ant"
            )
            scores = svc.decision_function(K[np.ix_(test, train)])
            wins = scores[y[test] == "ant"][:, None] > scores[y[test] != "ant"]
            by_hand.append(wins.mean())
        np.testing.assert_allclose(got, by_hand)


def test_gradients_are_split_as_arrays_are(problem):
    X, y = problem
    parts = train_test_split(X, X.x, X.delta, y, test_size=0.25, random_state=0)
    for gradients, x, delta in (parts[0:5:2], parts[1:6:2]):
        np.testing.assert_array_equal(gradients.x, x)
        np.testing.assert_array_equal(gradients.delta, delta)


def test_a_grid_search_over_a_pipeline_finds_what_a_loop_finds(problem):
    X, y = problem
    steps = [("power", Power()), ("whiten", Whiten(0.5)), ("svc", TraceKernelSVC())]
    grid = {
        "power__exponent": [0.5, 1.0],
        "whiten": ["passthrough", Whiten(0.5)],
        "svc__C": [1, 9],
    }
    search = GridSearchCV(Pipeline(steps), grid, cv=3).fit(X, y)
    assert len(search.cv_results_["params"]) == 8
    for settings, mean in zip(
        search.cv_results_["params"], search.cv_results_["mean_test_score"], strict=True
    ):
        right = []
        for train, test in StratifiedKFold(3).split(y, y):
            power = Power(settings["power__exponent"]).fit(X)
            a, b = power.transform(X[train]), power.transform(X[test])
            if settings["whiten"] != "passthrough":
                whiten = Whiten(0.5).fit(a)
                a, b = whiten.transform(a), whiten.transform(b)
            scores = [
                machine(a, y[train] == c, b, C=settings["svc__C"]) for c in np.unique(y)
            ]
            right.append(np.mean(np.unique(y)[np.argmax(scores, axis=0)] == y[test]))
        np.testing.assert_allclose(mean, np.mean(right))
    assert search.predict(X).shape == y.shape


def test_projected_gradients_go_into_any_classifier(problem):
    X, y = problem
    pipeline = Pipeline([("project", Project(35)), ("svc", SVC(kernel="linear"))])
    pipeline.fit(X, y == "ant")  # 7 x 5 numbers: all of the gradient, only turned
    expected = machine(X, y == "ant", X)
    np.testing.assert_allclose(pipeline.decision_function(X), expected, atol=2e-3)


def test_targets_that_cannot_be_learnt_are_refused(problem):
    X, y = problem
    for target, message in (
        (np.full(90, "ant"), "at least two classes, got one class"),
        (None, "requires y"),
        (np.where(np.eye(90, 2), 1, -1), r"0 and 1, got \[-1, 1\]; pass"),
    ):
        with pytest.raises(FeatureError, match=message):
            TraceKernelSVC().fit(X, target)
    with pytest.raises(ValueError, match="Unknown label type"):
        TraceKernelSVC().fit(X, np.linspace(0, 1, 90))
    with pytest.raises(ValueError, match="inconsistent numbers of samples"):
        TraceKernelSVC().fit(X, y[:-1])
    for options, message in (
        ({"C": -1}, "C must be"),
        ({"C": None}, "C must be a positive number, got None"),
        (
            {"class_weight": {"ant": 2}},
            "class_weight must be None, 'balanced' or a positive",
        ),
    ):
        with pytest.raises(OptionError, match=message):
            TraceKernelSVC(**options).fit(X, y)


def test_features_of_another_form_are_refused(problem, random_rank_one):
    X, y = problem
    svc = TraceKernelSVC().fit(X, y)
    for other in (X.x, random_rank_one(3, D=6), KernelSum((X, X.x))):
        with pytest.raises(FeatureError, match=r"fitted on RankOne \(n, 7, 5\), got"):
            svc.predict(other)

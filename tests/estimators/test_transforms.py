import pickle

import numpy as np
import pytest
from sklearn.base import clone
from sklearn.pipeline import make_pipeline
from sklearn.utils.estimator_checks import parametrize_with_checks

from deepfishing.core.kernels import KernelSum, trace_kernel
from deepfishing.core.projections import KINDS, fit_projection
from deepfishing.core.rank_one import RankOne
from deepfishing.core.recipes import parse_recipe
from deepfishing.errors import FeatureError, OptionError
from deepfishing.estimators import Power, Project, Whiten

LAYERS = {8: "fc"}


def by_recipe(text, train, test):
    fitted = parse_recipe(text, LAYERS).fit({"x7": train.x, "delta8": train.delta})
    return fitted({"x7": test.x, "delta8": test.delta})


def assert_same(got, expected, rtol=1e-12):
    np.testing.assert_allclose(got.x, expected.x, rtol=rtol)
    np.testing.assert_allclose(got.delta, expected.delta, rtol=rtol)


@parametrize_with_checks([Power(), Whiten(), Project(4), Project(4, "tensor-sketch")])
def test_on_arrays_they_pass_the_checks_of_scikit_learn(estimator, check):
    check(estimator)


@pytest.mark.parametrize("positions", [None, 3])
def test_power_is_the_signed_power_of_every_number_of_both_factors(
    random_rank_one, positions
):
    gradients = random_rank_one(6, P=positions)
    got = Power(0.3).fit_transform(gradients).dense()
    factors = [np.sign(f) * np.abs(f) ** 0.3 for f in (gradients.x, gradients.delta)]
    dense = RankOne(*factors).dense()
    norm = np.linalg.norm(dense.reshape(6, -1), axis=1)[:, None, None]
    np.testing.assert_allclose(got, dense / norm, rtol=1e-10)


@pytest.mark.parametrize("shrinkage", [None, 0.2])
def test_whiten_turns_the_trace_kernel_into_the_fisher_kernel(
    random_rank_one, shrinkage
):
    train, test = (random_rank_one(n).normalize() for n in (40, 5))
    step = Whiten(shrinkage).fit(train)
    assert_same(
        step.transform(test),
        by_recipe(
            "whiten(dW8)" if shrinkage is None else "whiten(dW8,0.2)", train, test
        ),
    )
    if shrinkage is None:
        return
    # K = (x' A^-1 x)(delta' G^-1 delta), normalised
    inverses = []
    for f in (train.x, train.delta):
        moment = f.T @ f / len(f)
        level = np.trace(moment) / len(moment)
        inverses.append(np.linalg.inv(0.8 * moment + 0.2 * level * np.eye(len(moment))))
    K = (test.x @ inverses[0] @ test.x.T) * (test.delta @ inverses[1] @ test.delta.T)
    norm = np.sqrt(np.diag(K))
    white = step.transform(test)
    np.testing.assert_allclose(
        trace_kernel(white, white), K / np.outer(norm, norm), rtol=1e-8
    )


def test_a_pipeline_of_steps_is_the_recipe_of_their_names(random_rank_one):
    train, test = random_rank_one(40), random_rank_one(5)
    steps = make_pipeline(Power(0.5), Whiten(0.1)).fit(train)
    assert_same(
        steps.transform(test), by_recipe("whiten(pow(dW8,0.5),0.1)", train, test), 1e-9
    )


@pytest.mark.parametrize("kind", KINDS)
def test_project_gives_the_vectors_of_the_projection_of_that_kind(
    random_rank_one, kind
):
    train, test = random_rank_one(20), random_rank_one(6)
    step = Project(16, kind, random_state=3).fit(train)
    expected = fit_projection(kind, train, 16, seed=3)(test)
    np.testing.assert_array_equal(step.transform(test), expected)
    assert len(step.get_feature_names_out()) == expected.shape[1]


def test_the_random_state_decides_the_projection(random_rank_one):
    gradients = random_rank_one(6)

    def vectors(random_state):
        return Project(16, random_state=random_state).fit_transform(gradients)

    np.testing.assert_array_equal(vectors(1), vectors(1))
    generators = [np.random.RandomState(1) for _ in range(2)]
    np.testing.assert_array_equal(vectors(generators[0]), vectors(generators[1]))
    assert not np.array_equal(vectors(1), vectors(2))
    assert not np.array_equal(vectors(None), vectors(None))


@pytest.mark.parametrize("step", [Power(), Whiten(), Project(8)])
def test_a_fitted_step_survives_pickling_and_a_clone_is_not_fitted(
    random_rank_one, step
):
    train, test = random_rank_one(20), random_rank_one(3)
    expected = clone(step).fit(train).transform(test)
    got = pickle.loads(pickle.dumps(clone(step).fit(train))).transform(test)
    if isinstance(step, Project):
        np.testing.assert_array_equal(got, expected)
    else:
        assert_same(got, expected)
    assert not hasattr(clone(step), "n_features_in_")


@pytest.mark.parametrize("step", [Power(), Whiten(), Project(8)])
def test_features_of_another_form_are_refused(random_rank_one, step):
    step.fit(random_rank_one(10))
    with pytest.raises(
        FeatureError, match=r"fitted on RankOne \(n, 7, 5\), got RankOne"
    ):
        step.transform(random_rank_one(3, d=8))
    with pytest.raises(FeatureError, match=r"fitted on RankOne .* got an array"):
        step.transform(np.ones((3, 35)))
    with pytest.raises(FeatureError, match="takes one feature, got KernelSum"):
        step.fit(KernelSum((random_rank_one(4), random_rank_one(4))))
    with pytest.raises(FeatureError, match="at least one image"):
        step.fit(random_rank_one(0))
    broken = random_rank_one(4)
    broken.delta[1, 1] = np.inf
    with pytest.raises(FeatureError, match="finite"):
        step.fit(broken)


def test_parameters_out_of_their_range_are_refused_in_fit(random_rank_one):
    gradients = random_rank_one(4)
    for exponent in (0, -1, 5, float("nan"), "half"):
        with pytest.raises(FeatureError, match="exponent above 0 and up to 4"):
            Power(exponent).fit(gradients)
    for shrinkage in (-0.1, 1.5):
        with pytest.raises(FeatureError, match="shrinkage above 0 and up to 1"):
            Whiten(shrinkage).fit(gradients)
    with pytest.raises(FeatureError, match="at least 2 images"):
        Whiten().fit(gradients[:1])
    with pytest.raises(OptionError, match="two-sided"):
        Project(8, kind="sideways").fit(gradients)

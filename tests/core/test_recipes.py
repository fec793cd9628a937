from dataclasses import dataclass

import numpy as np
import pytest
from sklearn.covariance import ledoit_wolf_shrinkage

from deepfishing.core.kernels import Combination, KernelSum, gram
from deepfishing.core.rank_one import RankOne
from deepfishing.core.recipes import parse_recipe, parse_recipes, pieces
from deepfishing.core.recipes.language import candidates
from deepfishing.core.recipes.recipe import (
    FUNCTIONS,
    STEPS,
    Step,
    second_moment_root,
    whiten,
)
from deepfishing.errors import FeatureError
from deepfishing.learn.vectors import Vectors

LAYERS = {6: "fc6", 7: "fc7", 8: "fc8"}


@pytest.fixture
def arrays(rng):
    widths = {"x5": 9, "x6": 8, "x7": 7, "delta6": 8, "delta7": 7}
    return {name: rng.normal(size=(12, d)) * 3 for name, d in widths.items()}


def kernel(text, arrays):
    return gram(parse_recipe(text, LAYERS).fit(arrays)(arrays))


def unit(rows):
    return rows / np.linalg.norm(rows, axis=1, keepdims=True)


def dots(rows):
    return unit(rows) @ unit(rows).T


def root(rows):
    return np.sign(rows) * np.sqrt(np.abs(rows))


def test_a_feature_alone_is_itself(arrays):
    np.testing.assert_allclose(kernel("x7", arrays), dots(arrays["x7"]))
    expected = dots(arrays["x6"]) * dots(arrays["delta7"])
    np.testing.assert_allclose(kernel("dW7", arrays), expected)


def test_pow_is_the_signed_power_of_both_factors(arrays):
    expected = dots(root(arrays["x6"])) * dots(root(arrays["delta7"]))
    np.testing.assert_allclose(kernel("pow(dW7,0.5)", arrays), expected, rtol=1e-10)
    np.testing.assert_allclose(kernel("pow(x5,0.5)", arrays), dots(root(arrays["x5"])))
    np.testing.assert_allclose(kernel("pow(x5;x6,1)", arrays), kernel("x5;x6", arrays))


def test_sums_are_means_of_kernels_and_products_are_products(arrays):
    a, b, c = kernel("dW7", arrays), kernel("x7", arrays), kernel("x5", arrays)
    np.testing.assert_allclose(kernel("dW7+x7+x5", arrays), (a + b + c) / 3)
    np.testing.assert_allclose(kernel("dW7*x7+x5", arrays), (a * b + c) / 2)
    np.testing.assert_allclose(kernel("dW7*(x7+x5)", arrays), a * (b + c) / 2)
    np.testing.assert_allclose(kernel("x6;x7", arrays), kernel("x6+x7", arrays))


def test_weights_count_in_a_mean_and_a_number_alone_is_a_constant_kernel(arrays):
    a, b = kernel("dW7", arrays), kernel("x7", arrays)
    np.testing.assert_allclose(kernel("3*dW7+x7", arrays), (3 * a + b) / 4)
    np.testing.assert_allclose(kernel("(2*x7+1)*dW7", arrays), (2 * b + 1) / 3 * a)
    np.testing.assert_allclose(kernel("dW7*x7+0.5", arrays), (a * b + 0.5) / 1.5)
    np.testing.assert_allclose(kernel("2*x7", arrays), b)


def test_low_is_the_output_below_the_lowest_layer(arrays):
    assert parse_recipe("low", LAYERS).name == "x5"
    assert parse_recipe("low*dW8", {8: "fc"}).name == "x7*dW8"


def test_best_takes_what_layers_there_are():
    best = {
        k: parse_recipe("best", layers) for k, layers in ((6, LAYERS), (8, {8: "fc"}))
    }
    assert best[6].name == "x5*(whiten(dW7,0.5)+whiten(dW8,0.5)+pow(dW8,0.5)+x6+x7)"
    assert best[6].columns == ("x5", "x6", "delta7", "x7", "delta8")
    assert best[8].name == "(2*x7+1)*(whiten(dW8,0.5)+pow(dW8,0.5)+x7)"
    with pytest.raises(FeatureError, match="classifier"):
        parse_recipe("best", {})


@pytest.mark.parametrize("shrinkage", [0.3, None])
def test_whiten_is_the_kronecker_factored_fisher_kernel(arrays, shrinkage):
    text = "whiten(dW7)" if shrinkage is None else f"whiten(dW7,{shrinkage})"
    x, delta = unit(arrays["x6"]), unit(arrays["delta7"])
    K = 1.0
    for rows in (x, delta):
        s = (
            ledoit_wolf_shrinkage(rows, assume_centered=True)
            if shrinkage is None
            else shrinkage
        )
        A = rows.T @ rows / len(rows)
        A = (1 - s) * A + s * np.trace(A) / len(A) * np.eye(len(A))
        K = K * (rows @ np.linalg.inv(A) @ rows.T)
    expected = K / np.sqrt(np.outer(np.diag(K), np.diag(K)))
    np.testing.assert_allclose(kernel(text, arrays), expected, rtol=1e-8)


def test_the_whitened_gradient_is_the_fisher_kernel_of_the_dense_one(arrays):
    # vec(g)^T (A (x) G)^-1 vec(g') with the full d D x d D information matrix
    g = RankOne(unit(arrays["x6"]), unit(arrays["delta7"]))

    def moment(rows):
        A = rows.T @ rows / len(rows)
        return 0.5 * A + 0.5 * np.trace(A) / len(A) * np.eye(len(A))

    F = np.kron(moment(g.x), moment(g.delta))
    vec = g.dense().reshape(12, -1)
    K = vec @ np.linalg.solve(F, vec.T)
    expected = K / np.sqrt(np.outer(np.diag(K), np.diag(K)))
    np.testing.assert_allclose(kernel("whiten(dW7,0.5)", arrays), expected, rtol=1e-8)


def test_statistics_come_from_the_training_images_only(arrays, rng):
    fitted = parse_recipe("whiten(x7,0.1)", LAYERS).fit(arrays)
    other = {name: rng.normal(size=(5, v.shape[1])) for name, v in arrays.items()}
    alone = np.concatenate(
        [fitted({n: v[i : i + 1] for n, v in other.items()}) for i in range(5)]
    )
    np.testing.assert_allclose(fitted(other), alone)


def test_a_combination_can_be_sliced_and_compared_with_others(arrays, rng):
    fitted = parse_recipe("dW7*x7+pow(x5,0.5)", LAYERS).fit(arrays)
    whole = fitted(arrays)
    np.testing.assert_allclose(gram(whole[3:7], whole), gram(whole)[3:7])
    with pytest.raises(FeatureError, match="one kind and width"):
        gram(whole, arrays["x5"])


def test_names_have_one_spelling():
    for text, name in [
        (" pow( dW7 , .50 )+x7 ", "pow(dW7,0.5)+x7"),
        ("((x7))", "x7"),
        ("(2.0 * low + 1.0)*x7", "(2*x5+1)*x7"),
        ("dW7*(x7 + x5)", "dW7*(x7+x5)"),
        ("whiten(pow(dW:fc7,0.5),0.10)", "whiten(pow(dW7,0.5),0.1)"),
    ]:
        recipe = parse_recipe(text, LAYERS)
        assert recipe.name == name
        assert parse_recipe(name, LAYERS).name == name


def test_lists_are_cut_outside_parentheses_and_all_is_expanded():
    names = [r.name for r in parse_recipes("pow(dW7,0.5)+x7, whiten(x7), all", LAYERS)]
    assert names[:2] == ["pow(dW7,0.5)+x7", "whiten(x7)"]
    assert len(names) == 13


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("pow(dW7)", "lacks a comma and an exponent between 'pow(dW7' and ')'"),
        ("pow(dW7,x7)", "an exponent"),
        ("pow(dW7,0)", "an exponent above 0"),
        ("pow(dW7,9)", "up to 4"),
        ("pow(dW7,nan)", "an exponent"),
        ("whiten(dW7,2)", "a shrinkage"),
        ("dW7+", "lacks a feature such as x7 or dW8 at its end"),
        ("+dW7", "lacks a feature such as x7 or dW8 before '+'"),
        ("0*x7+x6", "a weight above 0"),
        ("2+1", "must name a feature, got only a number"),
        ("x7*2", "feature must be"),
        ("dW7 x7", "lacks + or * between 'dW7' and 'x7'"),
        ("(dW7", "lacks a closing parenthesis at its end"),
        ("pow(dW7+x7,0.5)", "pow must take one feature, got 'dW7+x7'"),
        ("(dW7))", "has one ) too many behind '(dW7)'"),
        ("x7,dW7", "one recipe is needed here, got the list 'x7,dW7'; write x7+dW7"),
        ("all", "one recipe is needed here, got 'all', a list"),
        ("pow(dW8@64x64,0.5)", "only a projection is known"),
        ("pow(whiten(dW:fc7@4x4),2)", "write pow(whiten(dW7),2)"),
        ("low*dlogp8", "feature must be one of"),
        ("power(dW7,0.5)", "feature must be one of"),
        ("dw7+x7", "did you mean dW7"),
        ("(" * 50 + "x7" + ")" * 50, "nest deeper"),
    ],
)
def test_what_cannot_be_read_is_told_in_one_line(text, words):
    with pytest.raises(FeatureError) as error:
        parse_recipe(text, LAYERS)
    assert words in str(error.value)
    assert "\n" not in str(error.value)


def test_whitened_rows_have_no_correlation_and_the_same_spread(rng):
    rows = rng.normal(size=(5000, 2)) * [10.0, 0.1]
    white = whiten(second_moment_root(rows, shrinkage=1e-9), rows)
    np.testing.assert_allclose(white.T @ white / len(rows), np.eye(2), atol=1e-4)


def test_a_name_falls_into_features_and_what_joins_them():
    found = [p if isinstance(p, str) else p.symbols for p in pieces("pow(x7,0.5)")]
    assert found == ["pow", "(", (("x", "7", ""),), ",", "0.5", ")"]


def test_candidates_of_a_network_with_one_layer_begin_with_the_simplest():
    found = candidates({8: "fc"})
    assert found[:4] == ("x7", "pow(x7,0.5)", "rbf(x7,2)", "rbf(pow(x7,0.5),2)")
    assert found.index("rbf(pow(x7,0.5),2)+rbf(x7,2)") < found.index("dW8")


def test_whitening_without_spread_stays_finite():
    rows = np.zeros((4, 3))
    assert np.isfinite(whiten(second_moment_root(rows, 0.1), rows)).all()


def test_whitening_of_the_same_row_again_and_again_stays_finite():
    for seed in range(30):
        rows = np.repeat(np.random.default_rng(seed).normal(size=(1, 4)), 5, axis=0)
        assert np.isfinite(whiten(second_moment_root(rows), rows)).all()


@pytest.mark.parametrize(
    ("text", "gradient"),
    [
        ("dW8@64x64", True),
        ("whiten(dW8@64x64)+x7", True),
        ("pow(x7,0.5)+whiten(dW7)", True),
        ("best", True),
        ("(2*low+1)*pow(x7,0.5)", False),
        ("x:dW.head", False),
    ],
)
def test_a_recipe_is_a_gradient_if_one_of_its_features_is(text, gradient):
    assert parse_recipe(text, LAYERS).is_gradient is gradient


@pytest.mark.parametrize(
    "layers", [LAYERS, {7: "a", 8: "b"}, {8: "b"}, {5: "", **LAYERS}]
)
def test_best_is_called_best_wherever_its_formula_comes_from(layers):
    best = parse_recipe("best", layers)
    assert best.title == "best" != best.name
    assert parse_recipe(best.name).title == "best"  # as in a row of an older version
    assert parse_recipe(f"{best.name}+x7").title == f"{best.name}+x7"
    assert parse_recipe("dW8").title == "dW8"


def test_only_whitening_learns():
    learns = {
        text: parse_recipe(text, LAYERS).learns for text in ("pow(dW7,2)*x7+1", "best")
    }
    assert learns == {"pow(dW7,2)*x7+1": False, "best": True}


def test_a_new_kernel_is_a_class_and_a_record(monkeypatch, arrays):
    """It can be written in a recipe, of any kernel, compares images and can be sliced."""

    @dataclass(frozen=True, eq=False, repr=False)
    class Exponential(Combination):
        sharpness: float

        def combine(self, grams):
            (K,) = grams
            return np.exp(self.sharpness * (K - 1))

    step = Step(
        lambda recipe, parts, _: Exponential(parts, recipe.number),
        number="a sharpness",
        most=100.0,
    )
    monkeypatch.setitem(STEPS, "exp", step)
    monkeypatch.setitem(FUNCTIONS, "exp", step)
    K = kernel("dW7+x7", arrays)
    np.testing.assert_allclose(kernel("exp(dW7+x7,4)", arrays), np.exp(4 * (K - 1)))
    expected = np.exp(2 * (K - 1)) * kernel("x5", arrays)
    np.testing.assert_allclose(kernel("exp(dW7+x7,2)*x5", arrays), expected)
    made = parse_recipe("exp(x7,4)", LAYERS).fit(arrays)(arrays)
    np.testing.assert_allclose(gram(made[3:7], made), gram(made)[3:7])
    with pytest.raises(
        FeatureError, match="needs a sharpness above 0 and up to 100, got 1000"
    ):
        parse_recipe("exp(x7,1000)", LAYERS)
    with pytest.raises(FeatureError, match="pow must take one feature"):
        parse_recipe("pow(exp(x7,4),0.5)", LAYERS)
    with pytest.raises(FeatureError, match="has no vectors"):
        Vectors.fit(made, 4)


def test_vectors_of_a_sum_have_its_weighted_kernel():
    g = RankOne(x=np.eye(3), delta=np.ones((3, 1)))
    both = KernelSum((g, np.ones((3, 1))), weights=(3.0, 1.0))
    v = Vectors.fit(both, 4)(both)
    np.testing.assert_allclose(v @ v.T, 0.75 * np.eye(3) + 0.25, atol=1e-6)

import numpy as np
import pytest
from sklearn.kernel_ridge import KernelRidge

from deepfishing.auto import FEW, choose_recipe, held_out
from deepfishing.errors import FeatureError
from deepfishing.kernels import gram
from deepfishing.recipes import candidates, factors_of, parse_recipe

LAYERS = {7: "fc7", 8: "fc8"}


def collection(rng, informative, n=90, classes=3):
    """Factors of which only the named ones know the class of an image."""
    shown = np.arange(n) % classes
    labels = np.where(shown[:, None] == np.arange(classes), 1, -1)
    arrays = {}
    for name, width in (("x6", 12), ("x7", 11), ("delta7", 10), ("delta8", 9)):
        noise = rng.normal(size=(n, width))
        noise = np.abs(noise) if name.startswith("x") else noise  # as behind a rectifier
        signal = 8.0 * np.eye(classes, width)[shown] if name in informative else 0.0
        arrays[name] = (noise + signal).astype(np.float32)
    return arrays, labels


def test_held_out_predictions_are_those_of_machines_trained_without_the_fold(rng):
    x = rng.normal(size=(40, 5))
    K, targets, folds = x @ x.T, rng.normal(size=(40, 3)), np.arange(40) % 4
    expected = np.empty((40, 3))
    for fold in range(4):
        rest, held = folds != fold, folds == fold
        ridge = KernelRidge(alpha=0.3, kernel="precomputed")
        ridge.fit(K[np.ix_(rest, rest)], targets[rest])
        expected[held] = ridge.predict(K[np.ix_(held, rest)])
    np.testing.assert_allclose(held_out(K, targets, folds, 0.3), expected, rtol=1e-9)


def test_forward_features_are_taken_where_gradients_know_nothing_more(rng):
    arrays, labels = collection(rng, {"x7"})
    choice = choose_recipe(arrays, labels, LAYERS)
    assert choice.recipe == "x7"
    assert len(choice.tried) == len(candidates(LAYERS))


def test_a_gradient_is_taken_where_only_its_delta_knows_the_class(rng):
    arrays, labels = collection(rng, {"delta8"})
    choice = choose_recipe(arrays, labels, LAYERS)
    assert parse_recipe(choice.recipe, LAYERS).is_gradient
    by_name = {one.recipe: one.map for one in choice.tried}
    assert by_name[choice.recipe] > by_name["x7"] + 10


def test_nearly_the_same_photographs_do_not_vouch_for_each_other(rng):
    """x6 knows each photograph but no class; every photograph is there three times."""
    arrays, labels = collection(rng, {"delta8"}, n=60)
    thrice = {name: np.repeat(values, 3, axis=0) for name, values in arrays.items()}
    assert choose_recipe(thrice, np.repeat(labels, 3, axis=0), LAYERS).tried[0].map < 70


@pytest.mark.parametrize(("each", "recipe"), [(1, "2*dW8+pow(dW8,0.5)"), (3, None)])
def test_a_rule_decides_for_few_examples(rng, each, recipe):
    arrays, labels = collection(rng, {"x7"}, n=3 * each)
    choice = choose_recipe(arrays, labels, LAYERS)
    assert choice.tried == ()
    assert choice.recipe == (recipe or "pow(dW8,0.5)+dW8+dW7")
    assert each < FEW
    gram(parse_recipe(choice.recipe, LAYERS).fit(arrays)(arrays))


def test_difficult_examples_and_a_class_without_positives_do_no_harm(rng):
    arrays, labels = collection(rng, {"x7"})
    labels = np.concatenate([labels, np.full((len(labels), 1), -1)], axis=1)
    labels[:5, 1] = 0
    assert choose_recipe(arrays, labels, LAYERS).recipe == "x7"


def test_two_choices_of_the_same_images_are_the_same(rng):
    arrays, labels = collection(rng, {"delta7", "x7"})
    assert choose_recipe(arrays, labels, LAYERS) == choose_recipe(arrays, labels, LAYERS)


def test_auto_needs_a_classifier():
    with pytest.raises(FeatureError, match="'auto' needs a network with a classifier"):
        factors_of("auto", {})

"""The AP of a recipe and a cost that were chosen on the same images."""

import numpy as np
import pytest
from sklearn.svm import SVC

from deepfishing.core.kernels import gram
from deepfishing.core.metrics import average_precision
from deepfishing.core.recipes import parse_recipe
from deepfishing.core.statistics import proportion_interval
from deepfishing.extraction.settings import Settings
from deepfishing.images.preprocess import Preprocess
from deepfishing.learn.auto import choose
from deepfishing.learn.folds import FOLDS, make_folds
from deepfishing.learn.svm import train_svm
from deepfishing.learn.training import train_model
from deepfishing.networks.reference import NetworkRef

LAYERS = {7: "fc7", 8: "fc8"}
SETTINGS = Settings(
    network=NetworkRef(
        name="toy",
        weights_sha256="0" * 64,
        layers=LAYERS,
        preprocess=Preprocess(8, 8, mean=(0.0,) * 3, std=(1.0,) * 3),
    )
)


def noise(seed, n):
    """Factors that say nothing of the labels: as many images with each of two classes."""
    rng = np.random.default_rng(seed)
    widths = {"x6": 12, "x7": 14, "delta7": 10, "delta8": 9}
    arrays = {
        name: np.abs(rng.normal(size=(n, width))).astype(np.float32)
        for name, width in widths.items()
    }
    labels = np.where(rng.permutation(n)[:, None] % 2 == np.arange(2), 1, -1)
    return arrays, labels


def train(arrays, labels, recipe, C, groups):
    return train_model(
        recipe, arrays, labels, ["a", "b"], settings=SETTINGS, C=C, groups=groups
    )


@pytest.mark.parametrize("n", [30, 66])
def test_the_ap_is_that_of_choosing_again_without_each_fold(n):
    arrays, labels = noise(0, n)
    groups = np.arange(n)
    model = train(arrays, labels, "auto", "auto", groups)

    fold_of = make_folds(labels, groups).number
    scores = np.zeros(labels.shape)
    for fold in range(FOLDS):
        rest, held = np.flatnonzero(fold_of != fold), np.flatnonzero(fold_of == fold)
        outside = {name: values[rest] for name, values in arrays.items()}
        choice = choose(outside, labels[rest], LAYERS, groups=groups[rest])
        fitted = parse_recipe(choice.recipe, LAYERS).fit(outside)
        inside = {name: values[held] for name, values in arrays.items()}
        for column in range(2):
            svm = SVC(C=choice.cost, kernel="precomputed")
            svm.fit(gram(fitted(outside)), labels[rest, column])
            K = gram(fitted(inside), fitted(outside))
            scores[held, column] = svm.decision_function(K)
    expected = [average_precision(labels[:, c], scores[:, c], "area") for c in range(2)]
    np.testing.assert_allclose(model.svm.ap, expected, atol=1e-6)
    right = scores.argmax(axis=1) == labels.argmax(axis=1)
    found = model.training["accuracy"]
    assert found["accuracy"] == pytest.approx(100 * right.mean(), abs=0.01)
    low, high = proportion_interval(int(right.sum()), n)
    assert found["interval"] == pytest.approx([low, high], abs=0.01)
    assert found["commonest"] == 50


def test_no_accuracy_is_stated_where_images_have_several_classes_or_too_few_groups():
    arrays, labels = noise(1, 30)
    both = labels.copy()
    both[0] = 1
    assert train(arrays, both, "x7", 1.0, np.arange(30)).training["accuracy"] == {}
    pairs = np.arange(30) // 15  # two groups, which three folds cannot hold out
    assert train(arrays, labels, "x7", 1.0, pairs).training["accuracy"] == {}


def test_on_noise_the_figure_of_the_best_cost_is_not_above_chance():
    """The cost that looked best of eleven is above chance; choosing it again is not."""
    chance, stated, best = [], [], []
    for seed in range(12):
        arrays, labels = noise(seed, 36)
        groups = np.arange(36)
        model = train(arrays, labels, "x7", "vissl", groups)
        stated.append(np.mean(model.svm.ap))
        fitted = parse_recipe("x7", LAYERS).fit(arrays)(arrays)
        options = {"calibrated": True, "groups": groups}
        best.append(np.mean(train_svm(fitted, labels, "vissl", **options).ap))
        rng = np.random.default_rng(seed)
        for _ in range(30):
            chance.append(average_precision(labels[:, 0], rng.random(36), "area"))
    error = np.std(stated) / np.sqrt(len(stated))
    assert np.mean(stated) < np.mean(chance) + 2 * error
    assert np.mean(best) > np.mean(stated)


def test_a_fixed_recipe_and_cost_have_the_plain_cross_validated_ap():
    arrays, labels = noise(3, 30)
    groups = np.arange(30)
    model = train(arrays, labels, "x7", 1.0, groups)
    fitted = parse_recipe("x7", LAYERS).fit(arrays)(arrays)
    plain = train_svm(fitted, labels, 1.0, calibrated=True, groups=groups)
    np.testing.assert_allclose(model.svm.ap, plain.ap)


def test_the_accuracy_is_of_the_classes_that_can_be_held_out():
    arrays, labels = noise(2, 30)
    rare = -np.ones((30, 1), int)
    rare[:2], labels[:2] = 1, -1
    labels = np.hstack([labels, rare])
    model = train_model(
        "x7", arrays, labels, "abc", settings=SETTINGS, groups=np.arange(30)
    )
    fold_of = make_folds(labels, np.arange(30)).number
    x = parse_recipe("x7", LAYERS).fit(arrays)(arrays)
    K = gram(x)
    right = []
    for row in range(2, 30):
        rest = np.flatnonzero(fold_of != fold_of[row])
        score = []
        for column in range(2):
            svm = SVC(C=1, kernel="precomputed")
            svm.fit(K[np.ix_(rest, rest)], labels[rest, column])
            score.append(svm.decision_function(K[row : row + 1, rest])[0])
        right.append(labels[row, int(np.argmax(score))] == 1)
    found = model.training["accuracy"]
    assert found["classes"] == 2
    assert found["accuracy"] == pytest.approx(100 * np.mean(right), abs=0.01)

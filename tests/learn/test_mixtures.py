import numpy as np
import pytest

from deepfishing.core.kernels import gram
from deepfishing.core.recipes import parse_recipe
from deepfishing.extraction.settings import Settings
from deepfishing.images.preprocess import Preprocess
from deepfishing.learn.mixtures import LABELS, MIXTURES, NO_GAIN, Mixture, likeness
from deepfishing.learn.model import Model
from deepfishing.learn.pool import Pool
from deepfishing.learn.training import train_model
from deepfishing.learn.vectors import Vectors
from deepfishing.networks.reference import NetworkRef

LAYERS = {7: "_conv_head", 8: "_fc"}
WIDTHS = {"x6": 12, "x7": 16, "delta8": 9}
SETTINGS = Settings(
    network=NetworkRef(
        name="toy",
        weights_sha256="0" * 64,
        layers=LAYERS,
        preprocess=Preprocess(8, 8, mean=(0.0,) * 3, std=(1.0,) * 3),
    )
)
EVERY = pytest.mark.parametrize("mixture", MIXTURES, ids=range(len(MIXTURES)))


def collection(rng, n):
    """Factors of two classes, and their labels."""
    shown = np.arange(n) % 2
    arrays = {}
    for name, width in WIDTHS.items():
        noise = rng.normal(size=(n, width))
        arrays[name] = (np.abs(noise) + 2 * np.eye(2, width)[shown]).astype(np.float32)
    return arrays, np.where(shown[:, None] == np.arange(2), 1, -1)


@EVERY
def test_a_model_of_every_candidate_scores_is_saved_and_has_a_compact_form(
    mixture, rng, tmp_path
):
    pool, _ = collection(rng, 120)
    arrays, labels = (
        {name: values[:16] for name, values in pool.items()},
        collection(rng, 16)[1],
    )
    recipe = mixture.recipe(LAYERS)
    model = train_model(
        recipe, arrays, labels, ["a", "b"], settings=SETTINGS, pool=pool, C=3.0
    )
    new, truth = collection(rng, 30)
    scores = model.scores(new)
    model.save(tmp_path / "model")
    np.testing.assert_allclose(
        Model.load(tmp_path / "model").scores(new), scores, atol=1e-5
    )
    assert (scores.argmax(axis=1) == truth.argmax(axis=1)).mean() > 0.8
    compact = model.compact().scores(new)
    assert (compact.argmax(axis=1) == truth.argmax(axis=1)).mean() > 0.8


@EVERY
def test_every_candidate_has_vectors_for_very_many_photos(mixture, rng):
    arrays, _ = collection(rng, 60)
    recipe = parse_recipe(mixture.recipe(LAYERS), LAYERS)
    features = Pool(arrays).fit(recipe, arrays)(arrays)
    vectors = Vectors.fit(features, 400)(features)
    np.testing.assert_allclose(vectors @ vectors.T, gram(features), atol=0.03)


def test_gains_are_interpolated_between_numbers_of_labels_and_by_likeness():
    mixture = Mixture((-1.0, -2.0, -3.0, -4.0, -5.0), (5.0, 4.0, 3.0, 2.0, 1.0))
    assert [mixture.expected(n, 1.0) for n in LABELS] == [5.0, 4.0, 3.0, 2.0, 1.0]
    assert mixture.expected(2, 0.0) == -2.0
    assert mixture.expected(2, 0.5) == 1.0
    assert mixture.expected(100, 1.0) == 1.0


def test_a_network_without_classes_takes_the_middle():
    assert likeness(None) == 0.5
    assert likeness(np.zeros((0, 5))) == 0.5


def test_the_first_candidate_is_what_the_others_are_compared_with():
    assert MIXTURES[0] == Mixture(NO_GAIN, NO_GAIN)
    assert not MIXTURES[0].uses_pool

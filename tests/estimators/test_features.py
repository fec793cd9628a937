import pickle
import subprocess
import sys

import numpy as np
import pytest
import torch
from PIL import Image
from sklearn.base import clone
from sklearn.exceptions import NotFittedError
from sklearn.model_selection import GridSearchCV, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.utils import estimator_checks

from deepfishing.core.rank_one import RankOne
from deepfishing.errors import FeatureError, ImageError, NetworkError, OptionError
from deepfishing.estimators import GradientFeatures, Power, TraceKernelSVC
from deepfishing.extraction.extract import extract
from deepfishing.images.preprocess import Preprocess
from deepfishing.networks.network import Network


@pytest.fixture
def network():
    torch.manual_seed(0)
    module = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(3 * 8 * 8, 5))
    preprocess = Preprocess(8, 8, mean=(127.0,) * 3, std=(128.0,) * 3)
    return Network("flat", module, {8: "1"}, preprocess, "none")


@pytest.fixture
def paths(rng, tmp_path):
    """Twelve pictures, every other one dark."""
    made = []
    for i in range(12):
        made.append(tmp_path / f"{i}.png")
        pixels = rng.integers(0, 256, (8, 8, 3)) // (1 + 3 * (i % 2))
        Image.fromarray(pixels.astype(np.uint8)).save(made[-1])
    return made


def test_features_are_those_of_extract_with_the_same_settings(network, paths):
    expected = extract(network, paths, "dW8,x7", tau=3.0, label=1)
    step = GradientFeatures(network, "dW:1", tau=3.0, label=1, batch_size=5)
    got = step.fit_transform(paths)
    assert isinstance(got, RankOne)
    assert step.feature_ == "dW8"
    np.testing.assert_allclose(got.x, expected["dW8"].x, rtol=1e-5)
    np.testing.assert_allclose(got.delta, expected["dW8"].delta, rtol=1e-4, atol=1e-7)
    forward = step.set_params(feature="x7").fit_transform(paths)
    np.testing.assert_allclose(forward, expected["x7"], rtol=1e-5)


def test_images_may_come_as_paths_pictures_or_arrays(network, paths):
    step = GradientFeatures(network, "x7").fit(paths)
    expected = step.transform(paths)
    pictures = [Image.open(path) for path in paths]
    pixels = np.stack([np.asarray(picture) for picture in pictures])
    words = np.array([str(path) for path in paths])
    for images in (
        tuple(paths),
        words,
        np.array(paths, dtype=object),
        pictures,
        pixels,
    ):
        np.testing.assert_array_equal(step.transform(images), expected)


@pytest.mark.parametrize(
    "check",
    [
        "check_parameters_default_constructible",
        "check_no_attributes_set_in_init",
        "check_do_not_raise_errors_in_init_or_set_params",
        "check_get_params_invariance",
        "check_set_params",
        "check_estimator_cloneable",
        "check_estimator_repr",
        "check_mixin_order",
        "check_valid_tag_types",
    ],
)
def test_it_passes_the_checks_of_scikit_learn_that_do_not_need_an_array(check):
    getattr(estimator_checks, check)("GradientFeatures", GradientFeatures())


def test_the_network_is_loaded_in_fit_and_not_before(paths):
    step = GradientFeatures("no-such-network")
    with pytest.raises(NotFittedError):
        step.transform(paths)
    with pytest.raises(NetworkError, match="no-such-network"):
        step.fit(paths)


def test_clones_share_the_network_and_know_nothing_of_the_fit(network, paths):
    fitted = GradientFeatures(network, "x7", tau=3.0).fit(paths)
    copy = clone(fitted)
    assert copy.network is network
    assert copy.get_params() == fitted.get_params()
    assert not hasattr(copy, "network_")


def test_a_fitted_step_survives_pickling(network, paths):
    step = GradientFeatures(network).fit(paths)
    got = pickle.loads(pickle.dumps(step)).transform(paths)
    np.testing.assert_array_equal(got.delta, step.transform(paths).delta)


def test_a_pipeline_takes_images_through_cross_validation_and_grid_search(
    network, paths
):
    y = ["light", "dark"] * 6
    pipeline = make_pipeline(GradientFeatures(network), Power(), TraceKernelSVC())
    assert cross_val_score(pipeline, paths, y, cv=3).shape == (3,)
    grid = {
        "gradientfeatures__tau": [1.0, 2.0],
        "gradientfeatures__feature": ["x7", "dW8"],
    }
    search = GridSearchCV(pipeline, grid, cv=2, error_score="raise").fit(paths, y)
    assert set(search.predict(paths)) <= {"light", "dark"}
    by_hand = make_pipeline(Power(), TraceKernelSVC())
    features = GradientFeatures(network).fit_transform(paths)
    np.testing.assert_allclose(
        pipeline.fit(paths, y).decision_function(paths),
        by_hand.fit(features, y).decision_function(features),
        rtol=1e-6,
    )


def test_settings_out_of_their_range_are_refused_in_fit(network, paths):
    for settings, error, message in (
        ({"tau": 0}, OptionError, "tau must be"),
        ({"label": "best"}, OptionError, "label must be"),
        ({"batch_size": 0}, OptionError, "batch size must be"),
        ({"feature": "dW9"}, FeatureError, "got 'dW9'"),
        ({"feature": "x7,dW8"}, FeatureError, "makes one feature, got 2"),
    ):
        with pytest.raises(error, match=message):
            GradientFeatures(network).set_params(**settings).fit(paths)


def test_images_that_cannot_be_read_and_a_single_path_are_refused(
    network, paths, tmp_path
):
    step = GradientFeatures(network).fit(paths)
    with pytest.raises(ImageError, match=r"gone\.png"):
        step.transform([*paths, tmp_path / "gone.png"])
    with pytest.raises(ImageError, match="must be a list of images"):
        step.transform(str(paths[0]))
    with pytest.raises(OptionError, match="at least one image"):
        step.transform([])


def test_the_estimators_for_stored_features_do_not_import_torch():
    code = "import sys, deepfishing.estimators; print('torch' in sys.modules)"
    ran = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    assert ran.stdout.strip() == "False"

"""Steps of a pipeline as data frames: `set_output` of scikit-learn."""

import numpy as np
import pytest
from sklearn.pipeline import make_pipeline

from deepfishing.errors import FeatureError
from deepfishing.estimators import GradientFeatures, Power, Project, Whiten


@pytest.fixture
def images(rng):
    return list(rng.integers(0, 255, (6, 20, 24, 3), dtype=np.uint8))


@pytest.mark.parametrize("kind", ["pandas", "polars"])
def test_forward_features_are_frames_with_named_columns_through_all_steps(
    kind, images, toy_network
):
    steps = (GradientFeatures(toy_network, "x7"), Power(0.5), Whiten(0.5), Project(4))
    arrays = [make_pipeline(*steps[:n]).fit_transform(images) for n in range(1, 5)]
    for n, expected in enumerate(arrays, 1):
        pipeline = make_pipeline(*steps[:n]).set_output(transform=kind)
        frame = pipeline.fit_transform(images)
        names = (
            [f"project{i}" for i in range(4)]
            if n == 4
            else [f"x7_{i}" for i in range(8)]
        )
        assert list(frame.columns) == names
        assert type(frame).__module__.startswith(kind)
        np.testing.assert_allclose(frame.to_numpy(), expected, rtol=1e-4, atol=1e-5)


def test_projected_gradients_are_a_frame(images, toy_network):
    pipeline = make_pipeline(GradientFeatures(toy_network, "dW8"), Project(4))
    pipeline[-1].set_output(transform="pandas")
    assert list(pipeline.fit_transform(images).columns) == [
        f"project{i}" for i in range(4)
    ]


def test_a_step_that_is_fitted_again_has_the_columns_of_its_new_feature(
    images, toy_network
):
    step = GradientFeatures(toy_network, "x7").fit(images)
    assert len(step.get_feature_names_out()) == 8
    names = step.set_params(feature="y8").fit(images).get_feature_names_out()
    assert names.tolist() == [f"y8_{i}" for i in range(step.transform(images).shape[1])]


def test_gradients_have_no_columns_and_say_what_has(images, toy_network):
    step = GradientFeatures(toy_network, "dW8").set_output(transform="pandas")
    with pytest.raises(
        FeatureError, match=r"gradients are not one array|is a gradient"
    ):
        step.fit_transform(images)
    with pytest.raises(FeatureError, match="Project behind it"):
        step.get_feature_names_out()

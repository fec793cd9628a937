"""A model has the manners of a classifier: predict, predict_proba, score, on images or a store."""

from pathlib import Path

import numpy as np
import pytest

from deepfishing import Model, Store, extract_to
from deepfishing.core.metrics import evaluate
from deepfishing.errors import ImageError, OptionError, StoreError, WeightsError
from deepfishing.extraction.settings import Settings
from deepfishing.learn.labelled import read_labels
from deepfishing.learn.training import train_model, train_on_store


@pytest.fixture
def store(shapes, toy_network, tmp_path):
    extract_to(
        tmp_path / "store",
        shapes,
        network=toy_network,
        features="x7,dW8",
        precision="float32",
    )
    return Store.open(tmp_path / "store")


@pytest.fixture
def model(store, tmp_path):
    rows = store.usable()
    made, _ = train_on_store(store, rows, read_labels(rows), "dW8")
    made.save(tmp_path / "model")
    return Model.load(tmp_path / "model")


@pytest.fixture
def truth(store):
    return [row.labels[0] for row in store.usable()]


def test_images_paths_folders_and_a_store_have_the_same_answers(
    model, store, shapes, toy_network, truth
):
    paths = [Path(row.path) for row in store.usable()]
    answers = model.predict(store)
    assert answers.tolist() == truth  # dark and light are told apart by anything
    np.testing.assert_array_equal(model.predict(paths, network=toy_network), answers)
    np.testing.assert_array_equal(
        model.predict(str(shapes), network=toy_network), answers
    )
    np.testing.assert_allclose(
        model.predict_proba(paths, network=toy_network),
        model.predict_proba(store),
        atol=1e-5,
    )


def test_the_answer_is_the_class_with_the_highest_score_and_score_counts_it(
    model, store, truth
):
    scores = model.scores({name: store.to_numpy(name) for name in model.columns})
    expected = [model.classes[i] for i in scores.argmax(axis=1)]
    assert model.predict(store).tolist() == expected
    half = ["dark"] * len(truth)
    assert model.score(store, truth) == 1.0
    assert model.score(store, half) == pytest.approx(
        np.mean(np.array(expected) == "dark")
    )
    np.testing.assert_array_equal(
        model.predict_proba(store), model.svm.calibrate(model.decision_function(store))
    )


def test_several_labels_per_image_are_answered_one_by_one_and_scored_by_mean_ap(
    store, truth
):
    labels = np.array([[1, 1 if name == "dark" else -1, -1] for name in truth])
    labels[0] = [-1, 1, 1]
    labels[5, 2] = labels[9, 2] = 1
    arrays = {name: store.to_numpy(name) for name in ("x7", "delta8")}
    settings = Settings.from_dict(store.settings)
    model = train_model("dW8", arrays, labels, ["a", "b", "c"], settings=settings)
    answers = model.predict(store)
    np.testing.assert_array_equal(answers, model.decision_function(store) > 0)
    found = (
        evaluate(labels, model.decision_function(store), model.classes).map["sklearn"]
        / 100
    )
    assert model.score(store, labels) == pytest.approx(found)
    assert model.score(store, (labels > 0).astype(int)) == pytest.approx(found)


def test_an_image_that_cannot_be_read_is_an_error_and_not_a_row_less(
    model, shapes, toy_network, tmp_path
):
    (tmp_path / "broken.jpg").write_bytes(b"no picture")
    images = [shapes / "test" / "dark" / "0.jpg", tmp_path / "broken.jpg"]
    with pytest.raises(ImageError, match=r"broken\.jpg"):
        model.predict(images, network=toy_network)


def test_any_iterable_of_images_is_answered_and_none_is_one_line(
    model, shapes, toy_network
):
    paths = sorted(shapes.rglob("*.jpg"))[:3]
    expected = model.predict(paths, network=toy_network).tolist()
    assert (
        model.predict((path for path in paths), network=toy_network).tolist()
        == expected
    )
    pairs = [(path, "a label") for path in paths]
    assert model.predict(pairs, network=toy_network).tolist() == expected
    with pytest.raises(OptionError, match="at least one image, got none"):
        model.predict([], network=toy_network)


def test_labels_of_another_shape_are_one_line(model, store):
    with pytest.raises(OptionError, match=r"y must have the shape \(24,\), got \(3,\)"):
        model.score(store, ["dark"] * 3)
    with pytest.raises(
        OptionError, match=r"y must have the shape \(24,\), got \(24, 2\)"
    ):
        model.score(store, np.ones((24, 2)))


def test_a_store_of_other_settings_is_refused(model, shapes, toy_network, tmp_path):
    extract_to(tmp_path / "tau", shapes, network=toy_network, features="x7,dW8", tau=3)
    with pytest.raises(WeightsError, match="trained with the tau of"):
        model.predict(Store.open(tmp_path / "tau"))
    extract_to(tmp_path / "x7", shapes, network=toy_network, features="x7")
    with pytest.raises(StoreError, match="needs delta8, which"):
        model.predict(Store.open(tmp_path / "x7"))

import numpy as np
import pytest

import deepfishing.evaluation.protocols.curate as module
from deepfishing.core.metrics import evaluate
from deepfishing.core.recipes import parse_recipe
from deepfishing.curate import choose_rows
from deepfishing.errors import DatasetError
from deepfishing.evaluation.experiment import Protocol, prepare
from deepfishing.evaluation.protocols.curate import share_found, swap_labels
from deepfishing.evaluation.protocols.curves import measure_curves
from deepfishing.evaluation.report.charts import panels
from deepfishing.evaluation.report.gains import chart_splits
from deepfishing.learn.svm import train_svm


def test_points_are_those_of_machines_on_the_photos_chosen(
    dataset, network, tmp_path, monkeypatch
):
    monkeypatch.setattr(module, "LABELLED", (6, 12, 99))
    monkeypatch.setattr(module, "CHOSEN", (8, 99))
    points = measure_curves("curate", dataset, network, tmp_path, "x7,pow(dW8,0.5)")
    recipes = [parse_recipe(name, network.layers) for name in ("x7", "pow(dW8,0.5)")]
    prepared = prepare(dataset, network, tmp_path, recipes, Protocol(), lambda *_: None)
    x7, train = (recipe.fit({})(prepared.factors(recipe)[0]) for recipe in recipes)
    test = recipes[1].fit({})(prepared.factors(recipes[1])[1])
    seen = [step.number for step in choose_rows(x7, 12)][:6]
    svm = train_svm(train[seen], dataset.train.labels[seen], class_weight="balanced")
    expected = evaluate(
        dataset.test.labels, svm.decision_function(test), dataset.classes
    ).map
    found = {
        (p["series"], p["x"]): p for p in points if p["x_axis"] == "photos labelled"
    }
    assert found["x7, facility location", 6]["y"] == expected[dataset.official_ap]
    assert len(found["random", 12]["draws"]) == module.DRAWS
    assert {x for _, x in found} == {6, 12}  # there are no 99 photos
    chosen, trained, doubted = sorted(
        panels(points), key=lambda panel: panel.x_axis, reverse=True
    )
    assert trained.names == (
        "x7",
        "pow(x7,0.5)",
        "rbf(x7,2)",
        "x6;x7",
        "auto-forward",
        "auto",
    )
    assert len(chart_splits(trained.charts[0])) == 1
    assert chosen.names[:3] == ("random", "x7, facility location", "x7, k-means++")
    assert doubted.names == ("x7", "pow(dW8,0.5)")
    assert (
        measure_curves("curate", dataset, network, tmp_path, "x7,pow(dW8,0.5)")
        == points
    )


def test_a_tenth_of_each_class_is_swapped(rng):
    several = np.where(rng.random((200, 3)) < 0.3, 1, -1)
    several[:5] = 0
    wrong = swap_labels(several, rng) != several
    positive = (several == 1).sum(axis=0)
    assert wrong.sum(axis=0) == pytest.approx(2 * positive / 10, abs=1)
    assert not wrong[:5].any()
    one = np.where(np.eye(4)[np.arange(80) % 4] == 1, 1, -1)
    swapped = swap_labels(one, rng)
    assert ((swapped == 1).sum(axis=1) == 1).all()
    assert (swapped != one).any(axis=1).sum() == 8


def test_all_wrong_labels_are_found_by_scores_that_know_them(rng):
    truth = np.where(rng.random((100, 3)) < 0.3, 1, -1)
    labels = swap_labels(truth, rng)
    assert share_found(truth, labels, truth.astype(float)) == 100
    assert share_found(truth, labels, labels.astype(float)) < 50


def test_too_few_photos_are_one_clear_error(dataset, network, tmp_path):
    with pytest.raises(
        DatasetError, match="curate needs more than 50 training photos, got 20"
    ):
        measure_curves("curate", dataset, network, tmp_path, "x7")

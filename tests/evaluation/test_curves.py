import dataclasses
import json
import re

import pytest

import deepfishing.evaluation.protocols.approximation as approximation
import deepfishing.evaluation.protocols.low_shot as low_shot_module
import deepfishing.evaluation.protocols.neighbours as neighbours_module
from deepfishing.core.metrics import evaluate
from deepfishing.core.recipes import parse_recipe
from deepfishing.errors import DatasetError, FeatureError, OptionError, StoreError
from deepfishing.evaluation.experiment import Protocol, prepare
from deepfishing.evaluation.protocols.approximation import (
    SECONDS,
    WITH_PROJECTION,
    Gradients,
    kernel_error,
    with_kernel,
)
from deepfishing.evaluation.protocols.curves import measure_curves
from deepfishing.evaluation.protocols.low_shot import label_photos, low_shot
from deepfishing.evaluation.protocols.neighbours import nearest_neighbours
from deepfishing.evaluation.protocols.table import reproduce
from deepfishing.evaluation.record import map_axis

KEYS = {
    *("protocol", "dataset", "network", "feature", "series", "x", "y", "low", "high"),
    *(
        "x_axis",
        "y_axis",
        "n_train",
        "n_test",
        "seconds",
        "command",
        "version",
        "versions",
        "key",
        "note",
    ),
}


@pytest.fixture(autouse=True)
def small(monkeypatch):
    """Sizes that fit twenty images."""
    monkeypatch.setattr(neighbours_module, "NEIGHBOURS", (1, 3, 50))
    monkeypatch.setattr(approximation, "SIZES", (8, 16))
    monkeypatch.setattr(approximation, "IMAGES", (25, 40))
    monkeypatch.setattr(approximation, "KINDS", ("tensor-sketch", "principal"))
    monkeypatch.setattr(
        approximation, "TIMED", (("tensor-sketch", 16), ("principal", 8))
    )


@pytest.fixture
def sides(dataset, network, tmp_path):
    """Features of a name, read from the store of a run."""

    def read(name):
        recipe = parse_recipe(name, network.layers)
        prepared = prepare(
            dataset, network, tmp_path, [recipe], Protocol(), lambda *_: None
        )
        train, test = prepared.factors(recipe)
        fitted = recipe.fit(train)
        return fitted(train), dataset.train.labels, fitted(test)

    return read


def on_disk(folder):
    return [
        json.loads(line) for line in (folder / "curves.jsonl").read_text().splitlines()
    ]


@pytest.mark.parametrize("name", ["x7", "pow(dW8,0.5)+x7"])
def test_low_shot_points_are_those_of_the_function(
    dataset, network, tmp_path, sides, name
):
    points = measure_curves(
        "low-shot", dataset, network, tmp_path, name, command="deepfish r"
    )
    other_form = [p for p in points if p["x_axis"] == "labelled photos per class"]
    points = [p for p in points if p["x_axis"] == "positive images per class"]
    labelled = label_photos(*sides(name), dataset.test.labels)
    assert [p["y"] for p in other_form] == [
        e.mean(dataset.official_ap) for e in labelled
    ]
    expected = low_shot(*sides(name), dataset.test.labels)
    assert [p["x"] for p in points] == [e.positives for e in expected]
    for point, wanted in zip(points, expected, strict=True):
        assert set(point) >= KEYS
        assert point["y"] == wanted.mean(dataset.official_ap)
        assert (point["low"], point["high"]) == wanted.interval(dataset.official_ap)
        assert (point["feature"], point["series"], point["network"]) == (
            name,
            name,
            "tiny",
        )
        assert (point["n_train"], point["n_test"], point["command"]) == (
            20,
            20,
            "deepfish r",
        )
    assert on_disk(tmp_path) == [*points, *other_form]


def test_neighbour_points_are_those_of_the_function(dataset, network, tmp_path, sides):
    points = measure_curves("knn", dataset, network, tmp_path, "dW7")
    train, labels, test = sides("dW7")
    assert {p["x"] for p in points} == {1, 3}  # there are no 50 training images
    for point in points:
        (votes,) = nearest_neighbours(
            train, labels, test, dataset.test.labels, dataset.classes, [point["x"]]
        )
        method = dataset.official_ap
        if point["y_axis"] == "accuracy, %":
            assert (point["y"], point["low"], point["high"]) == (
                votes.accuracy,
                *votes.interval,
            )
        else:
            assert point["y"] == votes.measured.map[method]
            assert (point["low"], point["high"]) == votes.draws.map_interval(method)


def test_approximation_points_are_those_of_the_functions(
    dataset, network, tmp_path, sides
):
    points = measure_curves("approximation", dataset, network, tmp_path, largest=30)
    assert {p["feature"] for p in points} == {"dW8"}
    data = Gradients(*sides("dW8"))
    found = {(p["series"], p["x"], p["y_axis"]): p for p in points}
    axis = map_axis(dataset.official_ap)
    for kind in ("tensor-sketch", "principal"):
        for m in (8, 16):
            bias, rms = kernel_error(data, kind, m)
            assert found[kind, m, "bias of the kernel"]["y"] == pytest.approx(
                bias, abs=1e-6
            )
            assert found[kind, m, "rms error of the kernel"]["y"] == pytest.approx(
                rms, abs=1e-6
            )
            seconds = found[kind, m, SECONDS]["y"], found[kind, m, WITH_PROJECTION]["y"]
            assert 0 < seconds[0] < seconds[1]
    (row,) = reproduce(dataset, network, tmp_path / "table", "dW8")
    assert found["exact kernel", None, axis]["y"] == row["map"][dataset.official_ap]
    more = with_kernel(data.resample(25))
    mean = evaluate(dataset.test.labels, more.scores, dataset.classes).map[
        dataset.official_ap
    ]
    assert found["exact kernel", 25, axis]["y"] == pytest.approx(mean)
    assert found["exact kernel", 25, SECONDS]["n_train"] == 25
    assert (
        found["exact kernel", 25, SECONDS]["y"]
        == found["exact kernel", 25, WITH_PROJECTION]["y"]
    )
    assert ("principal, 8", 25, SECONDS) in found
    assert not any(p["x"] == 40 for p in points)  # above the largest


def test_a_matrix_that_does_not_fit_is_an_empty_point_that_is_tried_again(
    dataset, network, tmp_path, monkeypatch
):
    monkeypatch.setattr(
        approximation, "too_large", lambda n: "no room" if n == 40 else ""
    )
    points = measure_curves("approximation", dataset, network, tmp_path)
    (empty,) = (p for p in points if p["y"] is None)
    assert (empty["series"], empty["x"], empty["note"]) == (
        "exact kernel",
        40,
        "no room",
    )
    monkeypatch.setattr(approximation, "too_large", lambda n: "")
    again = measure_curves("approximation", dataset, network, tmp_path)
    assert len(again) == len(points) + 2  # two times and mAP in its place
    assert all(p["y"] is not None for p in again)


@pytest.mark.parametrize(
    ("kind", "place", "function"),
    [
        ("low-shot", low_shot_module, "low_shot"),
        ("knn", neighbours_module, "nearest_neighbours"),
        ("approximation", approximation, "with_projection"),
    ],
)
def test_a_second_run_computes_nothing_and_an_interrupted_one_goes_on(
    dataset, network, tmp_path, monkeypatch, kind, place, function
):
    original, calls = getattr(place, function), []

    def counting(*arguments, **options):
        calls.append(1)
        if len(calls) == stop:
            raise KeyboardInterrupt
        return original(*arguments, **options)

    monkeypatch.setattr(place, function, counting)
    features, stop = "dW8,pow(dW8,0.5)", 2
    with pytest.raises(KeyboardInterrupt):
        measure_curves(kind, dataset, network, tmp_path, features)
    kept, stop = on_disk(tmp_path), 0
    assert kept
    points = measure_curves(kind, dataset, network, tmp_path, features)
    total = len(calls) - 1  # all but the one that was interrupted
    assert [p for p in points if p in kept] == kept
    assert measure_curves(kind, dataset, network, tmp_path, features) == points
    measure_curves(kind, dataset, network, tmp_path, "dW8")
    assert len(calls) == total + 1
    measure_curves(kind, dataset, network, tmp_path, "dW8", Protocol(C=2.0))
    assert len(calls) > total + 1


def test_without_names_the_features_that_the_network_has_are_measured(
    dataset, network, tmp_path
):
    points = measure_curves("knn", dataset, network, tmp_path)
    best = parse_recipe("best", network.layers).name
    assert list(dict.fromkeys(p["series"] for p in points)) == ["x7", "dW7", best]
    headless = dataclasses.replace(network, layers={})
    with pytest.raises(FeatureError, match=r"none of x7, dW7, best.*name the features"):
        measure_curves("knn", dataset, headless, tmp_path / "none")


def test_wrong_input_is_one_clear_error(dataset, network, tmp_path):
    with pytest.raises(OptionError, match=r"one of low-shot, knn, curate.*mean knn"):
        measure_curves("kn", dataset, network, tmp_path)
    with pytest.raises(OptionError, match="at least 1 image, got 0"):
        measure_curves("approximation", dataset, network, tmp_path, largest=0)
    for name in ("x7", "dW8@3x2", "dW8+x7"):
        with pytest.raises(
            FeatureError, match=rf"takes whole gradients.*got {re.escape(name)};"
        ):
            measure_curves("approximation", dataset, network, tmp_path / "none", name)
    assert not (tmp_path / "none").exists()  # told before any work
    hidden = dataclasses.replace(
        dataset, test=dataclasses.replace(dataset.test, labels=None)
    )
    with pytest.raises(
        DatasetError, match=r"split test of toy must have labels.*--test"
    ):
        measure_curves("knn", hidden, network, tmp_path, "x7")
    (tmp_path / "curves.jsonl").write_text('{"x": 1}\n')
    with pytest.raises(StoreError, match=r"curves\.jsonl line 1"):
        measure_curves("knn", dataset, network, tmp_path, "x7")

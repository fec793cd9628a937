import dataclasses
import json
import struct
import zipfile

import numpy as np
import pytest
from sklearn.metrics import average_precision_score
from sklearn.svm import SVC

import deepfishing.evaluation.protocols.table as module
from deepfishing.core.kernels import gram
from deepfishing.errors import DatasetError, FeatureError, ImageError, StoreError
from deepfishing.evaluation.experiment import Protocol
from deepfishing.evaluation.protocols.table import reproduce
from deepfishing.evaluation.results import Results
from deepfishing.extraction.extract import extract
from deepfishing.store import Store


def test_a_row_is_what_the_steps_give_one_by_one(dataset, network, tmp_path):
    (row,) = reproduce(dataset, network, tmp_path / "out", "dW7")
    train = extract(network, dataset.train.paths, "dW7")["dW7"]
    test = extract(network, dataset.test.paths, "dW7")["dW7"]
    for c, name in enumerate(dataset.classes):
        svm = SVC(C=1, kernel="precomputed").fit(
            gram(train), dataset.train.labels[:, c]
        )
        scores = svm.decision_function(gram(test, train))
        slow = 100 * average_precision_score(dataset.test.labels[:, c] == 1, scores)
        # float16 on disk
        assert row["ap"]["sklearn"][name] == pytest.approx(slow, abs=0.5)
    assert row["map"]["sklearn"] == pytest.approx(
        np.mean(list(row["ap"]["sklearn"].values()))
    )
    assert row["map"]["sklearn"] > 70


def test_difficult_examples_are_left_out_of_training_unless_asked_for(
    dataset, network, tmp_path
):
    labels = dataset.train.labels.copy()
    labels[:5] = 0
    marked = dataclasses.replace(
        dataset, train=dataclasses.replace(dataset.train, labels=labels)
    )
    (row,) = reproduce(marked, network, tmp_path, "x7")
    (negative,) = reproduce(
        marked, network, tmp_path, "x7", Protocol(difficult="negative")
    )
    assert [row["difficult"], negative["difficult"]] == ["ignore", "negative"]
    x = extract(network, [*dataset.train.paths, *dataset.test.paths], "x7")["x7"]
    results = Results(tmp_path)
    for measured, first, targets in (
        (row, 5, labels),
        (negative, 0, np.where(labels == 1, 1, -1)),
    ):
        scores, _, _ = results.scores(measured)
        for c in range(2):
            svm = SVC(C=1, kernel="linear").fit(x[first:20], targets[first:, c])
            slow = svm.decision_function(x[20:])
            np.testing.assert_allclose(scores[:, c], slow, atol=0.02)  # float16 on disk
    assert np.abs(results.scores(row)[0] - results.scores(negative)[0]).max() > 0.1


def test_rows_have_the_keys_of_the_contract_and_are_on_disk(dataset, network, tmp_path):
    rows = reproduce(dataset, network, tmp_path, command="deepfish reproduce toy")
    names = ["x6", "x7", "y8", "x8", "x6;x7", "dW7", "x7;y8", "dW8"]
    assert [row["feature"] for row in rows] == names
    on_disk = [
        json.loads(line)
        for line in (tmp_path / "results.jsonl").read_text().splitlines()
    ]
    assert on_disk == rows
    for row in rows:
        assert row["dataset"] == "toy"
        assert row["network"] == "tiny"
        assert row["tau"] == 2.0
        assert (row["n_train"], row["n_test"]) == (20, 20)
        assert set(row["map"]) == set(row["ap"]) == {"11point", "area", "sklearn"}
        assert set(row["ap"]["area"]) == {"red", "green"}
        assert row["seconds"] >= 0
        assert row["command"] == "deepfish reproduce toy"
        assert row["versions"]["torch"].startswith("2.")


def test_a_second_run_measures_nothing_and_a_new_row_only_itself(
    dataset, network, tmp_path, monkeypatch
):
    first = reproduce(dataset, network, tmp_path, "x7,dW7")
    measured = []
    original = module._measure

    def counting(*arguments):
        measured.append(arguments[1].name)
        return original(*arguments)

    monkeypatch.setattr(module, "_measure", counting)
    assert reproduce(dataset, network, tmp_path, "x7,dW7") == first
    reproduce(dataset, network, tmp_path, "x7,dW7,dW8")
    assert measured == ["dW8"]
    reproduce(dataset, network, tmp_path, "x7", Protocol(C=2.0))
    reproduce(dataset, network, tmp_path, "x7", Protocol(tau=4.0))
    assert measured == ["dW8", "x7", "x7"]
    assert len(Results(tmp_path).rows) == 5


def test_changed_labels_are_measured_again(dataset, network, tmp_path):
    reproduce(dataset, network, tmp_path, "x7")
    labels = -dataset.train.labels
    changed = dataclasses.replace(
        dataset, train=dataclasses.replace(dataset.train, labels=labels)
    )
    reproduce(changed, network, tmp_path, "x7")
    first, second = Results(tmp_path).rows
    assert first["map"] != second["map"]


def test_an_unreadable_image_is_left_out_and_strict_stops_before_the_work(
    dataset, network, tmp_path
):
    broken = dataset.test.paths[3]
    broken.write_bytes(b"\xff\xd8\xff")
    seen, told = [], {}

    def progress(*event):
        seen.append(event)

    with pytest.raises(
        ImageError, match=r"1 of 40 images cannot be used.*test03\.jpg.*--strict"
    ):
        reproduce(
            dataset, network, tmp_path, "x7", Protocol(strict=True), progress=progress
        )
    assert ("checking", 40, 40) in seen
    assert "images" not in {stage for stage, _, _ in seen}
    (row,) = reproduce(dataset, network, tmp_path, "x7", on_failure=told.__setitem__)
    assert (row["n_train"], row["n_test"]) == (20, 19)
    assert row["unreadable"] == [str(broken)] == list(told)
    assert "cannot" in told[str(broken)] or "Pillow" in told[str(broken)]
    seen.clear()
    with pytest.raises(ImageError, match="1 of 40"):
        # what is computed is not looked at again
        reproduce(
            dataset, network, tmp_path, "x7", Protocol(strict=True), progress=progress
        )
    assert ("checking", 1, 1) in seen


def test_a_class_without_a_positive_example_is_left_out_and_said_so(
    dataset, network, tmp_path
):
    train = dataset.train.labels.copy()
    train[:, 0] = -1
    lacking = dataclasses.replace(
        dataset, train=dataclasses.replace(dataset.train, labels=train)
    )
    (row,) = reproduce(lacking, network, tmp_path / "a", "x7")
    assert row["ap"]["area"]["red"] is None
    assert row["map"]["area"] == row["ap"]["area"]["green"]
    assert "training" in row["left_out"]["red"]
    test = dataset.test.labels.copy()
    test[:, 1] = -1
    lacking = dataclasses.replace(
        dataset, test=dataclasses.replace(dataset.test, labels=test)
    )
    (row,) = reproduce(lacking, network, tmp_path / "b", "x7")
    assert row["ap"]["area"]["green"] is None
    assert "test" in row["left_out"]["green"]


def test_a_test_split_without_labels_gives_submission_files(dataset, network, tmp_path):
    hidden = dataclasses.replace(
        dataset, test=dataclasses.replace(dataset.test, labels=None)
    )
    (row,) = reproduce(hidden, network, tmp_path, "dW7")
    assert row["map"] is None
    scores, labels, ids = Results(tmp_path).scores(row)
    assert labels.size == 0
    (file,) = (tmp_path / row["submission"]).rglob("*_red.txt")
    lines = [line.split() for line in file.read_text().splitlines()]
    assert [line[0] for line in lines] == ids == list(dataset.test.ids)
    np.testing.assert_allclose([float(line[1]) for line in lines], scores[:, 0])


def test_an_unknown_feature_is_told_before_any_work(dataset, network, tmp_path):
    with pytest.raises(FeatureError, match="did you mean dW7"):
        reproduce(dataset, network, tmp_path / "out", "x7,dw7")
    assert not (tmp_path / "out").exists()


def test_a_broken_results_file_is_named_with_its_line(tmp_path):
    (tmp_path / "results.jsonl").write_text('{"feat\n')
    with pytest.raises(StoreError, match=r"results\.jsonl line 1"):
        Results(tmp_path)


def test_damaged_scores_are_named(dataset, network, tmp_path):
    (row,) = reproduce(dataset, network, tmp_path, "x7")
    results = Results(tmp_path)
    path = results.scores_path(row)
    for content in (path.read_bytes()[:200], b"", b"text"):
        path.write_bytes(content)
        with pytest.raises(StoreError, match="scores cannot be read"):
            results.scores(row)


def test_scores_of_another_kind_are_named(dataset, network, tmp_path):
    """Found by `make fuzz`, scores: a member that is no array is given as its bytes."""
    (row,) = reproduce(dataset, network, tmp_path, "x7")
    results = Results(tmp_path)
    path = results.scores_path(row)
    scores, labels, ids = results.scores(row)
    whole = {"scores": scores, "labels": labels, "ids": np.array(ids)}
    others = {"scores": scores[0], "labels": np.array("x"), "ids": np.array(ids[:-1])}
    for name, other in others.items():
        np.savez(path, **{**whole, name: other})
        with pytest.raises(
            StoreError, match=r"scores cannot be read: .* of the same images"
        ):
            results.scores(row)
    for name in whole:
        np.savez(path, **{other: whole[other] for other in whole if other != name})
        with zipfile.ZipFile(path, "a") as file:
            file.writestr(name, b"no array")
        with pytest.raises(
            StoreError, match=r"scores cannot be read: .* of the same images"
        ):
            results.scores(row)


def test_scores_whose_header_does_not_close_are_named(dataset, network, tmp_path):
    """Found by `make fuzz`, scores: numpy reads an old header as Python reads its own words."""
    (row,) = reproduce(dataset, network, tmp_path, "x7")
    results = Results(tmp_path)
    head = b"{'descr': '<f8', 'fortran_order': False, 'shape': (2, 2".ljust(117) + b"\n"
    with zipfile.ZipFile(results.scores_path(row), "w") as file:
        file.writestr(
            "scores.npy", b"\x93NUMPY\x01\0" + struct.pack("<H", len(head)) + head
        )
    with pytest.raises(StoreError, match="scores cannot be read"):
        results.scores(row)


def test_a_label_vector_is_written_into_the_row(dataset, network, tmp_path):
    label = np.full(6, 1 / 6)
    (row,) = reproduce(dataset, network, tmp_path, "dW8", Protocol(label=label))
    assert row["label"] == label.tolist()


def test_an_unreadable_split_is_refused(dataset, network, tmp_path):
    for path in dataset.test.paths:
        path.write_bytes(b"")
    with pytest.raises(DatasetError, match="split test must have a readable image"):
        reproduce(dataset, network, tmp_path, "x7")


def test_the_store_of_results_opens_from_their_folder_with_the_labels(
    dataset, network, tmp_path
):
    out = tmp_path / "results"
    reproduce(dataset, network, out, "x8")
    store = Store.open(out)
    assert store.folder.parent == out / "features"
    shown = {row.path: row.labels for row in store.rows().values()}
    for split in (dataset.train, dataset.test):
        for path, row in zip(split.paths, split.labels, strict=True):
            names = [
                name
                for name, label in zip(dataset.classes, row, strict=True)
                if label == 1
            ]
            assert list(shown[str(path)]) == names
    reproduce(dataset, network, out, "x8", Protocol(tau=3.0))
    with pytest.raises(StoreError, match=f"one store, got 2 in {out}; choose one: "):
        Store.open(out)

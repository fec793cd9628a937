"""The model in the browser: trained, measured, adjusted, tried, and taken along."""

import csv
import io
import time
import zipfile
from dataclasses import replace
from pathlib import Path, PurePosixPath

import numpy as np
import pyarrow as pa
import pytest
from starlette.testclient import TestClient

from deepfishing.core.statistics import proportion_interval
from deepfishing.images.published import KINDS
from deepfishing.learn.model import Model
from deepfishing.learn.store_model import (
    curve,
    model_folder,
    open_store_model,
    train_store_model,
)
from deepfishing.store import Store
from deepfishing.web.app import make_app
from deepfishing.web.gallery import Gallery

TOKEN = "a token of more than 16"


@pytest.fixture
def kinds(copied):
    """The photographs with one label each, their kind."""
    rows = []
    for row in copied.rows().values():
        variety = PurePosixPath(row.id).parent.name
        name = f"{len(rows):02d}.jpg"  # in no folder called train
        rows.append(replace(row, id=name, labels=(KINDS[variety],)))
    copied.write_rows(rows)
    return Store.open(copied.folder)


@pytest.fixture
def trained(kinds):
    train_store_model(kinds, "x7")
    return Gallery(kinds.folder)


@pytest.fixture
def client(trained):
    return TestClient(make_app(trained), base_url="http://127.0.0.1:8765")


def test_figures_are_those_of_photos_that_were_held_out(kinds):
    found = train_store_model(kinds, "x7")
    figures = found.facts["figures"]
    right = np.nan_to_num(found.held_out, nan=-1).argmax(axis=1) == found.truth.argmax(
        axis=1
    )
    assert figures["right"] == right.sum()
    assert figures["accuracy"] == pytest.approx(100 * right.mean(), abs=0.01)
    low, high = figures["interval"]
    assert low < figures["accuracy"] < high
    # trained on them, the classifiers know nearly all: held-out photos were not seen
    assert figures["groups"] <= 32
    own = found.model.probabilities({"x7": kinds.read(found.keys.to_pylist(), "x7")})
    np.testing.assert_allclose(found.probabilities, own, atol=2e-3)
    again = open_store_model(kinds)
    assert again.facts["figures"] == figures


def test_what_is_expected_of_photos_without_a_label_is_told_apart(kinds):
    rows = list(kinds.rows().values())
    truth = {str(row.sha256): row.labels[0] for row in rows}
    kept = [row if n % 4 else replace(row, labels=None) for n, row in enumerate(rows)]
    kinds.write_rows(kept)
    found = train_store_model(Store.open(kinds.folder), "x7")
    figures = found.facts["figures"]
    without = [row for row in kept if row.labels is None]
    assert figures["others"] == len(without)
    numbers = found.numbers_of(pa.array([str(row.sha256) for row in without]))
    best = np.asarray(found.probabilities)[numbers].argmax(axis=1)
    names = [found.model.classes[column] for column in best]
    right = [
        name == truth[str(row.sha256)] for name, row in zip(names, without, strict=True)
    ]
    low, high = figures["expected_interval"]
    assert low < figures["expected"] < high
    lowest, highest = proportion_interval(sum(right), len(right))
    assert low < highest
    assert lowest < high
    # all have a label, though those in a folder called test are not used: there are no others
    held = []
    for n, row in enumerate(rows):
        half = "test" if n % 4 == 0 else "train"
        held.append(replace(row, id=f"{half}/{row.id}"))
    kinds.write_rows(held)
    again = train_store_model(Store.open(kinds.folder), "x7")
    assert again.model.training["images"] < len(rows)
    assert "expected" not in again.facts["figures"]


def test_labels_that_say_nothing_are_not_measured_as_right(kinds, rng):
    rows = list(kinds.rows().values())
    names = rng.permutation([row.labels[0] for row in rows])
    kinds.write_rows(
        replace(r, labels=(str(n),)) for r, n in zip(rows, names, strict=True)
    )
    accuracy = train_store_model(Store.open(kinds.folder), "x7").facts["figures"][
        "accuracy"
    ]
    assert accuracy < 65  # three kinds, the most common one has 44 %


def test_precision_and_recall_are_counted_as_photos_are_sorted(trained):
    found = open_store_model(trained.store)
    name = found.model.classes[0]
    best = np.nan_to_num(found.held_out, nan=-1).argmax(axis=1)
    is_class = found.truth[:, 0] == 1
    for point in curve(found, name):
        above = (best == 0) & (found.held_out[:, 0] >= point.threshold)
        assert point.above == above.sum()
        assert point.right == (above & is_class).sum()
        assert point.recall == pytest.approx(100 * point.right / is_class.sum())
    thresholds = [point.threshold for point in curve(found, name)]
    assert thresholds == sorted(thresholds)


def test_a_threshold_is_kept_and_moves_photos_to_unsure(client, trained):
    def folders():
        found = client.get("/api/model/folders").json()["folders"]
        return {one["name"]: one["photos"] for one in found}

    before = folders()
    assert sum(before.values()) == 32
    assert "unsure" not in before
    name = open_store_model(trained.store).model.classes[0]
    asked = {"name": name, "value": 1.0}
    changed = client.post("/api/model/threshold", json=asked).json()
    assert (changed["threshold"], changed["point"]["above"]) == (1.0, 0)
    assert folders().get("unsure", 0) + sum(folders().get(n, 0) for n in before) == 32
    assert folders()["unsure"] > 0
    zipped = client.get("/api/model/download?what=model").content
    with zipfile.ZipFile(io.BytesIO(zipped)) as archive:
        assert sorted(archive.namelist()) == [
            "model/model.json",
            "model/model.safetensors",
        ]
    table = list(
        csv.DictReader(io.StringIO(client.get("/api/model/download?what=sorted").text))
    )
    assert sum(one["folder"] == "unsure" for one in table) == folders()["unsure"]
    train_store_model(trained.store, "x7")  # training again keeps the choice
    assert open_store_model(trained.store).model.thresholds[0] == 1.0
    wrong = {"name": "nothing", "value": 0.5}
    assert client.post("/api/model/threshold", json=wrong).status_code == 404
    assert (
        client.post("/api/model/threshold", json={**asked, "value": 2}).status_code
        == 400
    )


def test_labels_and_report_can_be_downloaded_and_the_report_has_no_script(
    client, trained
):
    labels = list(
        csv.DictReader(io.StringIO(client.get("/api/model/download?what=labels").text))
    )
    assert len(labels) == 32
    report = client.get("/api/model/download?what=report")
    assert report.headers["content-disposition"].startswith("attachment")
    figures = open_store_model(trained.store).facts["figures"]
    assert f"{figures['right']} of {figures['photos']}" in report.text.replace(
        "\n", " "
    )
    assert "<script" not in report.text
    assert client.get("/api/model/download?what=onnx").status_code == 404


def test_without_a_model_the_page_says_so_and_writing_is_guarded(kinds):
    gallery = Gallery(kinds.folder)
    client = TestClient(make_app(gallery), base_url="http://127.0.0.1:8765")
    assert client.get("/api/model").json()["model"] is None
    for path in (
        "curve?name=x",
        "folders",
        "download?what=model",
        "download?what=report",
    ):
        assert client.get(f"/api/model/{path}").status_code == 404
    guarded = TestClient(
        make_app(gallery, token=TOKEN), base_url="http://127.0.0.1:8765"
    )
    for path in ("train", "threshold", "try", "onnx"):
        assert guarded.post(f"/api/model/{path}", json={}).status_code == 401


def test_the_map_can_be_coloured_by_predictions(client, trained):
    from deepfishing.curate.layout import make_layout

    make_layout(trained.store)
    client = TestClient(make_app(trained), base_url="http://127.0.0.1:8765")
    assert {"prediction", "doubt"} <= set(client.get("/api/map").json()["colours"])
    predicted = client.get("/api/map/colours?by=prediction").json()
    assert sum(one["photos"] for one in predicted["names"]) == 32
    photo = client.get("/api/map/photo?point=0").json()
    assert photo["prediction"] in open_store_model(trained.store).model.classes


@pytest.mark.slow  # torch writes the network anew
def test_the_model_is_written_as_onnx_on_request(client, trained):
    onnx = pytest.importorskip(
        "onnx", reason="no onnx: pip install deepfishing[onnxruntime]"
    )
    assert client.post("/api/model/onnx", json={}).status_code == 200
    while (job := client.get("/api/jobs", params={"name": "onnx"}).json())[
        "state"
    ] == "running":
        time.sleep(0.2)
    assert job["state"] == "done", job
    content = client.get("/api/model/download?what=onnx").content
    assert [one.name for one in onnx.load_from_string(content).graph.output] == [
        "probabilities",
        "scores",
    ]


@pytest.mark.browser
def test_a_model_is_trained_tried_and_downloaded_and_a_reload_keeps_it(
    serve, visit, kinds
):
    gallery = Gallery(kinds.folder)
    photo = Path(gallery.collection[3].path)
    with serve(gallery) as address:
        tab = visit(address=address)
        page = tab.page
        page.goto(f"{address.url}#view=model")
        page.select_option("#model-recipe", "x7")
        page.click("#model-train")
        page.wait_for_selector("#model-figure b")
        figures = open_store_model(kinds).facts["figures"]
        assert page.inner_text("#model-figure b") == f"{figures['accuracy']:.1f} %"
        name = page.get_attribute("#model-classes tbody tr", "data-class")
        slider = page.locator("#model-classes tbody tr").first.locator("input")
        slider.focus()
        page.keyboard.press("End")
        page.wait_for_function(
            "() => [...document.querySelectorAll('#model-folders li')]"
            ".some(li => li.textContent.startsWith('unsure'))"
        )
        page.click("#model-classes tbody tr:first-child th button")
        page.wait_for_selector("#model-curve svg path.precision")
        page.set_input_files("#model-file", photo)
        page.wait_for_selector("#model-tried .folder")
        with page.expect_download() as download:
            page.click("#download-model")
        with zipfile.ZipFile(download.value.path()) as archive:
            archive.extractall(kinds.folder.parent / "taken")
        taken = Model.load(kinds.folder.parent / "taken" / "model")
        assert taken.thresholds[taken.classes.index(name)] == 1.0
        page.reload()
        page.wait_for_selector("#model-figure b")
        assert (
            page.locator("#model-classes tbody tr").first.locator("output").inner_text()
            == "1.00"
        )
        phone = visit(phone=True, address=address)
        phone.page.goto(f"{address.url}#view=model")
        phone.page.wait_for_selector("#model-figure b")
        assert not phone.overflows()
        for one in (tab, phone):
            one.page.close()


@pytest.mark.browser
def test_a_long_recipe_stays_inside_its_panel(serve, visit, kinds):
    recipe = "+".join(f"{n}*rbf(x7,{n})" for n in range(1, 13))
    train_store_model(kinds, recipe)
    with serve(Gallery(kinds.folder)) as address:
        tab = visit(address=address)
        tab.page.goto(f"{address.url}#view=model")
        tab.page.wait_for_selector("#model-figure b")
        too_wide = """panels => panels.filter(
            panel => panel.scrollWidth > panel.clientWidth).map(panel => panel.innerText)"""
        assert tab.page.eval_on_selector_all(".model-view .panel", too_wide) == []
        tab.page.close()


@pytest.mark.browser
def test_training_can_be_cancelled(serve, visit, kinds):
    with serve(Gallery(kinds.folder)) as address:
        tab = visit(address=address)
        page = tab.page
        page.goto(f"{address.url}#view=model")
        page.click("#model-train")
        page.click("#model-work button")
        page.wait_for_selector("#model-work", state="hidden")
        begin = time.monotonic()
        state = page.evaluate("fetch('/api/jobs?name=train').then(a => a.json())")[
            "state"
        ]
        assert state == "cancelled"
        assert time.monotonic() - begin < 60
        assert open_store_model(kinds) is None
        page.close()


def test_of_chosen_features_the_figure_is_that_of_photos_the_choice_has_not_seen(
    client, trained
):
    found = open_store_model(trained.store)
    unseen = {"accuracy": 61.25, "interval": [40.0, 79.0], "commonest": 44.0}
    training = {**found.model.training, "accuracy": unseen}
    replace(found.model, training=training).save(model_folder(trained.folder))
    about = client.get("/api/model").json()["model"]
    assert about["unseen"] is None  # x7 was asked for, nothing was chosen
    training["auto"] = {"why": "it suits the labels"}
    replace(found.model, training=training).save(model_folder(trained.folder))
    again = TestClient(
        make_app(Gallery(trained.folder)), base_url="http://127.0.0.1:8765"
    )
    assert again.get("/api/model").json()["model"]["unseen"] == unseen
    report = again.get("/api/model/download", params={"what": "report"}).text
    assert "has not seen,\n61.2 % are right (40.0 to 79.0)" in report

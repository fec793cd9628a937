"""The review: doubtful labels beside their neighbours, what is taken for what, keeping a label."""

import time
from dataclasses import replace

import numpy as np
import pytest
from starlette.testclient import TestClient

from deepfishing.curate.label_errors import label_scores
from deepfishing.curate.review import Judged, judge_labels, nearest_of_class
from deepfishing.curate.selection import open_photos
from deepfishing.errors import DatasetError
from deepfishing.store.label_log import LabelLog
from deepfishing.web.app import make_app
from deepfishing.web.gallery import Gallery

WRONG = 5  # the row whose label is wrong


def kind(row):
    """The first label is the kind: apples, citrus, melons or pears."""
    return row.labels[0]


@pytest.fixture
def reviewed(copied):
    """A store whose photos are labelled with their kind, one of them wrongly."""
    rows = [replace(row, labels=(kind(row),)) for row in copied.rows().values()]
    kinds = sorted({row.labels[0] for row in rows})
    rows.sort(key=lambda row: row.id)
    right = rows[WRONG].labels[0]
    wrong = next(one for one in kinds if one != right)
    rows[WRONG] = replace(rows[WRONG], labels=(wrong,))
    copied.write_rows(rows)
    gallery = Gallery(copied.folder)
    gallery.wrong_id, gallery.right, gallery.wrong = rows[WRONG].id, right, wrong
    return gallery


@pytest.fixture
def reviewer(reviewed):
    return TestClient(make_app(reviewed), base_url="http://127.0.0.1:8765")


def look(client, **filters):
    end = time.monotonic() + 120
    while time.monotonic() < end:
        found = client.get("/api/review", params=filters).json()
        if not found["is_running"] and not found["is_stale"]:
            return found
        if found["error"]:
            return found
        time.sleep(0.05)
    raise AssertionError(found)


def test_a_table_counts_every_photo_once_and_a_cell_has_its_photos(rng):
    target = np.where(np.arange(40)[:, None] % 3 == np.arange(3), 1, -1)
    scores = target + rng.normal(0, 1.2, (40, 3))
    judged = Judged(
        np.arange(40), (("a",),) * 40, ("a", "b", "c"), target, scores, np.arange(40)
    )
    table = judged.table()
    np.testing.assert_array_equal(table.sum(axis=1), (target == 1).sum(axis=0))
    for given in range(3):
        for predicted in range(3):
            cell = judged.cell(given, predicted)
            assert len(cell) == table[given, predicted]
            assert (target[cell, given] == 1).all()
            assert (scores[cell].argmax(axis=1) == predicted).all()
    assert judged.accuracy().top1 == pytest.approx(100 * np.trace(table) / 40)
    numbers, ahead = judged.certainty(0)
    assert set(numbers) == set(np.flatnonzero(target[:, 0] == 1))
    assert (np.diff(ahead) <= 0).all()


def test_scores_are_those_of_curate_labels(reviewed):
    photos = open_photos(reviewed.store)
    rows = [reviewed.collection[row] for row in range(len(reviewed.collection))]
    keys = [reviewed.key_of_row(row) for row in range(len(rows))]
    judged = judge_labels(photos, keys, [row.labels for row in rows])
    features = photos.features.of(judged.contents)
    expected = label_scores(features, judged.target, groups=judged.groups)
    np.testing.assert_allclose(judged.scores, expected)
    column = judged.classes.index(reviewed.right)
    near = nearest_of_class(photos, judged, WRONG, column, 3)
    assert len(near) == 3
    assert (judged.target[near, column] == 1).all()
    with pytest.raises(DatasetError, match="label more"):
        judge_labels(photos, keys[:3], [("a",), ("b",), ("a",)])


def test_a_wrong_label_is_found_accepted_and_undone(reviewer, reviewed):
    found = look(reviewer)
    assert found["doubts"]["first"][0]["id"] == reviewed.wrong_id
    assert found["doubts"]["first"][0]["suggested"] == [reviewed.right]
    low, high = found["estimate"]["interval"]
    assert low < found["estimate"]["accuracy"] <= high
    beside = {"id": reviewed.wrong_id, "loses": reviewed.wrong, "gains": reviewed.right}
    near = reviewer.get("/api/review/beside", params=beside).json()
    assert reviewed.wrong_id not in near["gains"]
    labels = {one: reviewed.live.of_row(reviewed.row(one)) for one in near["gains"]}
    assert set(labels.values()) == {(reviewed.right,)}
    change = {
        "ids": [reviewed.wrong_id],
        "labels": [reviewed.right],
        "seen": [reviewed.wrong],
    }
    act = reviewer.post("/api/labels", json=change).json()["act"]
    after = look(reviewer)
    assert reviewed.wrong_id not in [one["id"] for one in after["doubts"]["first"]]
    reviewer.post("/api/labels/undo", json={"act": act})
    assert look(reviewer)["doubts"]["first"][0]["id"] == reviewed.wrong_id


def test_a_label_that_is_kept_is_not_doubted_again_by_another_server(
    reviewer, reviewed
):
    total = look(reviewer)["doubts"]["total"]
    reviewer.post("/api/review/keep", json={"id": reviewed.wrong_id})
    assert look(reviewer)["doubts"]["total"] == total - 1
    again = TestClient(
        make_app(Gallery(reviewed.folder)), base_url="http://127.0.0.1:8765"
    )
    assert look(again)["doubts"]["total"] == total - 1
    again.post("/api/review/keep", json={"id": reviewed.wrong_id, "undo": True})
    assert look(again)["doubts"]["total"] == total
    assert LabelLog.open(reviewed.folder).current() == {}  # no label was changed


def test_a_cell_becomes_a_selection_and_a_filter_narrows_the_doubts(reviewer, reviewed):
    found = look(reviewer)
    at = found["classes"].index(reviewed.right)
    cell = {"given": reviewed.right, "predicted": reviewed.right}
    made = reviewer.post("/api/review/cell", json=cell).json()
    assert made["images"] == found["table"][at][at]
    images = reviewer.get("/api/images", params={"selection": made["selection"]}).json()
    assert all(one["labels"] == [reviewed.right] for one in images["images"])
    inside = look(reviewer, selection=made["selection"])
    assert reviewed.wrong_id not in [one["id"] for one in inside["doubts"]["first"]]
    assert (
        reviewer.post("/api/review/cell", json={**cell, "given": "nothing"}).status_code
        == 404
    )


def test_too_few_labels_are_said_in_one_line(reviewer, reviewed, ids):
    for id_ in ids:
        reviewer.post("/api/labels", json={"ids": [id_], "labels": None})
    found = look(reviewer)
    assert "label more" in found["error"]
    assert "doubts" not in found


@pytest.mark.browser
def test_one_key_accepts_keeps_and_undoes(visit, serve, reviewed):
    with serve(reviewed) as address:
        tab = visit(address=address)
        page = tab.open("#view=review")
        page.wait_for_selector("#doubted.loaded")
        assert reviewed.wrong_id in page.inner_text("#doubted-name")
        assert page.inner_text("#doubt-words") == (
            f"Labelled {reviewed.wrong}, looks like {reviewed.right}"
        )
        page.wait_for_selector("#loses .loaded")
        page.wait_for_selector("#gains .loaded")
        page.keyboard.press("a")
        page.wait_for_selector("#undo-review:not([disabled])")
        assert LabelLog.open(reviewed.folder).current().popitem()[1] == (
            reviewed.right,
        )
        page.keyboard.press("u")
        page.wait_for_selector("#undo-review[disabled]")
        assert LabelLog.open(reviewed.folder).current() == {}
        page.wait_for_function(
            "id => document.querySelector('#doubted-name')?.textContent.includes(id)",
            arg=reviewed.wrong_id,
        )
        page.keyboard.press("k")
        page.wait_for_function(
            "id => document.querySelector('#doubted-name')?.textContent.includes(id) === false",
            arg=reviewed.wrong_id,
        )
        page.keyboard.press("u")
        page.wait_for_selector("#undo-review[disabled]")
        page.keyboard.press("o")
        page.keyboard.type("plum")
        page.keyboard.press("Enter")
        page.wait_for_selector("#toast.shown")
        assert LabelLog.open(reviewed.folder).current().popitem()[1] == ("plum",)
        page.click("[data-show=table]")
        page.wait_for_selector(".review[aria-busy=false] #table td.right button")
        assert tab.asked() == {"view": ["review"], "show": ["table"]}
        page.wait_for_load_state("networkidle")
        count = int(page.locator("#table td.right button").first.inner_text())
        page.locator("#table td.right button").first.click()
        page.wait_for_function(
            f"() => document.querySelector('#count')?.textContent === '{count} of 32 pictures'"
        )
        assert "selection" in tab.asked()
        page.go_back()
        page.click("[data-show=classes]")
        page.wait_for_selector("#certain .loaded")
        tab.context.close()  # before its server: pictures may still be on their way


@pytest.mark.browser
def test_without_labels_the_review_leads_to_labelling(visit, serve, copied):
    copied.write_rows([replace(row, labels=None) for row in copied.rows().values()])
    with serve(Gallery(copied.folder)) as address:
        tab = visit(address=address)
        page = tab.open("#view=review")
        page.wait_for_selector("#summary a.button")
        assert "nothing to review yet" in page.inner_text("#summary")
        assert not page.is_visible(".tabs")
        page.click("#summary a.button")
        page.wait_for_selector("#first-step:not([hidden])")
        tab.context.close()


@pytest.mark.browser
@pytest.mark.parametrize("show", ["", "table", "classes"])
def test_the_review_fits_a_phone(visit, serve, reviewed, show):
    with serve(reviewed) as address:
        tab = visit(phone=True, address=address)
        page = tab.open(f"#view=review&show={show}")
        wait = {
            "": "#doubted.loaded",
            "table": "td.right button",
            "classes": "#certain .loaded",
        }
        page.wait_for_selector(wait[show])
        assert not tab.overflows()
        tab.context.close()

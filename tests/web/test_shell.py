"""The page around the views: navigation, one filter for all, labels as they are now."""

import threading
from dataclasses import replace

import numpy as np
import pytest
from starlette.testclient import TestClient

from deepfishing.store.label_log import LabelLog
from deepfishing.web.app import STATIC, make_app
from deepfishing.web.gallery import Filter, Gallery
from deepfishing.web.jobs import CANCELLED, DONE, FAILED, Jobs
from deepfishing.web.selections import (
    MAX_SELECTIONS,
    ForgottenSelectionError,
    Selections,
)
from deepfishing.web.views import VIEWS


def test_every_view_has_its_file_and_a_link(client):
    page = client.get("/").text
    for view in VIEWS:
        assert (STATIC / f"view_{view.name}.js").is_file()
        assert f'href="#view={view.name}"' in page


def test_labels_of_others_filter_and_count_at_once(copied):
    gallery = Gallery(copied.folder)
    client = TestClient(make_app(gallery), base_url="http://127.0.0.1:8765")
    ids = gallery.collection.table.column("id").to_pylist()
    other = LabelLog.open(copied.folder)  # another program
    for id_ in ids[:3]:
        path, content = gallery.content(id_)
        other.edit({content: path}, add=["rotten"], origin="test")
    found = client.get("/api/images", params={"label": "rotten"}).json()
    assert [one["id"] for one in found["images"]] == ids[:3]
    assert {"name": "rotten", "images": 3} in client.get("/api/store").json()["labels"]
    other.rename_class("rotten", "bad", origin="test")
    assert client.get("/api/images", params={"label": "bad"}).json()["total"] == 3
    assert client.get("/api/images", params={"label": "rotten"}).status_code == 404
    other.undo(origin="test")
    other.undo(origin="test")
    assert client.get("/api/images", params={"label": "rotten"}).json()["total"] == 2


def test_live_labels_are_those_of_the_log_for_each_row(copied, rng):
    rows = list(copied.rows().values())
    sources = [None, (), ("a",), ("a", "b")]
    changed = [replace(row, labels=sources[n % 4]) for n, row in enumerate(rows)]
    copied.write_rows(changed)
    gallery = Gallery(copied.folder)
    log = LabelLog.open(copied.folder)
    names = ["a", "b", "c"]
    for _ in range(40):
        row = int(rng.integers(len(rows)))
        path, content = gallery.content(gallery.id_of(row))
        act = rng.integers(4)
        if act == 0:
            log.undo(origin="test")
        elif act == 1:
            log.rename_class(*rng.choice(names, 2), origin="test")
        else:
            log.edit({content: path}, add=[str(rng.choice(names))], origin="test")
        gallery.live.refresh()
        for n in range(len(rows)):
            expected = log.apply(
                gallery.key_of_row(n), sources_of(changed, gallery.id_of(n))
            )
            assert gallery.live.of_row(n) == expected
        for name in names:
            shown = [name in (gallery.live.of_row(n) or ()) for n in range(len(rows))]
            assert gallery.live.has(name).tolist() == shown


def sources_of(rows, id_):
    return next(row.labels for row in rows if row.id == id_)


def test_a_selection_filters_images_and_searches(client, gallery, ids):
    made = client.post("/api/selections", json={"ids": ids[4:9], "name": "five"}).json()
    assert (made["images"], made["name"]) == (5, "five")
    key = made["selection"]
    found = client.get("/api/images", params={"selection": key}).json()
    assert [one["id"] for one in found["images"]] == ids[4:9]
    asked = {"by": "x7", "like": [{"id": ids[0]}], "k": 30, "selection": key}
    hits = client.post("/api/search", json=asked).json()["hits"]
    assert {hit["id"] for hit in hits} == set(ids[4:9])
    assert (
        len(client.post("/api/scatter", json={**asked, "by": "dW8"}).json()["ids"]) == 5
    )
    label = gallery.collection[4].labels[0]
    rows = gallery.rows(Filter((label,), "", key))
    assert all(label in gallery.live.of_row(row) for row in rows)
    assert client.get("/api/images", params={"selection": "0" * 16}).status_code == 404
    assert client.post("/api/selections", json={"ids": ["nowhere"]}).status_code == 404


def test_selections_are_bounded_and_the_same_rows_have_the_same_key():
    selections = Selections()
    first = selections.add(np.array([3, 1, 3]), "a")
    assert first.rows.tolist() == [1, 3]
    assert selections.add(np.array([1, 3]), "a").key == first.key
    for n in range(MAX_SELECTIONS):
        selections.add(np.array([n, 10_000]), "b")
    with pytest.raises(ForgottenSelectionError, match="select again"):
        selections.get(first.key)


def test_a_job_is_cancelled_where_it_reports_and_starts_again():
    jobs, reached, go_on = Jobs(), threading.Event(), threading.Event()

    def work(progress):
        progress("first", 1, 2)
        reached.set()
        go_on.wait(30)
        progress("second", 2, 2)

    job = jobs.start("work", work)
    assert jobs.start("work", work) is job  # it runs already
    reached.wait(30)
    assert (job.stage, job.done, job.total) == ("first", 1, 2)
    jobs.cancel("work")
    go_on.set()
    jobs.wait("work", 30)
    assert job.state == CANCELLED
    again = jobs.start("work", work)
    jobs.wait("work", 30)
    assert again.state == DONE
    broken = jobs.start("broken", lambda progress: 1 / 0)
    jobs.wait("broken", 30)
    assert (broken.state, "terminal" in broken.error) == (FAILED, True)


@pytest.mark.browser
def test_views_are_links_with_addresses_and_share_the_filter(visit, gallery, ids):
    tab = visit()
    label = gallery.collection[0].labels[0]
    page = tab.open(f"#label={label}")
    page.wait_for_selector("#grid .shot.loaded")
    assert page.locator("#views [aria-current=page]").inner_text() == "Photos"
    page.click("#views [data-view=label]")
    page.wait_for_selector("#classes button")
    assert tab.asked() == {"view": ["label"], "label": [label]}
    assert page.locator("#grid").count() == 0
    page.reload()
    page.wait_for_selector("#classes button")
    assert page.locator("#views [aria-current=page]").inner_text() == "Label"
    page.go_back()
    page.wait_for_selector("#grid .shot.loaded")
    assert page.locator("#labels [aria-pressed=true]").get_attribute("value") == label
    assert (
        page.locator("#side [aria-pressed=true]").get_attribute("value") == label
    )  # the same filter
    page.keyboard.press("]")
    page.wait_for_selector("#classes button")
    page.keyboard.press("[")
    page.wait_for_selector("#grid .shot.loaded")


@pytest.mark.browser
def test_a_selection_is_a_chip_that_can_be_removed(visit, client, live, ids, gallery):
    selection = gallery.selections.add(np.array([1, 2, 3]), "three of them")
    page = visit().open(f"#selection={selection.key}")
    page.wait_for_function(
        "() => document.querySelector('#count')?.textContent === '3 of 32 pictures'"
    )
    page.wait_for_function(
        "() => document.querySelector('.selection')?.textContent.includes('(3)')"
    )
    page.click(".selection")
    page.wait_for_function(
        "() => document.querySelector('#count')?.textContent === '32 pictures'"
    )


@pytest.mark.browser
def test_the_old_address_of_labelling_leads_to_the_view(visit):
    page = visit().open("label")
    page.wait_for_selector("#classes button")

"""Labels that are given in the browser: in the log, undone, kept, and not lost between tabs."""

from dataclasses import replace

import pytest
from starlette.testclient import TestClient

from deepfishing.store.label_log import LabelLog
from deepfishing.web.app import make_app
from deepfishing.web.gallery import Gallery

TOKEN = "a token of more than 16"


@pytest.fixture
def unlabelled(copied):
    """A store of its own whose photos have no labels."""
    copied.write_rows([replace(row, labels=None) for row in copied.rows().values()])
    return Gallery(copied.folder)


@pytest.fixture
def labeller(unlabelled):
    return TestClient(make_app(unlabelled), base_url="http://127.0.0.1:8765")


def logged(gallery):
    """Labels of the log, by id."""
    labels = LabelLog.open(gallery.folder).current()
    ids = gallery.collection.table.column("id").to_pylist()
    return {
        id_: labels[gallery.content(id_)[1]] for id_ in ids if gallery.content(id_)[1] in labels
    }


def test_what_is_confirmed_is_in_the_log_and_can_be_undone(labeller, unlabelled):
    first = labeller.post("/api/labels/next", json={}).json()["id"]
    act = labeller.post("/api/labels", json={"ids": [first], "labels": ["pear"]}).json()["act"]
    assert logged(unlabelled) == {first: ("pear",)}
    second = labeller.post("/api/labels/next", json={}).json()["id"]
    assert second != first
    assert labeller.post("/api/labels/next", json={"skip": [second]}).json()["id"] != second
    summary = labeller.get("/api/labels").json()
    assert (summary["labelled"], summary["classes"]) == (1, [{"name": "pear", "images": 1}])
    assert labeller.post("/api/labels/undo", json={"act": act}).json() == {"ids": [first]}
    assert logged(unlabelled) == {}
    assert labeller.get("/api/labels/of", params={"id": first}).json()["labels"] is None


def test_writing_is_guarded_as_reading_is(unlabelled):
    asked = {"ids": ["x"], "labels": ["pear"]}
    guarded = TestClient(make_app(unlabelled, token=TOKEN), base_url="http://127.0.0.1:8765")
    assert guarded.post("/api/labels", json=asked).status_code == 401
    bearer = {"Authorization": f"Bearer {TOKEN}"}
    assert guarded.post("/api/labels", json=asked, headers=bearer).status_code == 404
    foreign = {**bearer, "Origin": "http://example.com"}
    assert guarded.post("/api/labels", json=asked, headers=foreign).status_code == 403
    assert logged(unlabelled) == {}


@pytest.mark.browser
def test_keys_label_and_undo_in_two_tabs_and_a_reload_keeps_it(browser, serve, unlabelled):
    with serve(unlabelled) as address:
        tabs = [browser.new_page() for _ in range(2)]
        complaints = []
        for tab in tabs:
            tab.set_default_timeout(300_000)
            tab.on("console", lambda line: complaints.append(line.text))
            tab.goto(f"{address.url}#view=label")
            tab.wait_for_selector("#photo.loaded")

        def labelled(tab, n):
            tab.wait_for_function(
                "n => document.querySelector('#state').textContent.startsWith(`${n} `)", arg=n
            )
            return tab.inner_text("#name")

        def type_class(tab, name):
            tab.keyboard.press("/")
            tab.keyboard.type(name)
            tab.keyboard.press("Enter")

        one, two = tabs
        cut = """() => {
          const [frame, photo] = ["#photo", "#photo img"].map(
            (name) => document.querySelector(name).getBoundingClientRect());
          return photo.bottom > frame.bottom + 1 || photo.right > frame.right + 1;
        }"""
        assert not one.evaluate(cut)  # the whole picture is on the screen
        first = labelled(one, 0)
        type_class(one, "pear")
        second = labelled(one, 1)
        assert logged(unlabelled) == {first: ("pear",)}
        two.keyboard.press("s")  # past what the other tab has labelled
        two.wait_for_selector("#classes button")
        two.keyboard.press("0")
        labelled(two, 2)
        assert logged(unlabelled) == {first: ("pear",), second: ()}
        one.keyboard.press("u")
        one.wait_for_selector("#undo[disabled]")
        assert one.inner_text("#name") == first
        assert logged(unlabelled) == {second: ()}  # the other tab's label stays
        type_class(one, "pear")
        third = labelled(one, 2)
        one.keyboard.press("1")
        labelled(one, 3)
        expected = {first: ("pear",), second: (), third: ("pear",)}
        assert logged(unlabelled) == expected
        one.reload()
        labelled(one, 3)
        assert logged(unlabelled) == expected
        one.set_viewport_size({"width": 390, "height": 844})
        width = "document.documentElement.scrollWidth - document.documentElement.clientWidth"
        assert one.evaluate(width) <= 0
        for tab in tabs:
            tab.close()
        assert complaints == []

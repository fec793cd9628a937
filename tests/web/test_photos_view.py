"""The photos: sorted, grouped, selected by ticks, keys and a rectangle, labelled together."""

import time
from itertools import pairwise

import numpy as np
import pytest
from starlette.testclient import TestClient

from deepfishing.store.label_log import Change, LabelLog
from deepfishing.web.app import make_app
from deepfishing.web.gallery import Gallery
from deepfishing.web.orders import ORDERS


@pytest.fixture
def own(copied):
    """A gallery whose labels may be changed."""
    return Gallery(copied.folder)


@pytest.fixture
def asker(own):
    return TestClient(make_app(own), base_url="http://127.0.0.1:8765")


def shown(client, order, **filters):
    for _ in range(200):
        answer = client.get(
            "/api/images", params={"order": order, "limit": 500, **filters}
        )
        if answer.status_code != 409:  # it is still being compared
            break
    assert answer.status_code == 200, answer.json()
    return answer.json()["images"]


@pytest.mark.parametrize("order", ["folder", "label", "date", "odd", "random"])
def test_every_order_has_every_photo_once(asker, ids, order):
    found = [one["id"] for one in shown(asker, order)]
    assert sorted(found) == sorted(ids)
    assert order in ORDERS
    label = asker.get("/api/store").json()["labels"][0]["name"]
    some = [one["id"] for one in shown(asker, order, label=label)]
    assert some == [id_ for id_ in found if id_ in some]  # a filter keeps the order


def test_orders_group_what_belongs_together(asker, own):
    labels = [one["group"] for one in shown(asker, "label")]
    assert sum(a != b for a, b in pairwise(labels)) == len(set(labels)) - 1
    folders = shown(asker, "folder")
    assert all(one["id"].startswith(one["group"] + "/") for one in folders)
    assert all(len(one["group"]) == 7 for one in shown(asker, "date"))
    assert asker.get("/api/images", params={"order": "nonsense"}).status_code == 400


def test_doubt_and_similarity_need_what_is_learned(asker, own):
    first = asker.get("/api/images", params={"order": "doubt"})
    assert first.status_code in (200, 409)
    end = time.monotonic() + 60
    while own and time.monotonic() < end:
        state = asker.get("/api/labels/learned").json()
        if state.get("is_whole"):
            break
        time.sleep(0.05)
    doubtful = [one["id"] for one in shown(asker, "doubt")]
    assert len(set(doubtful)) == 32
    similar = [own.row(one["id"]) for one in shown(asker, "similar")]
    vectors = own.first_searcher.contents.read(own.collection.content[similar], ["x7"])[
        "x7"
    ]
    unit = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
    beside = (unit[1:] * unit[:-1]).sum(axis=1).mean()
    assert beside > (unit @ unit.T).mean() + 0.05


@pytest.mark.browser
def test_pictures_are_selected_by_tick_shift_keys_and_rectangle(visit, serve, own, ids):
    with serve(own) as address:
        tab = visit(address=address)
        page = tab.open()
        page.wait_for_selector("#grid .shot.loaded")

        def selected():
            return page.eval_on_selector_all(
                ".card.is-selected", "all => all.map(card => card.dataset.id)"
            )

        page.hover(f"#grid [data-id='{ids[0]}']")
        page.click(f"#grid [data-id='{ids[0]}'] [data-action=select]")
        page.click(f"#grid [data-id='{ids[3]}'] .shot", modifiers=["Shift"])
        page.wait_for_function(
            "() => document.querySelectorAll('.is-selected').length === 4"
        )
        assert selected() == ids[:4]
        assert "id" not in tab.asked()  # no search
        page.keyboard.press("Escape")
        assert page.locator("#picked").is_hidden()
        page.focus(f"#grid [data-id='{ids[0]}'] .shot")
        page.keyboard.press("x")
        page.keyboard.press("Shift+ArrowRight")
        page.wait_for_function(
            "() => document.querySelectorAll('.is-selected').length === 2"
        )
        page.keyboard.press("Escape")
        boxes = [
            page.locator(f"#grid [data-id='{id_}']").bounding_box() for id_ in ids[:3]
        ]
        page.mouse.move(boxes[0]["x"] + 30, boxes[0]["y"] + 30)
        page.mouse.down()
        page.mouse.move(boxes[2]["x"] + 40, boxes[2]["y"] + 60, steps=5)
        page.mouse.up()
        page.wait_for_function(
            "() => document.querySelectorAll('.is-selected').length === 3"
        )
        assert selected() == ids[:3]
        page.fill("#picked input", "chosen")
        page.keyboard.press("Enter")
        page.wait_for_selector("#toast.shown")
        contents = {own.content(id_)[1] for id_ in ids[:3]}
        labels = LabelLog.open(own.folder).current()
        assert {
            key for key, names in labels.items() if names == ("chosen",)
        } == contents
        page.wait_for_selector("#side button[value=chosen]")
        page.wait_for_selector(
            f"#grid [data-id='{ids[0]}'] .card-labels:has-text('chosen')"
        )
        page.click("#toast button")
        page.wait_for_function(
            "() => !document.querySelector('#side button[value=chosen]')"
        )
        known = page.eval_on_selector_all("#side .counts button", "all => all[0].value")
        page.hover(f"#grid [data-id='{ids[0]}']")
        page.click(f"#grid [data-id='{ids[0]}'] [data-action=select]")
        page.fill("#picked input", known.upper())  # not a class of its own
        offered = page.eval_on_selector_all(
            "#picked option", "all => all.map(one => one.value)"
        )
        assert known in offered
        page.keyboard.press("Enter")
        page.wait_for_selector(f"#toast.shown:has-text('{known} now')")
        content = own.content(ids[0])[1]
        assert LabelLog.open(own.folder).current()[content] == (known,)
        tab.context.close()


@pytest.mark.browser
def test_the_panel_counts_labels_and_a_click_filters(visit, serve, own, ids, checks):
    log = LabelLog.open(own.folder)

    def label(numbers, labels):
        changes = [
            Change(own.content(ids[n])[1], own.content(ids[n])[0], labels)
            for n in numbers
        ]
        log.append(changes, origin="test")

    label(range(32), None)
    label(range(5), ("pear",))
    label(range(3, 7), ("apple", "green"))
    label([9], ())
    shown = "all => all.map(one => [one.value, one.querySelector('small').textContent])"
    with serve(own) as address:
        tab = visit(address=address)
        page = tab.open()
        page.wait_for_selector("#side .counts button")
        assert page.eval_on_selector_all("#side button", shown) == [
            ["unlabelled", "24"],
            ["labelled", "8"],
            ["none", "1"],
            ["apple", "4"],
            ["green", "4"],
            ["pear", "3"],
        ]
        assert page.locator("#labels button").locator("visible=true").count() == 0

        def grid(n):
            page.wait_for_function(
                "n => document.querySelector('#count')?.textContent.startsWith(`${n} `)",
                arg=n,
            )
            return page.eval_on_selector_all(
                "#grid .card", "all => all.map(card => card.dataset.id)"
            )

        page.click("#side button[value=pear]")
        assert grid(3) == ids[:3]
        page.click("#side button[value=apple]")  # in place of the other label
        assert grid(4) == ids[3:7]
        page.click("#side button[value=green]", modifiers=["Control"])
        assert grid(4) == ids[3:7]
        assert tab.asked() == {"label": ["apple", "green"]}
        page.focus("#side button[value=none]")
        page.keyboard.press("Enter")
        assert grid(1) == [ids[9]]
        assert tab.asked() == {"only": ["none"]}
        assert page.inner_text("#labels .only") == "none of these ×"
        page.keyboard.press("Enter")  # the focus stays, and removes the filter
        assert set(grid(32)) <= set(ids)
        page.click("#side button[value=unlabelled]")
        assert grid(24) == [*ids[7:9], *ids[10:]]
        page.reload()
        assert grid(24) == [*ids[7:9], *ids[10:]]
        page.fill("#text", ids[8])
        page.wait_for_function(
            "() => document.querySelector('#side button[value=unlabelled] small')"
            "?.textContent === '1'"
        )
        page.keyboard.press("Escape")
        page.click("#side summary")  # closed, it stays so
        page.reload()
        page.wait_for_selector("#grid .shot.loaded")
        assert page.locator("#side .counts").is_hidden()
        tab.context.close()
        tab = visit(phone=True, address=address)
        page = tab.open()
        page.wait_for_selector("#grid .shot.loaded")
        assert page.locator("#side .counts").is_hidden()
        page.tap("#side summary")
        page.tap("#side button[value=pear]")
        assert grid(3) == ids[:3]
        assert page.evaluate(checks.targets) == []
        assert not tab.overflows()
        tab.context.close()


@pytest.mark.browser
def test_the_copies_of_a_hit_are_shown_together(visit, gallery, ids, monkeypatch):
    hit = {"score": 0.5, "forward": 0.5, "backward": 0.5, "labels": [], "classes": []}
    found = [{"id": ids[3], "similar": [ids[5], ids[7]], **hit}]
    monkeypatch.setattr(gallery, "search", lambda question: found)
    tab = visit()
    page = tab.open(f"#id={ids[0]}")
    tab.ids("forward")
    page.click("#forward .similar")
    page.wait_for_selector("#labels .selection")
    page.wait_for_function(
        "() => document.querySelectorAll('#grid .card').length === 3"
    )
    shown = page.eval_on_selector_all(
        "#grid .card", "all => all.map(card => card.dataset.id)"
    )
    assert shown == [ids[3], ids[5], ids[7]]


@pytest.mark.browser
def test_the_order_is_in_the_address_and_groups_have_captions(visit, ids):
    tab = visit()
    page = tab.open()
    page.wait_for_selector("#grid .shot.loaded")
    page.select_option("#order", "label")
    page.wait_for_selector("#grid .caption")
    assert tab.asked() == {"order": ["label"]}
    page.reload()
    page.wait_for_selector("#grid .caption")
    assert page.input_value("#order") == "label"
    assert page.locator("#words").is_hidden()  # this network reads no words


@pytest.mark.browser
def test_a_selection_is_labelled_as_a_group_and_the_exceptions_follow(
    visit, serve, own, ids
):
    with serve(own) as address:
        tab = visit(address=address)
        page = tab.open()
        page.wait_for_selector("#grid .shot.loaded")
        for id_ in ids[:4]:
            page.hover(f"#grid [data-id='{id_}']")
            page.click(f"#grid [data-id='{id_}'] [data-action=select]")
        page.click("#picked-group")
        page.wait_for_selector("#together-grid button")
        assert page.locator("#together-grid button").count() == 4
        page.click(f"#together-grid button[title='{ids[2]}']")
        page.fill("#together-name", "group")
        page.keyboard.press("Enter")
        page.wait_for_selector("#toast.shown")
        labels = LabelLog.open(own.folder).current()
        assert {key for key, names in labels.items() if names == ("group",)} == {
            own.content(id_)[1] for id_ in (ids[0], ids[1], ids[3])
        }
        page.wait_for_selector("#together", state="hidden")
        tab.context.close()


@pytest.mark.browser
def test_words_are_a_field_where_the_network_reads_them(
    visit, gallery, ids, monkeypatch
):
    asked = []
    hit = {"score": 0.5, "forward": 0.5, "backward": None, "labels": [], "classes": []}

    def search(question):
        asked.append((question.words, question.like))
        return [{"id": ids[3], **hit}]

    monkeypatch.setattr(type(gallery), "reads_words", True)
    monkeypatch.setattr(gallery, "search", search)
    tab = visit()
    page = tab.open()
    page.wait_for_selector("#words:not([hidden])")
    page.fill("#words-text", "a green pear")
    page.keyboard.press("Enter")
    assert tab.ids("forward") == [ids[3]]
    assert asked == [("a green pear", [])]
    assert tab.asked() == {"words": ["a green pear"]}
    assert page.locator("#gradient").is_hidden()
    assert "a green pear" in page.inner_text("#examples")
    page.reload()
    assert tab.ids("forward") == [ids[3]]
    page.keyboard.press("Escape")
    page.wait_for_selector("#grid .shot.loaded")

"""Copies in the browser: groups, decisions by keys, and a list that is what was clicked."""

import hashlib
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
from PIL import Image
from starlette.testclient import TestClient

from deepfishing.curate.copies_review import find_copies
from deepfishing.store import Store
from deepfishing.web.app import make_app
from deepfishing.web.gallery import Gallery

TOKEN = "a token of more than 16"


@pytest.fixture
def doubled(copied):
    """A store of which two photos have copies: the same file and a re-encoded one of each."""
    rows = copied.rows()
    factors = copied.factors()
    for row in [row for row in rows.values() if row.id.endswith("_26.jpg")][:2]:
        path = Path(row.path)
        again, small = (
            path.with_name(f"z-{path.name}"),
            path.with_name(f"s-{path.name}"),
        )
        shutil.copy(path, again)
        with Image.open(path) as opened:
            image = opened.convert("RGB")
        image.save(small, quality=85)
        key = hashlib.sha256(small.read_bytes()).hexdigest()
        copied.append(
            [key], {name: copied.read([row.sha256], name) for name in factors}
        )
        for place, sha256 in ((again, row.sha256), (small, key)):
            rows[place.name] = replace(
                row, id=place.name, path=str(place), sha256=sha256
            )
    copied.write_rows(rows.values())
    return Store.open(copied.folder)


@pytest.fixture
def found(doubled):
    assert find_copies(doubled) == 2
    return Gallery(doubled.folder)


@pytest.fixture
def client(found):
    return TestClient(make_app(found), base_url="http://127.0.0.1:8765")


def exported(client, form="nul", **query):
    answer = client.get("/api/duplicates/export", params={"form": form, **query})
    assert answer.status_code == 200, answer.text
    return {Path(path).name for path in answer.text.split("\0") if path}


def test_decisions_change_the_list_and_files_stay(client, found):
    folder = Path(found.collection[0].path).parent
    before = {path: path.read_bytes() for path in folder.iterdir()}
    groups = client.get("/api/duplicates").json()["groups"]
    assert [len(group["photos"]) for group in groups] == [3, 3]
    proposed = {p["id"] for group in groups for p in group["photos"] if p["aside"]}
    assert len(proposed) == 4
    assert exported(client) == {Path(id_).name for id_ in proposed}
    one = sorted(proposed)[0]
    changed = client.post(
        "/api/duplicates/decide", json={"id": one, "aside": False}
    ).json()
    assert [p["aside"] for p in changed["photos"] if p["id"] == one] == [False]
    assert exported(client) == {Path(id_).name for id_ in proposed - {one}}
    table = client.get("/api/duplicates/export?form=csv")
    assert table.text.splitlines()[0] == "path,kind,keep,id"
    assert table.headers["x-listed"] == "3"
    assert {path: path.read_bytes() for path in folder.iterdir()} == before


def test_the_last_copy_stays_and_a_filter_holds_for_the_list(client):
    group = client.get("/api/duplicates").json()["groups"][0]
    kept = group["photos"][0]["id"]
    refused = client.post("/api/duplicates/decide", json={"id": kept, "aside": True})
    assert refused.status_code == 409
    assert "must be kept" in refused.json()["error"]
    aside = next(p["id"] for p in group["photos"] if p["aside"])
    selection = client.post(
        "/api/selections", json={"ids": [aside], "name": "one"}
    ).json()
    assert exported(client, selection=selection["selection"]) == {Path(aside).name}
    shown = client.get(
        "/api/duplicates", params={"selection": selection["selection"]}
    ).json()
    assert shown["total"] == 1


def test_a_difference_is_a_picture_and_strangers_are_not_compared(client, found):
    photos = client.get("/api/duplicates").json()["groups"][0]["photos"]
    pair = {"a": photos[0]["id"], "b": photos[1]["id"]}
    picture = client.get("/api/duplicates/difference", params=pair)
    assert (picture.status_code, picture.headers["content-type"]) == (200, "image/jpeg")
    stranger = found.collection[3].id
    for b in (stranger, "../../etc/passwd"):
        answer = client.get("/api/duplicates/difference", params={**pair, "b": b})
        assert answer.status_code == 404
    assert client.get("/api/duplicates/difference?a=nothing&b=x").status_code == 404


def test_deciding_is_guarded(found):
    guarded = TestClient(make_app(found, token=TOKEN), base_url="http://127.0.0.1:8765")
    asked = {"id": "x", "aside": True}
    for path in ("decide", "find"):
        assert guarded.post(f"/api/duplicates/{path}", json=asked).status_code == 401
        headers = {"Authorization": f"Bearer {TOKEN}", "Origin": "http://example.com"}
        foreign = guarded.post(f"/api/duplicates/{path}", json=asked, headers=headers)
        assert foreign.status_code == 403
    assert guarded.get("/api/duplicates/export").status_code == 401


@pytest.mark.browser
def test_a_copy_is_set_aside_by_keys_and_the_list_is_what_was_clicked(
    serve, visit, doubled
):
    gallery = Gallery(doubled.folder)
    with serve(gallery) as address:
        tab = visit(address=address)
        page = tab.page
        page.goto(f"{address.url}#view=duplicates")
        page.click("text=Look for copies")
        page.wait_for_selector("#copies-count")
        assert page.inner_text("#copies-count") == "4 set aside"

        def states():
            return page.eval_on_selector_all(
                "#copies-photos li",
                "all => all.map(li => [li.dataset.id, li.className])",
            )

        def wait(number, name):
            page.wait_for_function(
                "([n, name]) => document.querySelectorAll('#copies-photos li')[n]"
                ".className === name",
                arg=[number, name],
            )

        assert [state for _, state in states()] == ["", "is-aside", "is-aside"]
        page.keyboard.press("k")
        wait(1, "")
        page.keyboard.press("ArrowRight")
        page.keyboard.press("k")
        wait(2, "")
        page.keyboard.press("a")
        wait(2, "is-aside")
        first = {id_ for id_, state in states() if state}
        page.keyboard.press("ArrowDown")
        page.click("#copies-photos li:nth-child(2) .state")  # by the mouse: kept
        wait(1, "")
        second = {id_ for id_, state in states() if state}
        assert page.inner_text("#copies-count") == "2 set aside"
        page.select_option(".copies-export select", "nul")
        with page.expect_download() as download:
            page.click("#copies-export")
        listed = Path(download.value.path()).read_text().split("\0")[:-1]
        assert {Path(path).name for path in listed} == {
            Path(id_).name for id_ in first | second
        }
        page.reload()
        page.wait_for_selector("#copies-count")
        assert page.inner_text("#copies-count") == "2 set aside"
        assert {id_ for id_, state in states() if state} == first
        page.close()


@pytest.mark.browser
def test_both_photos_are_zoomed_in_step_and_the_difference_is_shown(
    serve, visit, found
):
    with serve(found) as address:
        tab = visit(address=address)
        page = tab.page
        page.goto(f"{address.url}#view=duplicates")
        page.wait_for_selector("#copies-photos .shot.loaded")
        page.keyboard.press("+")
        page.keyboard.press("+")
        moves = page.eval_on_selector_all(
            ".copies-pane img", "all => all.map(img => img.style.transform)"
        )
        assert moves[0] == moves[1]
        assert moves[0].startswith("scale(2.25)")
        page.keyboard.press("d")
        page.wait_for_function(
            "() => { const img = document.querySelector('#pane-keep img');"
            " return img.src.includes('difference') && img.complete && img.naturalWidth > 50; }"
        )
        phone = visit(phone=True, address=address)
        phone.page.goto(f"{address.url}#view=duplicates")
        phone.page.wait_for_selector("#copies-photos .shot.loaded")
        assert not phone.overflows()
        for one in (tab, phone):
            one.page.close()

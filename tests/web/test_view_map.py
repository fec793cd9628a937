"""The map: places that are kept, colours, names of regions, and a lasso that filters the grid."""

import base64
import time

import numpy as np
import pytest
from starlette.testclient import TestClient

from deepfishing.curate import layout
from deepfishing.curate.layout import make_layout, open_layout
from deepfishing.web import view_map
from deepfishing.web.app import make_app
from deepfishing.web.gallery import Gallery

MARGIN = 0.94  # of the canvas, as map_canvas.js has it


@pytest.fixture
def mapped(copied, monkeypatch):
    """A gallery of its own with a map that took few steps."""
    monkeypatch.setattr(layout, "package", lambda: layout.SKLEARN)
    make_layout(copied)
    return Gallery(copied.folder)


@pytest.fixture
def client(mapped):
    return TestClient(make_app(mapped), base_url="http://127.0.0.1:8765")


def decoded(text, kind):
    return np.frombuffer(base64.b64decode(text), kind)


def get(client, path, **query):
    answer = client.get(f"/api/map{path}", params=query)
    assert answer.status_code == 200, answer.text
    return answer.json()


def places_by_id(gallery):
    kept = open_layout(gallery.store)
    places = kept.places_of(gallery.first_searcher.contents.keys)[
        gallery.collection.content
    ]
    ids = gallery.collection.table.column("id").to_pylist()
    return dict(zip(ids, places.astype(float).tolist(), strict=True))


def contents_of(gallery):
    """The content hash of each row."""
    keys = gallery.first_searcher.contents.keys
    return [keys[int(number)] for number in gallery.collection.content]


def test_the_map_is_made_in_the_background_and_kept(copied):
    gallery = Gallery(copied.folder)
    client = TestClient(make_app(gallery), base_url="http://127.0.0.1:8765")
    assert get(client, "")["placed"] == 0
    assert client.post("/api/map/make", json={}).json()["state"] == "running"
    while (job := client.get("/api/jobs", params={"name": "map"}).json())[
        "state"
    ] == "running":
        time.sleep(0.1)
    assert job["state"] == "done", job
    found = get(client, "")
    assert (found["placed"], found["shown"], found["contents"]) == (32, 32, 32)
    again = TestClient(
        make_app(Gallery(copied.folder)), base_url="http://127.0.0.1:8765"
    )
    assert get(again, "/points") == get(client, "/points")


def test_points_and_colours_are_those_of_the_photos(client, mapped):
    points = get(client, "/points")
    places = decoded(points["places"], "<u2").reshape(-1, 2) / 65_535
    expected = np.stack(list(places_by_id(mapped).values()))
    np.testing.assert_allclose(places, expected, atol=2e-5)
    ids = mapped.collection.table.column("id").to_pylist()
    assert get(client, "/photo", point=5)["id"] == ids[5]
    by_folder = get(client, "/colours", by="folder")
    codes = decoded(by_folder["codes"], np.uint8)
    names = [one["name"] for one in by_folder["names"]]
    folders = [id_.rpartition("/")[0] for id_ in ids]
    of_names = [
        (names[c - 1], f)
        for c, f in zip(codes, folders, strict=True)
        if c <= len(names)
    ]
    assert len(of_names) > 20
    assert all(name == folder for name, folder in of_names)
    assert sum(one["photos"] for one in by_folder["names"]) + by_folder["others"] == 32
    # there is no model
    assert client.get("/api/map/colours?by=doubt").status_code == 409
    assert client.get("/api/map/photo?point=99").status_code == 400


def test_regions_are_named_by_labels_first_and_then_by_the_network(client, mapped):
    ids = mapped.collection.table.column("id").to_pylist()
    client.post("/api/labels", json={"ids": ids, "labels": None})
    by_network = get(client, "/regions")["regions"]
    assert {one["by"] for one in by_network} == {"network"}
    kept = open_layout(mapped.store)
    group = [
        int(kept.group[kept.keys.index(key).as_py()]) for key in contents_of(mapped)
    ]
    largest = [id_ for id_, number in zip(ids, group, strict=True) if number == 0]
    assert len(largest) == by_network[0]["photos"] > 3
    client.post("/api/labels", json={"ids": largest[:3], "labels": ["mine"]})
    regions = get(client, "/regions")["regions"]
    assert (regions[0]["name"], regions[0]["by"]) == ("mine", "labels")
    assert regions[1:] == by_network[1:]
    client.post("/api/labels", json={"ids": largest[3:], "labels": ["other"]})
    assert get(client, "/regions")["regions"][0]["name"] == "other"


def test_without_a_model_the_map_shows_what_was_learnt_from_the_labels(client, mapped):
    assert "prediction" not in get(client, "")["colours"]
    begin = time.monotonic()
    while time.monotonic() - begin < 300:  # the labels of the store
        state = client.get("/api/labels/learned").json()
        if state.get("learned") == state["version"]:
            break
        time.sleep(0.1)
    if "prediction" in get(client, "")["colours"]:
        found = get(client, "/colours", by="prediction")
        assert sum(one["photos"] for one in found["names"]) + found["others"] == 32
        levels = decoded(get(client, "/colours", by="doubt")["codes"], np.uint8)
        assert len(levels) == 32
    else:
        pytest.fail(f"nothing was learnt: {state}")


def test_a_shape_selects_all_photos_inside_also_those_that_are_not_drawn(
    mapped, monkeypatch
):
    monkeypatch.setattr(view_map, "MAX_POINTS", 10)
    client = TestClient(make_app(mapped), base_url="http://127.0.0.1:8765")
    assert (get(client, "")["shown"], get(client, "")["placed"]) == (10, 32)
    corners = [[-0.1, -0.1], [0.5, -0.1], [0.5, 1.1], [-0.1, 1.1]]
    found = client.post(
        "/api/map/select", json={"corners": corners, "name": "left"}
    ).json()
    left = [id_ for id_, (x, _) in places_by_id(mapped).items() if x < 0.5]
    assert found["images"] == len(left)
    images = client.get(
        "/api/images", params={"selection": found["selection"], "limit": 100}
    )
    assert [one["id"] for one in images.json()["images"]] == left
    passing = get(client, "/passing", selection=found["selection"])
    bits = np.unpackbits(decoded(passing["passing"], np.uint8), bitorder="little")[:10]
    assert passing["images"] == len(left)
    assert 0 < bits.sum() < 10
    nothing = client.post(
        "/api/map/select", json={"corners": [[2, 2], [3, 2], [3, 3]]}
    ).json()
    assert nothing["selection"] is None
    for wrong in ([[0, 0], [1, 1]], [[0, 0, 0]] * 3, [["a", 0]] * 3, [[0, 0]] * 3000):
        assert (
            client.post("/api/map/select", json={"corners": wrong}).status_code == 400
        )


def draw(page, corners):
    """Draw a lasso through corners of the page."""
    page.mouse.move(*corners[0])
    page.mouse.down()
    for corner in [*corners[1:], corners[0]]:
        page.mouse.move(*corner, steps=8)
    page.mouse.up()


@pytest.mark.browser
@pytest.mark.parametrize("renderer", ["webgl2", "2d"])
def test_a_lasso_on_the_map_filters_the_grid_and_a_reload_keeps_it(
    serve, visit, mapped, renderer
):
    with serve(mapped) as address:
        tab = visit(address=address)
        tab.expected = ("GPU stall",)  # of software rendering
        page = tab.page
        page.goto(f"{address.url}?renderer={renderer}#view=map")
        page.wait_for_selector("#map-legend li")
        page.wait_for_selector("#map[data-passing='32']")
        assert page.get_attribute("#map", "data-renderer") == renderer
        assert page.is_visible("#map-bar")  # which is hidden while there is no map
        box = page.locator("#map").bounding_box()
        scale = min(box["width"], box["height"]) * MARGIN
        middle = box["x"] + box["width"] / 2, box["y"] + box["height"] / 2
        on_screen = {
            id_: (middle[0] + (x - 0.5) * scale, middle[1] + (y - 0.5) * scale)
            for id_, (x, y) in places_by_id(mapped).items()
        }
        page.keyboard.press("l")
        left, right = box["x"] + 4, middle[0] - 3
        top, bottom = box["y"] + 4, box["y"] + box["height"] - 4
        draw(page, [(left, top), (right, top), (right, bottom), (left, bottom)])
        page.wait_for_selector(".chip.selection")
        expected = {id_ for id_, (x, _) in on_screen.items() if x < right}
        assert 0 < len(expected) < 32
        page.wait_for_selector(f"#map[data-passing='{len(expected)}']")
        page.click("#views [data-view='photos']")
        page.wait_for_selector("#grid .card[data-id]")
        shown = page.eval_on_selector_all(
            "#grid .card", "all => all.map(c => c.dataset.id)"
        )
        assert set(shown) == expected
        page.reload()
        page.wait_for_selector("#grid .card[data-id]")
        assert page.locator("#grid .card").count() == len(expected)
        page.click(".chip.selection")
        page.wait_for_function(
            "() => document.querySelectorAll('#grid .card').length > 20"
        )
        page.close()


@pytest.mark.browser
def test_the_map_is_used_by_keys_and_by_pointing(serve, visit, mapped):
    with serve(mapped) as address:
        tab = visit(address=address)
        tab.expected = ("GPU stall",)
        page = tab.page
        page.goto(f"{address.url}#view=map")
        page.wait_for_selector("#map[data-passing='32']")
        before = page.input_value("#map-colours")
        page.focus("#map")
        page.keyboard.press("c")
        assert page.input_value("#map-colours") != before
        for _ in range(6):
            page.keyboard.press("+")
        page.keyboard.press("Enter")
        page.wait_for_selector(".chip.selection")
        inside = int(page.get_attribute("#map", "data-passing"))
        page.wait_for_function(
            "() => Number(document.querySelector('#map').dataset.passing) < 32"
        )
        assert 0 < inside <= 32
        page.click(".chip.selection")
        page.wait_for_selector("#map[data-passing='32']")
        page.keyboard.press("0")
        box = page.locator("#map").bounding_box()
        scale = min(box["width"], box["height"]) * MARGIN
        id_, (x, y) = next(iter(places_by_id(mapped).items()))
        at = (
            box["x"] + box["width"] / 2 + (x - 0.5) * scale,
            box["y"] + box["height"] / 2 + (y - 0.5) * scale,
        )
        page.mouse.move(*at)
        page.wait_for_selector("#map-tip:not([hidden])")
        assert page.inner_text("#map-tip span").startswith(id_.rpartition("/")[2])
        page.mouse.click(*at)
        page.wait_for_selector("#forward .card[data-id]")
        assert tab.asked()["id"] == [id_]
        page.close()


@pytest.mark.browser
def test_the_map_fits_a_telephone(serve, visit, mapped):
    with serve(mapped) as address:
        tab = visit(phone=True, address=address)
        tab.expected = ("GPU stall",)
        page = tab.page
        page.goto(f"{address.url}#view=map")
        page.wait_for_selector("#map[data-passing='32']")
        assert not tab.overflows()
        assert page.locator("#map").bounding_box()["height"] > 200
        page.close()


def test_a_lasso_around_a_hollow_leaves_out_what_is_in_the_hollow(rng):
    # a U of three boxes: what is between its arms is outside
    corners = (
        np.array([[1, 1], [2, 1], [2, 3], [3, 3], [3, 1], [4, 1], [4, 4], [1, 4]]) / 5
    )
    places = rng.random((2000, 2))
    x, y = places.T * 5
    left, right = (x > 1) & (x < 2), (x > 3) & (x < 4)
    arms = (left | right) & (y > 1) & (y < 4)
    bottom = (x > 1) & (x < 4) & (y > 3) & (y < 4)
    inside = view_map.is_inside(places, corners)
    np.testing.assert_array_equal(inside, arms | bottom)
    assert 0 < inside.sum() < 2000

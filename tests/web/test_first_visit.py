"""What somebody sees who opens the page for the first time: large pictures, plain words, room for
fingers, colours that can be read."""

import io
import re

import httpx
import pytest
from PIL import Image

from deepfishing.web.gallery import Gallery

pytestmark = pytest.mark.browser


def wait_for_focus(page, id_):
    """Wait until the keyboard is on a card: the browser first gives it back to the one before."""
    page.wait_for_function(
        "id => document.activeElement.closest('.card')?.dataset.id === id", arg=id_
    )


def test_a_picture_is_enlarged_and_its_neighbours_are_an_arrow_away(
    visit, live, gallery, ids
):
    page = visit().open()
    page.hover(f"#grid [data-id='{ids[0]}']")
    page.click(f"#grid [data-id='{ids[0]}'] [data-action=enlarge]")
    page.wait_for_function(
        "() => document.querySelector('.stage img').naturalWidth > 320"
    )
    assert page.inner_text("#lightbox h2") == ids[0]
    assert page.inner_text("#lightbox .place") == "1 of 32"
    assert page.locator("#lightbox .before").is_disabled()
    for label in gallery.collection[0].labels:
        assert label in page.inner_text("#lightbox .about")
    for key, at in (("ArrowRight", 1), ("ArrowDown", 2), ("ArrowLeft", 1)):
        page.keyboard.press(key)
        page.wait_for_selector(f"#lightbox[data-id='{ids[at]}']")
    whole = httpx.get(
        live.url + page.get_attribute("#lightbox .file", "href").lstrip("/")
    )
    with (
        Image.open(io.BytesIO(whole.content)) as sent,
        Image.open(gallery.collection[1].path) as o,
    ):
        assert sent.size == o.size
    assert page.get_attribute("#lightbox .file", "target") == "_blank"
    page.keyboard.press("Escape")
    page.wait_for_selector("#lightbox", state="hidden")
    wait_for_focus(page, ids[1])  # the last one that was seen
    page.keyboard.press("o")
    page.wait_for_selector("#lightbox[open]")
    page.keyboard.press("+")
    assert page.get_attribute("#lightbox [data-action=plus]", "aria-pressed") == "true"
    page.click("#lightbox .close")
    assert page.locator("#tray li.plus").count() == 1


def test_an_enlarged_hit_has_its_reason_and_leads_on(visit, ids):
    tab = visit()
    page = tab.open(f"#id={ids[4]}")
    hits = tab.ids("gradient")
    page.focus("#gradient .shot")
    page.keyboard.press("o")
    page.wait_for_selector(f"#lightbox[data-id='{hits[0]}']")
    reason = page.locator("#gradient .card .why").first.inner_text()
    assert page.locator("#lightbox .about").inner_text().endswith(reason)
    page.keyboard.press("ArrowRight")
    page.wait_for_selector(f"#lightbox[data-id='{hits[1]}']")
    page.keyboard.press("Escape")
    wait_for_focus(page, hits[1])
    assert tab.asked() == {"id": [ids[4]]}  # Escape closed the picture and nothing else
    page.keyboard.press("o")
    page.click("#lightbox [data-action=search]")
    page.wait_for_selector("#lightbox", state="hidden")
    page.wait_for_function(
        "() => !location.hash.includes('id=" + ids[4].split("/")[-1] + "')"
    )
    assert tab.asked() == {"id": [hits[1]]}


def test_the_page_says_when_photos_can_be_searched_with(visit, gallery, monkeypatch):
    monkeypatch.setattr(gallery.uploads, "network_state", "loading")
    page = visit().open()
    page.wait_for_function("() => document.querySelector('#pick').disabled")
    assert page.inner_text("#pick") == "Photos: in a moment …"
    gallery.uploads.network_state = "ready"
    page.wait_for_function("() => !document.querySelector('#pick').disabled")
    assert page.inner_text("#pick") == "Search by photo"


def test_what_explains_the_page_is_on_the_first_screen(visit, ids):
    tab = visit()
    page = tab.open()
    page.wait_for_selector("#grid .shot.loaded")
    box = "e.getBoundingClientRect()"
    inside = f"e => {box}.top >= 0 && {box}.bottom <= innerHeight"
    assert page.eval_on_selector(".lead", inside)
    assert page.eval_on_selector(".keys", inside)
    page.goto(f"{tab.address.url}#id={ids[4]}")
    tab.ids("gradient")
    for what in (".keys", "#plot .key", "#forward header p", "#gradient header p"):
        assert page.eval_on_selector(what, inside), what
    assert "kernel" not in page.inner_text("body")


def test_a_finger_has_room_and_is_not_told_of_a_mouse(visit, ids, checks):
    tab = visit(phone=True)
    page = tab.open()
    page.wait_for_selector("#grid .shot.loaded")
    seen = [page.inner_text("body")]
    assert page.evaluate(checks.targets) == []
    page.tap(f"#grid [data-id='{ids[1]}'] [data-action=enlarge]")
    page.wait_for_selector("#lightbox[open]")
    seen.append(page.inner_text("#lightbox"))
    assert page.evaluate(checks.targets) == []
    page.tap("#lightbox [data-action=plus]")
    page.tap("#lightbox .close")
    assert page.evaluate(checks.targets) == []  # with the tray
    page.tap("#tray-search")
    tab.ids("gradient")
    seen.append(page.inner_text("body"))
    assert page.evaluate(checks.targets) == []
    for words in seen:
        assert not re.search(r"click|hover|drop|Esc|Enter", words)
    assert "Tap a picture" in seen[0]


LONG = "(2*x6+1)*(whiten(dW7,0.5)+whiten(dW8,0.5)+pow(dW8,0.5)+pow(dW7,0.5)+x7)"


@pytest.mark.parametrize(("recipe", "title"), [(LONG, LONG), ("best", "best")])
def test_a_long_recipe_does_not_widen_the_page(
    visit, store_folder, serve, ids, recipe, title
):
    with serve(Gallery(store_folder, recipe)) as address:
        for phone in (True, False):
            tab = visit(phone=phone, address=address)
            page = tab.open(f"#id={ids[2]}")
            tab.ids("gradient")
            assert page.locator("#gradient option:checked").inner_text() == title
            assert not tab.overflows()
            width = page.locator("#gradient select").bounding_box()["width"]
            assert width <= page.locator("#gradient").bounding_box()["width"]


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_all_text_can_be_read_in_light_and_dark(visit, ids, gallery, scheme, checks):
    tab = visit(color_scheme=scheme)
    page = tab.open()
    page.wait_for_selector("#grid .shot.loaded")
    page.click(f"#side button[value='{gallery.collection[0].labels[0]}']")
    assert page.evaluate(checks.contrast) == []
    page.goto(f"{tab.address.url}#id={ids[4]}")
    tab.ids("gradient")
    page.wait_for_selector("#forward .bar.means")
    assert page.evaluate(checks.contrast) == []
    page.focus("#gradient .shot")
    page.keyboard.press("o")
    page.wait_for_selector("#lightbox[open]")
    assert page.evaluate(checks.contrast) == []


def test_everything_that_can_be_pressed_has_a_name(visit, ids, checks):
    tab = visit()
    page = tab.open(f"#id={ids[4]}")
    tab.ids("gradient")
    page.focus("#gradient .shot")
    page.keyboard.press("o")
    page.wait_for_selector("#lightbox[open]")
    assert page.evaluate(checks.nameless) == []

"""The page in a real browser: what a visitor does, and what is on the screen then."""

import shutil
from dataclasses import replace
from itertools import product
from pathlib import Path

import numpy as np
import pytest

from deepfishing.extraction.imported import import_vectors
from deepfishing.search.compare import DEFAULTS
from deepfishing.store import Store
from deepfishing.web.gallery import Gallery, collapse, groups_of

pytestmark = pytest.mark.browser

DEFAULT = DEFAULTS[0]  # what the command line takes, too


def found(searchers, by, query, k, *unlike):
    """Ids of the hits that the page shows: the first of each group of similar photos."""
    nearest = searchers[by].search(query, 3 * k, *unlike)
    firsts = collapse(nearest, groups_of(searchers[by], nearest))
    return [hit.id for hit, _ in firsts[:k]]


def test_the_collection_is_shown_with_its_pictures(visit, ids):
    page = visit().open()
    page.wait_for_selector("#grid .shot.loaded")
    assert page.inner_text("#count") == "32 pictures"
    assert page.locator("#grid .card").first.get_attribute("data-id") == ids[0]
    page.wait_for_function(
        "() => [...document.querySelectorAll('#grid img')]"
        ".every(img => img.complete && img.naturalWidth > 50)"
    )
    assert page.locator("#results").is_hidden()


def test_a_click_searches_by_both_kernels_and_the_address_remembers(
    visit, ids, searchers
):
    tab = visit()
    page = tab.open()
    page.click(f"#grid [data-id='{ids[4]}'] .shot")
    expected = [found(searchers, by, ids[4], 12) for by in ("x7", DEFAULT)]
    assert [tab.ids("forward"), tab.ids("gradient")] == expected
    assert tab.asked() == {"id": [ids[4]]}
    page.reload()
    assert [tab.ids("forward"), tab.ids("gradient")] == expected
    page.click(f"#gradient [data-id='{expected[1][0]}'] .shot")
    page.wait_for_url(f"**/#id={expected[1][0].replace('/', '%2F')}")
    page.go_back()
    page.wait_for_selector(f"#gradient [data-id='{expected[1][0]}']")
    page.go_back()
    page.wait_for_selector("#grid .card")
    assert page.locator("#results").is_hidden()


def test_hits_say_why_and_which_side_alone_has_them(visit, ids, searchers):
    tab = visit()
    page = tab.open(f"#id={ids[4]}")
    forward, gradient = tab.ids("forward"), tab.ids("gradient")
    page.wait_for_selector("#forward .bar")
    for side, mine, other in (
        ("forward", forward, gradient),
        ("gradient", gradient, forward),
    ):
        marked = page.eval_on_selector_all(
            f"#{side} .only:not([hidden])",
            "all => all.map(o => o.closest('.card').dataset.id)",
        )
        assert marked == [id_ for id_ in mine if id_ not in other]
    first = searchers[DEFAULT].search(ids[4], 1)[0]
    card = page.locator("#gradient .card").first
    assert card.locator(".name").inner_text() == Path(first.id).name
    assert card.locator(".score b").inner_text() == f"{first.score:.3f}"
    assert card.locator(".looks b").inner_text() == f"{first.forward:.2f}"
    assert card.locator(".means b").inner_text() == f"{first.backward:.2f}"
    # whole, and they add up
    names = [*(one.name for one in first.classes), "all others"]
    assert card.locator(".classes span").all_inner_texts() == names
    terms = [float(text) for text in card.locator(".classes b").all_inner_texts()]
    # of five that are rounded
    assert sum(terms) == pytest.approx(first.backward, abs=0.025)
    cut = "all => all.filter(e => e.scrollWidth > e.clientWidth + 1).map(e => e.textContent)"
    assert (
        page.eval_on_selector_all(".hits .name, .hits .tags, .hits .classes span", cut)
        == []
    )
    near = searchers["x7"].search(ids[4], 1)[0]
    assert page.locator("#forward .looks b").first.inner_text() == f"{near.score:.2f}"
    assert page.locator("#predictions li").count() == 3


def test_other_kernels_can_be_compared(visit, ids, searchers):
    tab = visit()
    page = tab.open(f"#id={ids[2]}")
    tab.ids("gradient")
    page.select_option("#gradient select", "dW7")
    page.select_option("#forward select", "x6")
    expected = found(searchers, "x6", ids[2], 12), found(searchers, "dW7", ids[2], 12)
    for side, hits in zip(("forward", "gradient"), expected, strict=True):
        wanted = ",".join(hits)
        page.wait_for_function(
            "([side, wanted]) => [...document.querySelectorAll(`#${side} .card`)]"
            ".map(card => card.dataset.id).join() === wanted",
            arg=[side, wanted],
        )
    assert tab.asked() == {"id": [ids[2]], "forward": ["x6"], "gradient": ["dW7"]}


def test_a_photo_can_be_picked_and_dropped(visit, gallery, searchers, tmp_path):
    photo = tmp_path / "mine.jpg"
    photo.write_bytes(Path(gallery.collection[7].path).read_bytes() + b"\0")
    expected = found(searchers, DEFAULT, photo, 12)
    tab = visit()
    page = tab.open()
    page.set_input_files("#file", photo)
    assert tab.ids("gradient") == expected
    assert page.inner_text("#examples .name") == "your photo"
    page.wait_for_selector("#examples .shot.loaded")
    page.click(".back")
    data = page.evaluate_handle(
        """bytes => {
          const data = new DataTransfer();
          data.items.add(new File([new Uint8Array(bytes)], "dropped.jpg", {type: "image/jpeg"}));
          return data;
        }""",
        list(photo.read_bytes()),
    )
    page.dispatch_event("body", "dragenter", {"dataTransfer": data})
    assert page.locator("#drop").is_visible()
    page.dispatch_event("body", "drop", {"dataTransfer": data})
    assert tab.ids("gradient") == expected
    assert page.locator("#drop").is_hidden()


def test_a_broken_photo_is_told_and_the_page_goes_on(visit, ids, tmp_path):
    broken = tmp_path / "broken.jpg"
    broken.write_bytes(b"\xff\xd8\xff\xe0 this is not a photo")
    tab = visit()
    tab.expected = ("400 (Bad Request)",)  # the browser's own line
    page = tab.open()
    page.set_input_files("#file", broken)
    page.wait_for_selector("#notice:not([hidden])")
    assert page.inner_text("#notice p").startswith("A photo must be a JPEG, PNG")
    assert page.locator("#notice").get_attribute("role") == "alert"
    page.click("#notice button")
    assert page.locator("#notice").is_hidden()
    page.click(f"#grid [data-id='{ids[0]}'] .shot")
    assert tab.ids("forward")


def test_labels_and_text_filter_the_collection_and_the_hits(visit, ids, gallery):
    tab = visit()
    page = tab.open()
    label = gallery.collection[0].labels[0]
    expected = [i for n, i in enumerate(ids) if label in gallery.collection[n].labels]
    page.click(f"#side button[value='{label}']")
    page.wait_for_function(
        f"() => document.querySelector('#count')?.textContent.startsWith('{len(expected)} ')"
    )
    shown = page.eval_on_selector_all(
        "#grid .card", "all => all.map(card => card.dataset.id)"
    )
    assert shown == expected
    page.click(f"#grid [data-id='{ids[0]}'] .shot")
    # a new search is among all pictures
    assert not set(tab.ids("gradient")) <= set(expected)
    page.click(f"#labels button[value='{label}']")
    page.wait_for_function(
        "ids => [...document.querySelectorAll('#gradient .card')]"
        ".every(card => ids.includes(card.dataset.id))",
        arg=expected,
    )
    page.click("#labels .clear")
    page.click(".back")
    page.fill("#text", "no such name")
    page.wait_for_function(
        "() => document.querySelector('#count')?.textContent.startsWith('No picture')"
    )
    page.click("#count button")
    page.wait_for_function(
        "() => document.querySelector('#count')?.textContent === '32 pictures'"
    )
    assert page.input_value("#text") == ""


def test_more_like_these_not_like_those(visit, ids, searchers):
    tab = visit()
    page = tab.open()
    for id_, sign in ((ids[1], "plus"), (ids[2], "plus"), (ids[9], "minus")):
        page.hover(f"#grid [data-id='{id_}']")
        page.click(f"#grid [data-id='{id_}'] [data-action={sign}]")
    assert page.inner_text("#tray p") == "2 like these, 1 not like those"
    page.click("#tray-search")
    assert tab.ids("gradient") == found(searchers, DEFAULT, ids[1:3], 12, [ids[9]])
    assert tab.asked() == {"id": ids[1:3], "not": [ids[9]]}
    page.click("#examples .minus button")
    page.wait_for_function("() => !location.hash.includes('not=')")
    expected = found(searchers, DEFAULT, ids[1:3], 12)
    page.wait_for_selector(f"#gradient .card:first-child[data-id='{expected[0]}']")
    page.wait_for_selector("#gradient .hits:not([aria-busy])")
    assert tab.ids("gradient") == expected
    page.hover("#gradient .card >> nth=2")
    page.click("#gradient .card >> nth=2 >> [data-action=minus]")
    page.wait_for_function("() => location.hash.includes('not=')")
    assert tab.asked()["not"] == [expected[2]]


def test_the_keyboard_is_enough(visit, ids):
    tab = visit()
    page = tab.open()
    page.wait_for_selector("#grid .card")
    lefts = page.eval_on_selector_all(
        "#grid .card", "all => all.map(c => c.getBoundingClientRect().x)"
    )
    columns = len(set(lefts))

    def focused():
        return page.evaluate("document.activeElement.closest('.card')?.dataset.id")

    page.keyboard.press("ArrowDown")
    page.wait_for_function("() => document.activeElement.classList.contains('shot')")
    assert focused() == ids[0]
    for key, at in (
        ("ArrowRight", 1),
        ("ArrowDown", 1 + columns),
        ("ArrowLeft", columns),
        ("End", 31),
    ):
        page.keyboard.press(key)
        page.wait_for_function(
            f"() => document.activeElement.closest('.card')?.dataset.index === '{at}'"
        )
        assert focused() == ids[at]
    assert (
        page.evaluate("getComputedStyle(document.activeElement).outlineStyle")
        == "solid"
    )
    page.keyboard.press("-")
    assert page.locator("#tray li.minus").count() == 1
    page.keyboard.press("Enter")
    hits = tab.ids("forward")
    assert tab.asked() == {"id": [ids[31]]}
    page.focus("#forward .shot")
    page.keyboard.press("ArrowRight")
    assert focused() == hits[1]
    page.keyboard.press("+")
    page.wait_for_function("() => location.hash.split('id=').length === 3")
    page.keyboard.press("Escape")
    page.wait_for_selector("#collection:not([hidden])")
    page.keyboard.press("/")
    assert page.evaluate("document.activeElement.id") == "text"
    page.keyboard.type("000")
    page.wait_for_function("() => location.hash.includes('text=000')")
    page.keyboard.press("Escape")
    page.wait_for_function("() => !location.hash.includes('text')")


def test_the_plot_shows_a_picture_under_the_pointer_and_a_click_searches(
    visit, ids, searchers
):
    tab = visit()
    page = tab.open(f"#id={ids[3]}")
    tab.ids("gradient")
    page.wait_for_selector("#forward .bar")  # the plot's points have come
    box = page.locator("#plot canvas").bounding_box()
    tip = page.locator("#plot .tip")
    for y, x in product(
        range(40, int(box["height"]), 12), range(40, int(box["width"]), 12)
    ):
        page.mouse.move(box["x"] + x, box["y"] + y)
        if tip.is_visible():
            break
    name, numbers = tip.locator("span").inner_text().split(": ")
    forward, backward, _ = searchers[DEFAULT].similarities(ids[3])
    row = next(n for n, id_ in enumerate(ids) if id_.endswith(name))
    assert numbers == f"looks {forward[row]:.2f}, means {backward[row]:.2f}"
    page.wait_for_function("() => document.querySelector('.tip img').naturalWidth > 50")
    page.mouse.down()
    page.mouse.up()
    page.wait_for_function(
        f"() => new URLSearchParams(location.hash.slice(1)).get('id') === '{ids[row]}'"
    )


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_a_narrow_screen_has_everything_and_no_overflow(visit, ids, scheme):
    tab = visit(phone=True, color_scheme=scheme)
    page = tab.open()
    page.wait_for_selector("#grid .shot.loaded")
    assert not tab.overflows()
    light = page.evaluate(
        "getComputedStyle(document.body).backgroundColor.match(/\\d+/g)[0] > 128"
    )
    assert light is (scheme == "light")
    page.tap(f"#grid [data-id='{ids[1]}'] [data-action=enlarge]")
    page.tap("#lightbox [data-action=plus]")
    page.tap("#lightbox .close")
    assert not tab.overflows()
    page.tap("#tray-search")
    tab.ids("gradient")
    assert not tab.overflows()
    left, right = (
        page.locator(f"#{side}").bounding_box() for side in ("forward", "gradient")
    )
    assert left["x"] + left["width"] <= right["x"]  # still side by side
    assert left["y"] == right["y"]
    assert page.locator("#plot canvas").bounding_box()["width"] > 250


def test_a_server_that_does_not_answer_is_told_and_can_be_asked_again(visit, ids):
    tab = visit()
    tab.expected = ("ERR_FAILED",)
    page = tab.open()
    page.wait_for_selector("#grid .card")
    page.route("**/api/search", lambda route: route.abort())
    page.click(f"#grid [data-id='{ids[0]}'] .shot")
    page.wait_for_selector("#gradient .state.error")
    assert page.inner_text("#gradient .state").startswith("The server does not answer.")
    page.unroute("**/api/search")
    page.click("#gradient .state button")
    assert tab.ids("gradient")


def test_what_the_address_asks_for_and_the_store_does_not_have_is_told(visit):
    tab = visit()
    tab.expected = ("404 (Not Found)",)
    page = tab.open("#id=../../etc/passwd")
    page.wait_for_selector("#forward .state.error")
    assert "no image with this id" in page.inner_text("#forward .state")


def test_thousands_of_pictures_are_a_few_elements(visit, store_folder, serve, tmp_path):
    shutil.copytree(store_folder, tmp_path / "many")
    store = Store.open(tmp_path / "many")
    rows = list(store.rows().values())
    store.write_rows(
        replace(rows[n % len(rows)], id=f"{n:05d}.jpg") for n in range(5000)
    )
    with serve(Gallery(store.folder)) as address:
        tab = visit(address=address)
        page = tab.open()
        page.wait_for_selector("#grid .card")
        assert page.inner_text("#count") == f"{5000:,} pictures"
        for share, cell in ((1, "04999.jpg"), (0, "00000.jpg")):
            page.evaluate(
                f"scrollTo(0, {share} * document.documentElement.scrollHeight)"
            )
            page.wait_for_selector(f"#grid [data-id='{cell}'] .loaded")
            assert page.locator("#grid .card").count() < 150
        tab.context.close()  # before its server: pictures may still be on their way


def test_a_store_of_imported_vectors_has_one_list_and_no_advice_about_a_network(
    visit, store_folder, serve, tmp_path
):
    known = Store(store_folder)
    paths = np.array([row.path for row in known.usable()])
    np.savez(tmp_path / "v.npz", x7=known.to_numpy("x7"), path=paths)
    import_vectors(tmp_path / "v.npz", tmp_path / "imported")
    gallery = Gallery(tmp_path / "imported")
    gallery.uploads.warm_up().join()
    assert gallery.uploads.network_state == "none"
    with serve(gallery) as address:
        tab = visit(address=address)
        page = tab.open()
        page.wait_for_selector("#pick", state="hidden")
        lead = page.inner_text(".lead")
        assert "photo of your own" not in lead
        assert "mean alike" not in lead
        page.click("#grid .card .shot")
        assert len(tab.ids("forward")) == 12
        assert page.locator("#gradient").is_hidden()
        assert "deepfish extract" not in page.inner_text("body")
        room, column = (
            page.locator(name).bounding_box() for name in (".columns", "#forward")
        )
        assert column["width"] > 0.95 * room["width"]  # all of it
        tab.context.close()


def test_a_new_search_ignores_the_filter_which_one_chip_clears(visit, ids, gallery):
    tab = visit()
    label = gallery.collection[4].labels[0]
    page = tab.open(f"#label={label}&text=zzz-no-such-file")
    page.wait_for_selector("#labels .clear")
    page.click("#labels .clear")
    page.wait_for_selector("#grid .card")
    assert tab.asked() == {}
    assert page.locator("#labels .clear").count() == 0
    page = tab.open(f"#label={label}")
    page.wait_for_selector("#grid .card")
    page.click(f"#grid [data-id='{ids[4]}'] .shot")
    assert len(tab.ids("forward")) == len(tab.ids("gradient")) == 12
    assert tab.asked() == {"id": [ids[4]]}
    # hits may be filtered, until the next search
    page.click(f"#labels button[value='{label}']")
    page.wait_for_function(
        "label => location.hash.includes(`label=${label}`)", arg=label
    )
    page.locator("#forward .card .shot").first.click()
    page.wait_for_function("() => !location.hash.includes('label=')")

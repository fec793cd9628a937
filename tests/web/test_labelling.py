"""Labels that are given in the browser: in the log, undone, kept, and not lost between tabs."""

import re
import time
from dataclasses import replace

import pytest
from starlette.testclient import TestClient

from deepfishing.store import Store
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
        id_: labels[gallery.content(id_)[1]]
        for id_ in ids
        if gallery.content(id_)[1] in labels
    }


def test_what_is_confirmed_is_in_the_log_and_can_be_undone(labeller, unlabelled):
    first = labeller.post("/api/labels/next", json={}).json()["id"]
    act = labeller.post(
        "/api/labels", json={"ids": [first], "labels": ["pear"]}
    ).json()["act"]
    assert logged(unlabelled) == {first: ("pear",)}
    second = labeller.post("/api/labels/next", json={}).json()["id"]
    assert second != first
    assert (
        labeller.post("/api/labels/next", json={"skip": [second]}).json()["id"]
        != second
    )
    summary = labeller.get("/api/labels").json()
    assert (summary["labelled"], summary["classes"]) == (
        1,
        [{"name": "pear", "images": 1}],
    )
    assert labeller.post("/api/labels/undo", json={"act": act}).json() == {
        "ids": [first]
    }
    assert logged(unlabelled) == {}
    assert labeller.get("/api/labels/of", params={"id": first}).json()["labels"] is None


def test_writing_is_guarded_as_reading_is(unlabelled):
    asked = {"ids": ["x"], "labels": ["pear"]}
    guarded = TestClient(
        make_app(unlabelled, token=TOKEN), base_url="http://127.0.0.1:8765"
    )
    assert guarded.post("/api/labels", json=asked).status_code == 401
    bearer = {"Authorization": f"Bearer {TOKEN}"}
    assert guarded.post("/api/labels", json=asked, headers=bearer).status_code == 404
    foreign = {**bearer, "Origin": "http://example.com"}
    assert guarded.post("/api/labels", json=asked, headers=foreign).status_code == 403
    assert logged(unlabelled) == {}


def test_a_label_that_somebody_changed_meanwhile_is_not_overwritten(
    labeller, unlabelled
):
    id_ = unlabelled.id_of(0)
    asked = {"ids": [id_], "labels": ["pear"], "seen": None}
    assert labeller.post("/api/labels", json=asked).json()["changed"] == 1
    late = labeller.post("/api/labels", json={**asked, "labels": ["apple"]})
    assert late.status_code == 409
    assert "to: pear" in late.json()["error"]
    assert logged(unlabelled) == {id_: ("pear",)}
    knowing = {"ids": [id_], "labels": ["apple"], "seen": ["pear"]}
    assert labeller.post("/api/labels", json=knowing).json()["changed"] == 1


def test_single_labels_are_added_and_removed_for_a_whole_selection(
    labeller, unlabelled, ids
):
    key = labeller.post("/api/selections", json={"ids": ids[:4]}).json()["selection"]
    labeller.post("/api/labels", json={"ids": ids[:2], "labels": ["pear"]})
    act = labeller.post("/api/labels", json={"selection": key, "add": ["shop"]}).json()
    assert act["changed"] == 4
    assert logged(unlabelled)[ids[0]] == ("pear", "shop")
    assert logged(unlabelled)[ids[3]] == ("shop",)
    labeller.post("/api/labels", json={"selection": key, "remove": ["shop"]})
    assert logged(unlabelled)[ids[0]] == ("pear",)


@pytest.mark.parametrize(
    "bad",
    [
        {"labels": ["a;b"]},
        {"labels": ["a\nb"]},
        {"labels": [" "]},
        {"labels": ["a"], "add": ["b"]},
        {},
        {"labels": ["a"], "selection": "0" * 16},
    ],
)
def test_a_change_that_cannot_be_is_refused_in_one_line(labeller, ids, bad):
    answer = labeller.post("/api/labels", json={"ids": [ids[0]], **bad})
    assert answer.status_code == 400
    assert "\n" not in answer.json()["error"]


def test_classes_are_added_renamed_and_merged(labeller, unlabelled, ids):
    def classes():
        return {
            one["name"]: one["images"]
            for one in labeller.get("/api/labels").json()["classes"]
        }

    labeller.post("/api/labels/classes", json={"add": "plum"})
    labeller.post("/api/labels", json={"ids": ids[:2], "labels": ["pear"]})
    labeller.post("/api/labels", json={"ids": ids[2:3], "labels": ["paer"]})
    assert classes() == {"paer": 1, "pear": 2, "plum": 0}
    act = labeller.post(
        "/api/labels/classes", json={"rename": "paer", "to": "pear"}
    ).json()["act"]
    assert classes() == {"pear": 3, "plum": 0}
    labeller.post("/api/labels/undo", json={"act": act})
    assert classes() == {"paer": 1, "pear": 2, "plum": 0}
    gone = labeller.post("/api/labels/classes", json={"rename": "fig", "to": "pear"})
    assert gone.status_code == 404


def test_labels_csv_goes_out_and_in(labeller, unlabelled, ids):
    labeller.post("/api/labels", json={"ids": ids[:2], "labels": ["pear", "green"]})
    labeller.post("/api/labels", json={"ids": ids[2:3], "labels": []})
    table = labeller.get("/api/labels/labels.csv")
    assert "attachment" in table.headers["content-disposition"]
    before = logged(unlabelled)
    for id_ in ids[:3]:
        labeller.post("/api/labels", json={"ids": [id_], "labels": None})
    csv = {"Content-Type": "text/csv"}
    done = labeller.post(
        "/api/labels/labels.csv", content=table.content, headers=csv
    ).json()
    assert (done["changed"], done["unmatched"]) == (3, 0)
    assert logged(unlabelled) == before
    odd = labeller.post("/api/labels/labels.csv", content=b"x,y\n1,2\n", headers=csv)
    assert odd.status_code == 400
    assert "/tmp" not in odd.json()["error"]
    assert labeller.post("/api/labels/labels.csv", content=b"").status_code == 415


def test_labels_that_come_from_folders_can_be_ignored_and_undone(copied):
    gallery = Gallery(copied.folder)
    client = TestClient(make_app(gallery), base_url="http://127.0.0.1:8765")
    assert client.get("/api/labels").json()["from_folders"] == 32
    assert client.post("/api/labels/next", json={}).json()["id"] is None
    act = client.post("/api/labels/forget-folders", json={}).json()
    assert act["changed"] == 32
    assert client.get("/api/labels").json()["labelled"] == 0
    assert client.post("/api/labels/next", json={}).json()["left"] == 32
    client.post("/api/labels/undo", json={"act": act["act"]})
    assert client.get("/api/labels").json()["labelled"] == 32


def test_the_next_picture_is_one_of_the_filter(labeller, unlabelled, ids):
    key = labeller.post("/api/selections", json={"ids": ids[20:24]}).json()["selection"]
    seen = []
    while True:
        found = labeller.post(
            "/api/labels/next", json={"selection": key, "skip": seen}
        ).json()
        if found["id"] is None:
            break
        assert found["left"] == 4 - len(seen)
        seen.append(found["id"])
    assert sorted(seen) == sorted(ids[20:24])


def wait_until_learned(client, seconds=120):
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        state = client.get("/api/labels/learned").json()
        assert state["state"] != "failed", state
        if state.get("learned") == state["version"] and state["is_whole"]:
            return state
        time.sleep(0.05)
    raise AssertionError(state)


def test_labels_are_learned_from_in_less_than_a_second(
    labeller, unlabelled, ids, store_folder
):
    truth = {row.id: row.labels[0] for row in Store.open(store_folder).rows().values()}
    wait_until_learned(labeller)
    for id_ in ids[:23]:
        labeller.post("/api/labels", json={"ids": [id_], "labels": [truth[id_]]})
    start = time.perf_counter()
    labeller.post("/api/labels", json={"ids": [ids[23]], "labels": [truth[ids[23]]]})
    state = wait_until_learned(labeller)
    assert time.perf_counter() - start < 5  # 0.1 s alone; other tests run beside
    assert state["labelled"] == 24
    low, high = state["estimate"]["interval"]
    assert 0 <= low < state["estimate"]["accuracy"] < high <= 100
    assert state["curve"][-1] == state["estimate"]
    assert state["advice"].startswith("The second half of the labels gained")
    rest = [
        labeller.get("/api/labels/of", params={"id": id_}).json() for id_ in ids[24:]
    ]
    right = [one["suggestions"][0]["name"] == truth[one["id"]] for one in rest]
    assert sum(right) >= 5  # of eight; by chance one or two
    assert all(0 < one["suggestions"][0]["probability"] < 1 for one in rest)


@pytest.mark.browser
def test_keys_label_and_undo_in_two_tabs_and_a_reload_keeps_it(
    browser, serve, unlabelled
):
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
                "n => document.querySelector('#state')?.textContent.startsWith(`${n} `)",
                arg=n,
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
        two.keyboard.press("Escape")  # out of the name of the first class
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


@pytest.mark.browser
def test_a_suggestion_is_taken_with_a_key_and_the_curve_is_drawn(
    visit, serve, unlabelled, ids, store_folder
):
    truth = {row.id: row.labels[0] for row in Store.open(store_folder).rows().values()}
    with serve(unlabelled) as address:
        tab = visit(address=address)
        page = tab.open("#view=label")
        page.wait_for_selector("#photo.loaded")
        for n in range(29):  # so that most classes have three, whatever comes first
            name = page.inner_text("#name")
            page.keyboard.press("/")
            page.keyboard.type(truth[name])
            page.keyboard.press("Enter")
            page.wait_for_function(
                "n => document.querySelector('#state')?.textContent.startsWith(`${n} `)",
                arg=n + 1,
            )
        page.wait_for_selector("#suggestion:not([hidden])")
        page.wait_for_selector("#curve:not([hidden]) svg .dot")
        words = page.inner_text("#curve-words")
        assert re.search(
            r"about \d+ % of the pictures without a label \(\d+ to \d+ %\)", words
        )
        assert page.inner_text("#advice").endswith(".")
        page.wait_for_load_state("networkidle")
        shown, suggested = page.inner_text("#name"), page.inner_text("#suggestion b")
        page.keyboard.press("Enter")
        page.wait_for_function(
            "() => document.querySelector('#state')?.textContent.startsWith('30')"
        )
        assert logged(unlabelled)[shown] == (suggested,)
        page.check("#several")
        name = page.inner_text("#name")
        page.keyboard.press("1")
        page.keyboard.press("2")
        first = page.eval_on_selector_all(
            "#classes [aria-pressed=true]", "all => all.map(one => one.value)"
        )
        assert len(first) == 2
        page.click("#done")
        page.wait_for_function(
            "() => document.querySelector('#state')?.textContent.startsWith('31')"
        )
        assert logged(unlabelled)[name] == tuple(first)
        assert not tab.overflows()
        page.set_viewport_size({"width": 390, "height": 844})
        assert not tab.overflows()
        page.uncheck("#several")
        page.click("#manage summary")
        field = page.locator("#class-list input").first
        old = field.input_value()
        field.fill("renamed")
        field.press("Enter")
        page.wait_for_selector("#classes button[value=renamed]")
        assert old not in {
            label for labels in logged(unlabelled).values() for label in labels
        }
        tab.context.close()


@pytest.mark.browser
def test_the_first_step_is_said_and_the_name_can_be_typed_at_once(
    visit, serve, unlabelled
):
    with serve(unlabelled) as address:
        tab = visit(address=address)
        page = tab.open("#view=label")
        page.wait_for_selector("#first-step:not([hidden])")
        assert not page.is_visible("#none")  # there are no classes yet
        page.wait_for_function("() => document.activeElement.id === 'class-name'")
        first = page.inner_text("#name")
        page.keyboard.type("pear")
        assert page.inner_text("#enter-takes") == "Enter makes the new class pear."
        page.keyboard.press("Enter")
        page.wait_for_function(
            "() => document.querySelector('#state').textContent.startsWith('1 ')"
        )
        assert not page.is_visible("#first-step")
        assert page.is_visible("#none")
        assert not page.is_visible("#next-steps")  # one class cannot be reviewed
        assert logged(unlabelled) == {first: ("pear",)}
        tab.context.close()


@pytest.mark.browser
def test_type_ahead_never_takes_a_class_that_it_has_not_named(
    visit, serve, unlabelled, labeller
):
    names = [f"fruit {number:03d}" for number in range(100)]
    for name in [*names, "apple pie", "pineapple"]:
        labeller.post("/api/labels/classes", json={"add": name})
    with serve(unlabelled) as address:
        tab = visit(address=address)
        page = tab.open("#view=label")
        page.wait_for_selector("#photo.loaded")

        def typed(text, *keys):
            shown = page.inner_text("#name")
            page.keyboard.press("/")
            page.keyboard.type(text)
            for key in keys:
                page.keyboard.press(key)
            said = page.inner_text("#enter-takes")
            page.keyboard.press("Enter")
            page.wait_for_function(
                "name => document.querySelector('#name').textContent !== name",
                arg=shown,
            )
            return said, logged(unlabelled)[shown]

        assert typed("fruit 04") == ("Enter takes fruit 040.", ("fruit 040",))
        assert typed("APPLE P") == ("Enter takes apple pie.", ("apple pie",))
        down = typed("apple", "ArrowDown")
        assert down == ("Enter makes the new class apple.", ("apple",))
        assert typed("apple") == ("Enter takes apple.", ("apple",))
        assert typed("nea") == ("Enter makes the new class nea.", ("nea",))
        page.keyboard.press("/")
        page.keyboard.type("apple")
        page.keyboard.press("Escape")
        assert page.input_value("#class-name") == ""  # all classes are there again
        below = typed("neap", "ArrowDown")
        assert below == ("Enter takes pineapple.", ("pineapple",))
        tab.context.close()


# as a user may type them, or a stranger who means harm
STRANGE = (
    "<img src=x onerror=document.title='run'>",
    "\u05d0\u05d2\u05e1 \u05d9\u05e8\u05d5\u05e7",
    "\u68a8 \U0001f350",
    "a class with a name that is far longer than its button " + "x" * 40,
    "C:\\aux/../pear",
)


@pytest.mark.browser
def test_strange_names_of_classes_are_names_and_nothing_else(
    visit, serve, unlabelled, checks
):
    with serve(unlabelled) as address:
        tab = visit(address=address)
        page = tab.open("#view=label")
        page.wait_for_selector("#photo.loaded")
        page.check("#several")
        shown = page.inner_text("#name")
        for name in STRANGE:
            page.fill("#class-name", name)
            page.keyboard.press("Enter")
        page.click("#done")
        page.wait_for_function(
            "() => document.querySelector('#state').textContent.startsWith('1 ')"
        )
        assert sorted(logged(unlabelled)[shown]) == sorted(STRANGE)
        for view in ("label", "photos", "model"):
            page.goto(f"{address.url}#view={view}")
            page.reload()
            page.wait_for_load_state("networkidle")
            assert page.locator("main img[src=x], nav img[src=x]").count() == 0
            assert page.title() != "run"
            for width in (1280, 390):
                page.set_viewport_size({"width": width, "height": 844})
                assert not tab.overflows(), (view, width)
        page.set_viewport_size({"width": 1280, "height": 844})
        page.goto(f"{address.url}#view=photos")
        page.click("#side .counts button >> nth=1")
        page.wait_for_function(
            "() => document.querySelectorAll('#grid .card').length === 1"
        )
        assert page.inner_text("#grid .card-labels").count(",") == len(STRANGE) - 1
        tab.context.close()


@pytest.mark.browser
def test_a_key_for_the_next_picture_is_not_lost_and_one_pressed_twice_is_one_label(
    visit, serve, unlabelled, labeller
):
    labeller.post("/api/labels/classes", json={"add": "pear"})
    with serve(unlabelled) as address:
        tab = visit(address=address)
        page = tab.open("#view=label")
        page.wait_for_selector("#classes button")
        page.wait_for_selector("#photo.loaded")
        page.evaluate("""() => {
          const ask = window.fetch;
          window.fetch = async (path, options) => {
            if (path === "/api/labels") await new Promise((go) => setTimeout(go, 700));
            return ask(path, options);
          };
        }""")
        first = page.inner_text("#name")
        page.keyboard.press("1")
        page.keyboard.press("1")  # meant for the same picture
        page.wait_for_function(
            "name => document.querySelector('#name').textContent !== name", arg=first
        )
        second = page.inner_text("#name")
        assert logged(unlabelled) == {first: ("pear",)}
        page.keyboard.press("1")  # while the counts of classes are still on their way
        page.wait_for_function(
            "() => document.querySelector('#state').textContent.startsWith('2 ')"
        )
        assert logged(unlabelled) == {first: ("pear",), second: ("pear",)}
        tab.context.close()


@pytest.mark.browser
def test_in_a_mixed_group_those_that_belong_can_be_pressed(
    visit, serve, unlabelled, ids
):
    with serve(unlabelled) as address:
        tab = visit(address=address)
        page = tab.open("#view=label")
        page.wait_for_selector("#photo.loaded")
        shown = page.inner_text("#name")
        page.click("#similar")
        page.wait_for_selector("#together-grid button")
        near = page.eval_on_selector_all(
            "#together-grid button", "all => all.map(one => one.title)"
        )
        assert near[0] == shown  # the most similar ones are first
        page.click("#together-grid button >> nth=0")
        page.click("#together-grid button >> nth=1")
        page.click("#together-swap")
        page.fill("#together-name", "pear")
        page.click("#together-save")
        page.wait_for_selector("#one-by-one:not([hidden])")
        assert logged(unlabelled) == {near[0]: ("pear",), near[1]: ("pear",)}
        tab.context.close()


@pytest.mark.browser
@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("view", ["label", "review"])
def test_views_can_be_read_and_their_parts_have_names(visit, checks, view, scheme):
    tab = visit(color_scheme=scheme)
    page = tab.open(f"#view={view}")
    page.wait_for_selector("#classes button, #summary:has-text('labelled')")
    page.wait_for_load_state("networkidle")
    assert page.evaluate(checks.contrast) == []
    assert page.evaluate(checks.nameless) == []


@pytest.mark.browser
@pytest.mark.parametrize("view", ["label", "review"])
def test_a_finger_has_room_in_every_view(visit, checks, view):
    tab = visit(phone=True)
    page = tab.open(f"#view={view}")
    page.wait_for_selector("#classes button, #summary:has-text('labelled')")
    page.wait_for_load_state("networkidle")
    assert page.evaluate(checks.targets) == []
    assert not tab.overflows()

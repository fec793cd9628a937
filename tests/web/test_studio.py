"""`deepfish studio`: photos are read with progress in the page, cancelled, resumed and shown."""

import os
import shutil
import threading
from pathlib import Path

import pytest
from starlette.testclient import TestClient

from deepfishing.errors import OptionError
from deepfishing.store import Store
from deepfishing.web import opening as module
from deepfishing.web.gallery import Gallery
from deepfishing.web.jobs import CANCELLED, DONE, FAILED
from deepfishing.web.opening import JOB, Opening, Place, find_place


@pytest.fixture
def steps():
    """Events that let a reader go on, one photo after the other."""
    return [threading.Event() for _ in range(3)]


@pytest.fixture
def opening(store_folder, steps):
    """An opening of the store of the tests, whose photos are "read" step by step."""

    def read(progress):
        for done, step in enumerate(steps):
            progress("images", done, len(steps))
            assert step.wait(60)

    place = Place(store_folder, is_beside=True)
    made = Opening("my photos", place, read, lambda: Gallery(store_folder))
    yield made
    for step in steps:
        step.set()
    made.close()


def ask(opening):
    return TestClient(opening, base_url="http://127.0.0.1:8765")


def test_the_page_says_how_far_it_is_and_then_shows_the_photos(opening, steps):
    client = ask(opening)
    opening.start()
    steps[0].set()
    assert client.get("/api/store").json() == {"opening": True}
    assert client.get("/api/images").status_code == 404
    state = client.get("/api/opening").json()
    assert (state["is_ready"], state["name"], state["job"]["total"]) == (
        False,
        "my photos",
        3,
    )
    for step in steps:
        step.set()
    opening.jobs.wait(JOB, 60)
    assert opening.jobs.get(JOB).state == DONE
    assert client.get("/api/opening").json()["is_ready"]
    assert client.get("/api/store").json()["images"] == 32


def test_reading_is_cancelled_shown_in_part_and_resumed(opening, steps):
    client = ask(opening)
    opening.start()
    assert client.post("/api/opening/show").status_code == 409  # it is still reading
    client.post("/api/opening/cancel", json={})
    steps[0].set()
    opening.jobs.wait(JOB, 60)
    assert opening.jobs.get(JOB).state == CANCELLED
    assert client.post("/api/opening/show").json()["is_ready"]
    assert client.get("/api/store").json()["unread"] == 2
    client.post("/api/opening/resume", json={})
    assert client.get("/api/store").json() == {"opening": True}
    for step in steps:
        step.set()
    opening.jobs.wait(JOB, 60)
    assert client.get("/api/store").json()["unread"] == 0


def test_what_cannot_be_read_is_said_in_the_terminal_without_a_path_in_the_page(
    store_folder, caplog
):
    def read(progress):
        raise OptionError("/secret/place is full")

    made = Opening("p", Place(store_folder, True), read, lambda: None)
    made.start()
    made.jobs.wait(JOB, 60)
    assert made.jobs.get(JOB).state == FAILED
    assert "/secret/place" in caplog.text
    assert "/secret/place" not in ask(made).get("/api/opening").text


def test_the_store_is_beside_the_photos_or_in_the_data_folder(tmp_path, monkeypatch):
    photos = tmp_path / "photos"
    photos.mkdir()
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    monkeypatch.setattr(module.sys, "platform", "linux")
    assert find_place(photos) == Place(photos / ".deepfishing", True)
    can = os.access
    monkeypatch.setattr(
        module.os,
        "access",
        lambda path, mode: Path(path).parent.name != "photos" and can(path, mode),
    )
    place = find_place(photos)
    assert not place.is_beside
    assert place.store.parent == tmp_path / "data" / "deepfishing"
    assert place == find_place(photos)
    other = tmp_path / "else" / "photos"
    other.mkdir(parents=True)
    assert find_place(other).store != place.store


def test_a_link_a_store_and_a_file_are_no_folders_of_photos(tmp_path, store_folder):
    with pytest.raises(OptionError, match="serve"):
        find_place(store_folder)
    (tmp_path / "a.txt").write_text("a")
    with pytest.raises(OptionError, match="must be a folder"):
        find_place(tmp_path / "a.txt")
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "p").mkdir()
    (tmp_path / "p" / ".deepfishing").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(OptionError, match="got a link"):
        find_place(tmp_path / "p")


@pytest.mark.browser
def test_the_page_shows_progress_cancels_and_goes_on(visit, serve, opening, steps):
    with serve(opening) as address:
        opening.start()
        tab = visit(address=address)
        page = tab.open()
        steps[0].set()
        page.wait_for_function(
            "() => document.querySelector('.opening')?.textContent.includes('1 of 3')"
        )
        assert page.locator("progress").get_attribute("value") == "1"
        assert not page.is_visible("#views")  # there is nothing to see yet
        page.click("text=Cancel")
        steps[1].set()
        page.click("text=Show what has been read")
        page.wait_for_selector("#grid .shot.loaded")
        assert "1 photos" in page.inner_text(
            "#toast"
        ) or "have not been read" in page.inner_text("#toast")
        page.click("#toast button")
        page.wait_for_selector(".opening progress")
        for step in steps:
            step.set()
        page.wait_for_selector("#grid .shot.loaded")
        tab.context.close()


def test_the_command_reads_a_folder_and_keeps_its_store_beside(
    tmp_path, store_folder, deepfish, monkeypatch
):
    """The photos are only read; what is made of them lies in .deepfishing."""
    photos = tmp_path / "photos"
    photos.mkdir()
    for row in list(Store.open(store_folder).rows().values())[:3]:
        shutil.copy(row.path, photos / Path(row.path).name)
    before = {path.name: path.read_bytes() for path in photos.iterdir()}
    seen = []

    def run(page, address, ready):
        address.listening.close()
        ready()
        page.start()
        page.jobs.wait(JOB, 120)
        seen.append(page.state())
        page.close()

    monkeypatch.setattr("deepfishing.cli.pages.run", run)
    done = deepfish("studio", str(photos), "--no-open", "--weights", "random")
    assert done.code == 0, done.err
    assert str(photos / ".deepfishing") in done.out
    assert seen[0]["is_ready"]
    after = {
        path.name: path.read_bytes() for path in photos.iterdir() if path.is_file()
    }
    assert after == before
    assert len(Store.open(photos / ".deepfishing").rows()) == 3

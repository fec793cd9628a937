"""Messages of failed work name no path of the server."""

import time

import pytest
from starlette.testclient import TestClient

from deepfishing.errors import StoreError
from deepfishing.web.app import make_app
from deepfishing.web.gallery import Gallery
from deepfishing.web.jobs import Jobs
from deepfishing.web.messages import message_for_page

PATHS = [
    "/srv/photos is full",
    "cannot read '/srv/my photos/a.jpg'",
    "cannot write (~/x.json)",
    r"C:\Users\anna is not a store",
    r"\\server\share cannot be read",
    "photos/store has no factors",
]


@pytest.mark.parametrize("message", PATHS)
def test_a_message_with_a_path_is_replaced_and_printed_in_the_terminal(message, caplog):
    shown = message_for_page(message, "the work")
    assert shown == "the work failed; the terminal of the server says why"
    assert message in caplog.text


@pytest.mark.parametrize(
    "message",
    [
        "labels must be of two classes, got 1",
        "the work ended with code 3; look again",
        "ratio 1:2, 50 % of 3,000 photos; run `deepfish train`",
    ],
)
def test_a_message_without_a_path_is_the_cause_in_one_line(message):
    assert message_for_page(message.replace(" ", "\n", 1), "the work") == message


def test_the_folder_of_the_store_has_a_name(tmp_path):
    folders = {"the store": tmp_path}
    message = f"x7 is missing in {tmp_path}; extract again"
    shown = message_for_page(message, "the work", folders)
    assert shown == "x7 is missing in the store; extract again"
    inside = message_for_page(
        f"{tmp_path}/x7/a.parquet is damaged", "the work", folders
    )
    assert str(tmp_path) not in inside
    assert "a.parquet" not in inside


def test_a_failed_job_names_no_path(tmp_path):
    jobs = Jobs({"the store": tmp_path})

    def fail(progress):
        raise StoreError(f"{tmp_path} was written by a newer version; update")

    jobs.start("train", fail)
    jobs.wait("train", 60)
    error = jobs.get("train").as_dict()["error"]
    assert error == "the store was written by a newer version; update"


def test_training_on_a_broken_store_names_no_path_on_the_page(copied):
    gallery = Gallery(copied.folder)
    client = TestClient(make_app(gallery), base_url="http://127.0.0.1:8765")
    for file in copied.folder.rglob("*.parquet"):
        if file.name != "index.parquet":
            file.write_bytes(b"broken")
    client.post("/api/model/train", json={"recipe": "x7"})
    until = time.monotonic() + 120
    while time.monotonic() < until:
        job = client.get("/api/jobs", params={"name": "train"}).json()
        if job["state"] != "running":
            break
        time.sleep(0.1)
    assert job["state"] == "failed"
    assert job["error"]
    assert str(copied.folder.parent) not in job["error"]
    assert ".parquet" not in job["error"]

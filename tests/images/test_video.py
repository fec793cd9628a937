"""Frames of a video are images like others: listed without decoding, decoded when they are read."""

import sys

import av
import numpy as np
import pytest
from PIL import Image

from deepfishing import Searcher, Store, extract_to, find_images
from deepfishing.errors import DatasetError, MissingDependencyError, OptionError
from deepfishing.images.item import ImageBytes
from deepfishing.images.preprocess import open_image


@pytest.fixture
def video(tmp_path):
    """Five seconds at ten frames a second; the grey says which frame it is."""
    path = tmp_path / "clip.mp4"
    with av.open(str(path), "w") as file:
        stream = file.add_stream("mpeg4", rate=10)
        stream.width, stream.height, stream.pix_fmt, stream.gop_size = (
            64,
            48,
            "yuv420p",
            12,
        )
        stream.bit_rate = 20_000_000
        for number in range(50):
            pixels = np.full((48, 64, 3), 5 * number, np.uint8)
            file.mux(stream.encode(av.VideoFrame.from_ndarray(pixels, format="rgb24")))
        file.mux(stream.encode())
    return path


def shown(items):
    """Which frame each item is, by its grey."""
    return [round(float(np.asarray(open_image(item)).mean()) / 5) for item in items]


@pytest.mark.parametrize(
    ("every", "frames"),
    [(1.0, [0, 10, 20, 30, 40]), (2.5, [0, 25]), (0.2, range(0, 50, 2))],
)
def test_the_first_frame_of_every_interval_in_any_order(video, every, frames):
    items = find_images(video, every=every)
    assert shown(items) == list(frames)
    assert shown(reversed(items)) == list(frames)[::-1]
    assert [item.id for item in items[:2]] == ["clip.mp4/t=0", f"clip.mp4/t={every:g}"]


def test_all_frames(video):
    assert shown(find_images(video, every=0)) == list(range(50))


def test_a_store_of_frames_is_searched_with_pictures_and_not_computed_twice(
    video, toy_network, tmp_path
):
    def run():
        return extract_to(tmp_path / "s", video, network=toy_network, features="x7")

    assert run().computed == 5
    assert run().computed == 0
    store = Store.open(tmp_path / "s")
    hits = Searcher(store, by="x7").search("clip.mp4/t=2", k=2)
    assert hits._repr_html_().count("<img") == 2
    photo = Searcher(store, by="x7").photo("clip.mp4/t=3")
    assert shown([ImageBytes("frame", photo)]) == [30]


def test_the_command_takes_a_video_and_an_interval(video, deepfish):
    ran = deepfish("extract", video, "store", "--features", "x7", "--every", "2")
    assert ran.code == 0, ran.err
    assert "3 images" in ran.out


def test_a_pattern_of_videos(video):
    assert len(find_images(f"{video.parent}/*.mp4")) == 5


def test_what_is_no_video_is_one_line(tmp_path, monkeypatch, video):
    (tmp_path / "broken.mp4").write_bytes(b"nothing of the kind" * 50)
    Image.new("RGB", (9, 9)).save(tmp_path / "one.png")
    with pytest.raises(DatasetError, match=r"video cannot be read: .*broken\.mp4"):
        find_images(tmp_path / "broken.mp4")
    with pytest.raises(OptionError, match="seconds, 0 for all frames, got -1"):
        find_images(video, every=-1)
    monkeypatch.setitem(sys.modules, "av", None)
    with pytest.raises(
        MissingDependencyError, match=r"needs the package av; run .*video"
    ):
        find_images(video)


def test_a_video_that_is_cut_short_has_frames_that_are_left_out(
    video, toy_network, tmp_path
):
    content = bytearray(video.read_bytes())
    middle = len(content) // 2
    content[middle : middle + 300] = bytes(300)
    video.write_bytes(content)
    done = extract_to(tmp_path / "s", video, network=toy_network, features="x7")
    assert len(done.keys) == 5

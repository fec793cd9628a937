"""What watches over the inputs sees what it must see."""

import os
import random
import socket
import subprocess
import sys

import pytest
from fuzz.mutate import Mutator
from fuzz.parts import join, split
from fuzz.rule import BrokenRuleError, Watch, obey
from fuzz.target import Target

from deepfishing.errors import StoreError
from fuzz import rule

WATCH = Watch(".")


@pytest.fixture
def watch(tmp_path, monkeypatch):
    place = tmp_path / "place"
    place.mkdir()
    monkeypatch.setattr(WATCH, "folder", str(place.resolve()))
    return WATCH


class AsItIsError(StoreError):
    """An error that shows its text as it is."""

    __str__ = Exception.__str__


def test_an_error_of_the_package_in_one_line_is_fine_and_all_else_is_not():
    def fails(error):
        def read():
            raise error

        return read

    obey(fails(StoreError("one line")))
    obey(lambda: 3)
    for text in ("two\nlines", "two\u2028lines", "two\x85lines", ""):
        with pytest.raises(BrokenRuleError, match="one line"):
            obey(fails(AsItIsError(text)))
        if text:
            obey(fails(StoreError(text)))  # which makes one line of it
    with pytest.raises(KeyError):
        obey(fails(KeyError("settings")))


@pytest.mark.parametrize(
    "act",
    [
        lambda up: (up / "new").write_text("x"),
        lambda up: os.open(up / "old", os.O_RDWR),
        lambda up: (up / "old").unlink(),
        lambda up: (up / "old").rename(up / "place" / "new"),
        lambda up: (up / "place" / "here").rename(up / "new"),
        lambda up: (up / "folder").mkdir(),
        lambda up: (up / "link").symlink_to("/etc"),
        lambda up: (up / "place" / "out" / "new").write_text("x"),
        lambda up: subprocess.run([sys.executable, "-c", ""]),
        lambda up: os.system("true"),
    ],
)
def test_what_an_input_must_not_do_is_stopped_even_if_the_reader_hides_it(
    watch, tmp_path, act
):
    (tmp_path / "old").write_text("old")
    (tmp_path / "place" / "here").write_text("here")
    (tmp_path / "place" / "out").symlink_to(tmp_path)

    def read(data):
        try:
            act(tmp_path)
        except Exception:
            return

    with pytest.raises(BrokenRuleError, match="must not"):
        watch.run(read, b"")
    assert (tmp_path / "old").read_text() == "old"
    assert sorted(p.name for p in tmp_path.iterdir()) == ["old", "place"]


def test_what_an_input_does_in_its_folder_is_its_own(watch, tmp_path):
    def read(data):
        (tmp_path / "place" / "a").write_bytes(data)
        (tmp_path / "place" / "a").rename(tmp_path / "place" / "b")

    watch.run(read, b"x")
    assert (tmp_path / "place" / "b").read_bytes() == b"x"


def test_the_network_is_not_there(watch):
    with pytest.raises(OSError, match="no network"):
        watch.run(
            lambda data: socket.create_connection(("127.0.0.1", 9), timeout=1), b""
        )


def test_too_much_time_and_too_much_memory_are_seen(watch, monkeypatch):
    monkeypatch.setattr(rule, "MOST_SECONDS", -1.0)
    with pytest.raises(BrokenRuleError, match=r"at most -1\.0 s"):
        watch.run(lambda data: None, b"")
    monkeypatch.undo()
    sizes = iter((0, 3 << 30))
    monkeypatch.setattr(rule, "_memory", lambda: next(sizes))
    with pytest.raises(BrokenRuleError, match="memory"):
        watch.run(lambda data: None, b"")


def test_the_same_numbers_change_an_input_in_the_same_way():
    target = Target(
        "", lambda folder: lambda data: None, list, parts=2, tokens=(b"word",)
    )
    seeds = [join([b'{"a": [1, 2]}\n{"a": 3}', b"PK\x03\x04" + bytes(range(60))])]
    mutator = Mutator(target, seeds)
    once, again = (
        [mutator(seeds[0], random.Random(n)) for n in range(400)] for _ in range(2)
    )
    assert once == again
    assert len(set(once)) > 350
    # one file each
    assert sum(split(data, 2)[1] == split(seeds[0], 2)[1] for data in once) > 100


def test_files_come_apart_as_they_were_joined_and_any_bytes_do(rng):
    for _ in range(200):
        parts = [rng.bytes(int(n)) for n in rng.integers(0, 300, 3)]
        assert split(join(parts), 3) == parts
        assert len(split(rng.bytes(int(rng.integers(0, 30))), 4)) == 4

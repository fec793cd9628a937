import json
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import pytest

from deepfishing.errors import OptionError, StoreError
from deepfishing.store import Store
from deepfishing.store.label_log import LOG, Change, LabelLog

APPEND_MANY = """
import sys
from deepfishing.store.label_log import Change, LabelLog
log = LabelLog.open(sys.argv[1])
for number in range(20):
    log.append([Change(f"{sys.argv[2]}-{number}", "p", ("cat",))], origin="test")
    log.edit({"shared": "p"}, add=[f"{sys.argv[2]}-{number}"], origin="test")
"""


def change(content, *labels):
    return Change(content, f"{content}.jpg", labels)


@pytest.fixture
def log(tmp_path):
    return LabelLog.open(tmp_path)


def test_an_empty_log_makes_no_file(log, tmp_path):
    assert log.current() == {}
    assert log.undo(origin="test") is None
    assert not (tmp_path / LOG).exists()


def test_labels_are_there_when_the_log_is_opened_again(log, tmp_path):
    log.append(
        [change("a", "cat", "indoors"), change("b")], origin="test", author="ann"
    )
    log.append([Change("c", "c.jpg", None)], origin="test")
    again = LabelLog.open(tmp_path)
    assert again.current() == {"a": ("cat", "indoors"), "b": (), "c": None}
    assert again.history()[0].author == "ann"


def test_a_line_says_who_changed_which_image_from_what_to_what(log, tmp_path):
    act = log.append(
        [change("a", "cat")], origin="test", author="ann", base={"a": ("dog",)}
    )
    line = json.loads((tmp_path / LOG).read_text())
    assert line["id"] == act.id
    assert (line["origin"], line["author"]) == ("test", "ann")
    assert line["time"].endswith("+00:00")
    expected = {"content": "a", "path": "a.jpg", "before": ["dog"], "after": ["cat"]}
    assert line["changes"] == [expected]


def test_what_changes_nothing_is_not_written(log):
    assert log.append([change("a", "cat")], origin="test") is not None
    assert log.append([change("a", "cat")], origin="test") is None
    assert len(log.history()) == 1


def test_acts_are_undone_one_after_the_other_and_done_again(log):
    log.append([change("a", "cat")], origin="test")
    log.append([change("a", "dog"), change("b", "dog")], origin="test")
    assert log.undo(origin="test").changes[0].labels == ("dog",)
    assert log.current() == {"a": ("cat",)}
    log.undo(origin="test")
    assert log.current() == {}
    assert log.undo(origin="test") is None
    assert log.redo(origin="test").changes[0].labels == ("cat",)
    assert log.redo(origin="test").changes[0].labels == ("dog",)
    assert log.current() == {"a": ("dog",), "b": ("dog",)}
    assert log.redo(origin="test") is None


def test_an_older_act_is_undone_by_its_id_and_later_ones_keep_their_effect(log):
    first = log.append([change("a", "cat"), change("b", "cat")], origin="test")
    log.append([change("a", "dog")], origin="test")
    log.undo(first.id, origin="test")
    assert log.current() == {"a": ("dog",)}
    with pytest.raises(OptionError, match="an act to undo must be in"):
        log.undo(first.id, origin="test")


def test_nothing_is_redone_after_a_new_act(log):
    log.append([change("a", "cat")], origin="test")
    log.undo(origin="test")
    log.append([change("b", "cat")], origin="test")
    assert log.redo(origin="test") is None


def test_labels_are_added_and_removed_on_top_of_those_of_the_source(log):
    images = {"a": "a.jpg", "b": "b.jpg"}
    log.edit(images, add=["wet"], origin="test", base={"a": ("cat",)})
    assert log.current() == {"a": ("cat", "wet"), "b": ("wet",)}
    log.edit(images, remove=["wet"], origin="test")
    assert log.current() == {"a": ("cat",), "b": ()}


def test_a_class_is_renamed_everywhere_and_merged(log):
    log.append([change("a", "kitty", "cat"), change("b", "kitty")], origin="test")
    log.rename_class("kitty", "cat", origin="test")
    assert log.current() == {"a": ("cat",), "b": ("cat",)}
    assert log.apply("elsewhere", ("kitty", "dog")) == ("cat", "dog")
    log.rename_class("cat", "felis", origin="test")
    assert log.apply("elsewhere", ("kitty",)) == ("felis",)
    assert log.classes() == ("felis",)
    log.append([change("c", "kitty")], origin="test")  # a new class of the old name
    assert log.current()["c"] == ("kitty",)
    log.undo(origin="test")
    log.undo(origin="test")
    log.undo(origin="test")
    assert log.current() == {"a": ("kitty", "cat"), "b": ("kitty",)}
    assert log.apply("elsewhere", ("kitty",)) == ("kitty",)


def test_a_class_may_be_declared_before_an_image_has_it(log):
    log.add_class("zebra", origin="test")
    assert log.add_class("zebra", origin="test") is None
    assert log.classes([("cat",), None]) == ("cat", "zebra")


def test_not_labelled_takes_a_label_of_the_source_away(log):
    log.append([Change("a", "a.jpg", None)], origin="test")
    assert log.apply("a", ("cat",)) is None
    assert log.apply("b", ("cat",)) == ("cat",)


@pytest.mark.parametrize("label", ["", "  ", "a;b", "a\nb"])
def test_labels_that_a_table_cannot_hold_are_refused(log, label):
    with pytest.raises(OptionError, match="a label must be a name"):
        log.append([change("a", label)], origin="test")
    assert log.current() == {}


def test_a_torn_last_line_does_not_count_and_the_next_writer_cuts_it_off(log, tmp_path):
    log.append([change("a", "cat")], origin="test")
    log.append([change("a", "dog")], origin="test")
    content = (tmp_path / LOG).read_bytes()
    for cut in (1, 2, 50, len(content.splitlines()[1])):
        (tmp_path / LOG).write_bytes(content[:-cut])
        fresh = LabelLog.open(tmp_path)
        assert fresh.current() == {"a": ("cat",)}
        fresh.append([change("b", "cow")], origin="test")
        assert LabelLog.open(tmp_path).current() == {"a": ("cat",), "b": ("cow",)}


def test_a_changed_line_is_an_error_that_names_it(log, tmp_path):
    log.append([change("a", "cat")], origin="test")
    log.append([change("b", "cat")], origin="test")
    lines = (tmp_path / LOG).read_text().splitlines()
    for damaged in (lines[0].replace("cat", "cow"), "not JSON", "[1]", "{}"):
        (tmp_path / LOG).write_text(f"{damaged}\n{lines[1]}\n")
        with pytest.raises(StoreError, match="line 1 of"):
            LabelLog.open(tmp_path)


def test_an_open_log_sees_what_others_write(log, tmp_path):
    other = LabelLog.open(tmp_path)
    log.append([change("a", "cat")], origin="test")
    assert other.current() == {"a": ("cat",)}
    log.undo(origin="test")
    assert other.current() == {}


def test_several_processes_lose_nothing_of_each_other(log, tmp_path):
    command = [sys.executable, "-c", APPEND_MANY, str(tmp_path)]
    writers = [subprocess.Popen([*command, name]) for name in ("one", "two")]
    while any(writer.poll() is None for writer in writers):
        log.current()  # a reader never sees half of a line
    assert [writer.returncode for writer in writers] == [0, 0]
    current = log.current()
    assert len(current) == 41
    assert len(current["shared"]) == 40


def test_several_threads_may_share_a_log(log):
    def add(number):
        log.edit({"a": "a.jpg"}, add=[f"class {number}"], origin="test")

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(add, range(40)))
    assert len(log.current()["a"]) == 40


def test_labels_can_be_written_while_features_are(log, tmp_path):
    store = Store(tmp_path, {"network": "toy"})
    with store.writing():
        log.append([change("a", "cat")], origin="test")
    assert LabelLog.open(tmp_path).current() == {"a": ("cat",)}


def test_a_log_that_is_a_link_or_a_pipe_is_refused(tmp_path):
    (tmp_path / "outside").write_text("")
    (tmp_path / LOG).symlink_to(tmp_path / "outside")
    with pytest.raises(StoreError, match="regular file"):
        LabelLog.open(tmp_path)
    (tmp_path / LOG).unlink()
    os.mkfifo(tmp_path / LOG)
    with pytest.raises(StoreError, match="regular file"):
        LabelLog.open(tmp_path)


def test_a_failed_write_leaves_the_log_as_it_was(log, tmp_path, monkeypatch):
    log.append([change("a", "cat")], origin="test")

    def full(number):
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full)
        with pytest.raises(StoreError, match="No space left"):
            log.append([change("b", "dog")], origin="test")
    assert log.current() == {"a": ("cat",)}
    log.append([change("c", "dog")], origin="test")
    assert LabelLog.open(tmp_path).current() == {"a": ("cat",), "c": ("dog",)}


def test_the_hash_of_pixels_is_kept_and_no_act_that_is_undone(log):
    log.append([change("a", "cat")], origin="test")
    log.record_pixels({"a": "p1"}, origin="test")
    assert log.record_pixels({"a": "p1"}, origin="test") is None
    assert log.pixels() == {"a": "p1"}
    assert log.undo(origin="test").kind == "set"
    assert log.pixels() == {"a": "p1"}

"""The long run in small: child processes that count, find, die and are started again."""

import json

import pytest

from fuzz import __main__ as runner

PLANTED = """
import os, sys
from fuzz.target import Target

def prepare(folder):
    def run(data):
        if data[:1] == b"a":
            raise KeyError("planted")
        if data[:1] == b"b" and sys.argv[3] == "0":  # with the first seed only
            os.kill(os.getpid(), 11)
    return run

TARGETS = {"faulty": Target("bytes", prepare, lambda: [b"a", b"b", b"c"])}
"""


@pytest.fixture
def needs_atheris():
    pytest.importorskip(
        "atheris", reason="pip install -e '.[fuzz]' for runs guided by coverage"
    )


@pytest.mark.slow
@pytest.mark.usefixtures("needs_atheris")
def test_an_exception_and_the_death_of_a_process_are_finds_and_the_run_goes_on(
    tmp_path, monkeypatch
):
    (tmp_path / "planted.py").write_text(PLANTED)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    outcome = runner.run("planted:faulty", 2000, 0, tmp_path / "kept")
    assert outcome.inputs == 2000
    assert len(outcome.finds) == 2  # many inputs raise, from one line
    assert "KeyError('planted')" in outcome.finds[0]
    assert "the process ended with" in outcome.finds[1]
    fact = json.loads((tmp_path / "kept" / "finds.jsonl").read_text())
    assert (tmp_path / "kept" / fact["input"]).read_bytes()[:1] == b"a"
    assert [p.read_bytes()[:1] for p in (tmp_path / "kept").glob("crash-*")] == [b"b"]
    assert not (tmp_path / "kept" / "scratch").exists()
    assert len(str(outcome)) <= 80


@pytest.mark.slow
@pytest.mark.usefixtures("needs_atheris")
def test_all_inputs_are_counted(tmp_path):
    outcome = runner.run("fetch-notes", 500, 0, tmp_path / "kept")
    assert (outcome.inputs, outcome.finds) == (500, ())


@pytest.mark.slow
@pytest.mark.usefixtures("needs_atheris")
def test_the_page_has_the_last_run_of_each_target(tmp_path, monkeypatch):
    monkeypatch.setattr(runner, "KEPT", tmp_path)
    page = tmp_path / "RESULTS.md"
    monkeypatch.setattr(runner, "RESULTS", page)
    monkeypatch.setattr(runner, "NAMES", ("fetch-notes", "recipe"))

    def run(*arguments):
        monkeypatch.setattr("sys.argv", ["fuzz", *arguments])
        return runner.main()

    assert run("fetch-notes", "--inputs", "60") == 0
    assert run("recipe", "--inputs", "50") == 0
    assert not page.exists()  # of another number
    kept = tmp_path / "fetch-notes" / "outcome.json"
    kept.write_text(kept.read_text().replace("[]", '["a find"]'))
    assert run("recipe", "--inputs", "60") == 0
    assert "- fetch-notes: a find" in page.read_text()
    assert run("fetch-notes", "--inputs", "60") == 0
    text = page.read_text()
    assert "find" not in text.partition("|---")[2]
    assert text.count("| 60 |") == 2


def test_a_find_can_be_run_again(tmp_path, capsys, monkeypatch):
    (tmp_path / "planted.py").write_text(PLANTED)
    (tmp_path / "find").write_bytes(b"a")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(KeyError, match="planted"):
        runner.replay("planted:faulty", tmp_path / "find")
    (tmp_path / "find").write_bytes(b"c")
    runner.replay("planted:faulty", tmp_path / "find")
    assert "one line" in capsys.readouterr().out


def test_an_unknown_target_is_told_with_all_there_are(monkeypatch, capsys):
    monkeypatch.setattr("sys.argv", ["fuzz", "cafe"])
    with pytest.raises(SystemExit):
        runner.main()
    assert "TARGET must be one of caffemodel, prototxt" in capsys.readouterr().err

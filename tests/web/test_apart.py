"""Work in a process of its own: its answer, its errors, and its end when somebody cancels it."""

import subprocess
import sys
import time

import pytest

from deepfishing.errors import StoreError
from deepfishing.learn.label_pool import open_label_pool
from deepfishing.store import Store
from deepfishing.store.manifest import Row
from deepfishing.util.progress import silent
from deepfishing.web import apart
from deepfishing.web.apart import run_apart


@pytest.fixture
def store(tmp_path, rng):
    keys = [f"{number:064x}" for number in range(20)]
    store = Store(tmp_path / "store", {"network": "toy"}, "float32")
    store.append(keys, {"x7": rng.normal(size=(20, 6))})
    store.write_rows(Row(key, f"{key}.jpg", key) for key in keys)
    return store


def test_a_task_reports_its_progress_and_its_answer(store):
    stages = []
    done = run_apart(
        "label pool", [str(store.folder)], lambda *said: stages.append(said)
    )
    assert done == {"answer": {"photos": 20}}
    assert len(open_label_pool(store)) == 20
    assert "reading" in {stage for stage, *_ in stages}


def test_an_error_is_one_line(tmp_path):
    with pytest.raises(StoreError, match=r"must hold store\.json") as error:
        run_apart("label pool", [str(tmp_path / "nothing")], silent)
    assert "\n" not in str(error.value)


class StopError(Exception):
    pass


@pytest.fixture
def replaced(monkeypatch):
    """Run other code in place of the task; the list of its processes."""

    def run(code):
        processes, start = [], subprocess.Popen

        def popen(command, **options):
            processes.append(start([sys.executable, "-c", code], **options))
            return processes[-1]

        monkeypatch.setattr(apart.subprocess, "Popen", popen)
        return processes

    return run


def test_work_that_is_cancelled_ends_at_once(replaced, store):
    line = '{"stage": "x", "done": 0, "total": 1}'
    processes = replaced(f"import time; print({line!r}, flush=True); time.sleep(600)")
    begin = time.monotonic()

    def progress(stage, done, total):
        if stage == "x":
            raise StopError

    with pytest.raises(StopError):
        run_apart("label pool", [str(store.folder)], progress)
    assert time.monotonic() - begin < 60
    assert processes[0].poll() is not None


def test_an_answer_counts_although_its_process_is_slow_to_end(
    replaced, store, monkeypatch
):
    monkeypatch.setattr(apart, "END_SECONDS", 0.2)
    line = '{"answer": 1}'
    processes = replaced(
        f"import os, time; print({line!r}, flush=True); os.close(1); time.sleep(600)"
    )
    assert run_apart("label pool", [str(store.folder)], silent) == {"answer": 1}
    assert processes[0].poll() is not None


def test_work_ends_with_the_server():
    code = (
        "import threading, time\n"
        "from deepfishing.web import work\n"
        "threading.Thread(target=work._end_with_the_server).start()\n"
        "time.sleep(600)"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE
    ) as process:
        process.stdin.close()  # as the system does when the server is killed
        assert process.wait(120) == 1

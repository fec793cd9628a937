"""Ten seconds of the load of benchmarks/load.py, which runs for ten minutes, and what it found."""

import asyncio
import json
import socket
import subprocess
import sys
import threading
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from deepfishing.core.features import Factor
from deepfishing.extraction.batches import Batch
from deepfishing.web import server
from deepfishing.web.guard import Gate
from deepfishing.web.photos import Uploads

httpx = pytest.importorskip("httpx")

LOAD = Path(__file__).parents[2] / "benchmarks" / "load.py"


@pytest.fixture(scope="module")
def facts(tmp_path_factory):
    page = tmp_path_factory.mktemp("load") / "LOAD.md"
    command = [sys.executable, LOAD, "--minutes", str(10 / 60), "--requests", "300"]
    command += ["--images", "24", "--json", "--out", page]
    ran = subprocess.run(command, capture_output=True, text=True, check=False)
    assert ran.stdout, ran.stderr
    return json.loads(ran.stdout) | {"page": page.read_text()}


@pytest.mark.slow
def test_mixed_load_gets_the_expected_answers_and_no_other(facts):
    assert facts["failed"] == []
    assert facts["dropped"] == []
    assert facts["torn"] > 0
    assert len(facts["times"]) == 9  # kinds of requests, all of which came
    assert all(kind in facts["page"] for kind in facts["times"])


@pytest.mark.slow
@pytest.mark.parametrize("what", ["files", "threads"])
def test_load_leaves_no_open_files_and_no_threads_behind(facts, what):
    assert facts["after"][what] <= facts["before"][what] + 8  # what pools may differ by
    assert facts["requests"] > 100


@pytest.mark.slow
def test_load_leaves_no_memory_in_use_behind(facts):
    """A request that is kept has dozens of Python's blocks. The last 64 photos are kept."""
    kept = facts["after"]["blocks"] - facts["before"]["blocks"]
    assert kept < 64 * 40 + facts["requests"] / 10
    if facts["after"]["bytes"] is not None:
        assert facts["after"]["bytes"] < 1.05 * facts["before"]["bytes"]


@pytest.mark.slow
def test_ctrl_c_under_load_ends_the_server_without_a_word(facts):
    assert (facts["end_code"], facts["end_printed"]) == (0, "")


def test_the_network_is_made_ready_once_for_all_photos(monkeypatch, jpeg):
    """Once for each took ten times as long, and memory that was slowly given back."""
    made = []

    class Extractor:
        def __init__(self, *given, **options):
            made.append(options)

        def __call__(self, images):
            yield Batch([0], {"x7": np.ones((1, 2))}, {})

    monkeypatch.setattr("deepfishing.extraction.extract.Extractor", Extractor)
    monkeypatch.setattr(Uploads, "_loaded_network", None)
    # nothing is kept of it
    settings = SimpleNamespace(network=SimpleNamespace(dtype="float64"))
    read = SimpleNamespace(from_dict=lambda facts: settings)
    monkeypatch.setattr("deepfishing.search.searcher.Settings", read)
    uploads = Uploads({}, [Factor("input", 8)])
    keys = {uploads.add(jpeg + bytes([number])) for number in range(5)}
    assert len(keys) == 5
    assert len(made) == 1


def test_a_gate_works_in_threads_of_its_own():
    """In more threads than need be, each would hold on to as much memory as the others."""

    async def work():
        gates = [Gate(running=1, waiting=9), Gate(running=2, waiting=9)]
        return [
            set(
                await asyncio.gather(*(gate.run(threading.get_ident) for _ in range(9)))
            )
            for gate in gates
        ]

    one, two = asyncio.run(work())
    assert len(one) == 1
    assert len(two) <= 2
    assert one.isdisjoint(two)


def test_an_answer_does_not_wait_for_the_clients_word(served, monkeypatch):
    """Head and body are sent one after the other; together they took 40 ms."""
    seen = []
    made = server.H11Protocol.connection_made

    def look(self, transport):
        option = socket.IPPROTO_TCP, socket.TCP_NODELAY
        seen.append(transport.get_extra_info("socket").getsockopt(*option))
        made(self, transport)

    monkeypatch.setattr(server.H11Protocol, "connection_made", look)
    assert httpx.get(f"http://127.0.0.1:{served}/", timeout=300).status_code == 200
    assert len(seen) == 1
    assert seen[0]

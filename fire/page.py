"""Readers and writers on the page at the same time: nothing that was confirmed is lost.

    python -m fire.page FOLDER [--minutes 10] [--readers 20] [--writers 5] [--seed 0]

`deepfish serve` shows a made-up store of `ROWS` photos. Readers page through it, filter, search and
count labels, without pauses. Writers label photos, one or fifty at a time, some of them photos that
the others label, too, and undo some of what they did. At the end the log must have every act that
was confirmed and no other, in the order of each writer, and every photo that only one writer
touched the label that this writer gave it last. One JSON line for each kind of request.
"""

from __future__ import annotations

import argparse
import json
import socket
import subprocess
import sys
import threading
import time
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import numpy as np

from deepfishing.core.rank_one import l2_normalize
from deepfishing.store import Row, Store
from deepfishing.store.label_log import UNDO, LabelLog

ROWS = 5000
SHARED = 20  # photos that all writers label
CLASSES = ("apple", "pear", "melon", "orange")
SETTINGS = {"network": "toy", "layers": {"8": "fc"}, "head": "softmax", "tau": 2.0}
SECONDS = 300  # until an answer must have come
UNDONE = 0.1  # share of what a writer does that it undoes


def make_store(folder: Path) -> Store:
    """Write a store of random vectors, whose photos have no files."""
    random = np.random.default_rng(0)
    keys = [f"{number:064x}" for number in range(ROWS)]
    x, delta = (l2_normalize(random.normal(size=(ROWS, 32))) for _ in range(2))
    store = Store(folder, SETTINGS, "float32")
    store.append(keys, {"x7": x, "delta8": delta})
    store.write_rows(
        Row(id_of(n), id_of(n), key, factors=("x7", "delta8"))
        for n, key in enumerate(keys)
    )
    return store


def id_of(number: int) -> str:
    """Return the id of a row."""
    return f"{number:05d}.jpg"


@dataclass
class Client:
    """Somebody who asks without pauses, and what came of it."""

    url: str
    number: int
    random: np.random.Generator
    times: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))
    wrong: list[str] = field(default_factory=list)
    acts: list[str] = field(default_factory=list)  # confirmed, in order
    undone: set[str] = field(default_factory=set)
    # of photos of this client alone
    labels: dict[str, str] = field(default_factory=dict)

    def ask(self, kind: str, method: str, path: str, **options: Any) -> Any:
        """Return the answer; None if there was none, or another one than expected."""
        begin = time.perf_counter()
        try:
            answer = self.client.request(method, path, **options)
        except httpx.HTTPError as error:
            self.wrong.append(f"{kind}: {type(error).__name__} {error}")
            return None
        self.times[kind].append(time.perf_counter() - begin)
        if answer.status_code != 200:
            self.wrong.append(f"{kind}: {answer.status_code} {answer.text[:100]}")
            return None
        return answer.json()

    def run(self, act: Callable[[Client], None], until: float) -> None:
        """Act until a moment."""
        with httpx.Client(base_url=self.url, timeout=SECONDS) as self.client:
            while time.monotonic() < until:
                act(self)


def read(reader: Client) -> None:
    """Do one of the things that readers do."""
    kind = int(reader.random.integers(4))
    number = int(reader.random.integers(ROWS))
    if kind == 0:
        query: dict[str, Any] = {"offset": number // 2, "limit": 120}
        reader.ask("page of the grid", "GET", "/api/images", params=query)
    elif kind == 1:
        asked = {"by": "dW8", "like": [{"id": id_of(number)}], "k": 12}
        reader.ask("search by id", "POST", "/api/search", json=asked)
    elif kind == 2:
        reader.ask(
            "filter by text",
            "GET",
            "/api/images",
            params={"text": f"{number % 100:02d}"},
        )
    else:
        reader.ask("counts of labels", "GET", "/api/labels")


def write(writer: Client) -> None:
    """Label some photos, or undo what was done last."""
    if writer.acts and writer.random.random() < UNDONE:
        undo(writer)
        return
    several = int(writer.random.random() < 0.2) * 49 + 1
    is_shared = writer.random.random() < 0.2
    if is_shared:
        numbers = writer.random.integers(SHARED, size=several)
    else:
        own = np.arange(SHARED + writer.number, ROWS, 64)
        numbers = writer.random.choice(own, several)
    ids = [id_of(int(number)) for number in dict.fromkeys(numbers.tolist())]
    name = CLASSES[int(writer.random.integers(len(CLASSES)))]
    asked = {"ids": ids, "labels": [name]}
    found = writer.ask("label", "POST", "/api/labels", json=asked)
    if found is None:
        return
    if found["act"] is not None:
        writer.acts.append(found["act"])
    if not is_shared:
        writer.labels.update(dict.fromkeys(ids, name))


def undo(writer: Client) -> None:
    """Undo the last act that this writer did not undo yet."""
    standing = [act for act in writer.acts[-5:] if act not in writer.undone]
    if not standing:
        return
    found = writer.ask("undo", "POST", "/api/labels/undo", json={"act": standing[-1]})
    if found is None:
        return
    writer.undone.add(standing[-1])
    for id_ in found["ids"]:
        writer.labels.pop(id_, None)  # its label is that of an earlier act


def check(store: Store, writers: list[Client]) -> list[str]:
    """Return what the log lacks or has too much."""
    log = LabelLog.open(store.folder)
    lines = [json.loads(line) for line in log.path.read_text().splitlines()]
    made = [line["id"] for line in lines if line["kind"] != UNDO]
    undone = {line["undoes"] for line in lines if line["kind"] == UNDO}
    wrong = []
    confirmed = [act for writer in writers for act in writer.acts]
    if lost := set(confirmed) - set(made):
        wrong.append(f"lost: {len(lost)} acts that were confirmed")
    if unknown := set(made) - set(confirmed):
        wrong.append(f"unknown: {len(unknown)} acts that nobody was told of")
    if undone != {act for writer in writers for act in writer.undone}:
        wrong.append("other acts were undone than was confirmed")
    order = {act: number for number, act in enumerate(made)}
    for writer in writers:
        numbers = [order[act] for act in writer.acts if act in order]
        if numbers != sorted(numbers):
            wrong.append(
                f"order: acts of writer {writer.number} are not in their order"
            )
    current = log.current()
    for writer in writers:
        for id_, name in writer.labels.items():
            labels = current.get(f"{int(id_[:5]):064x}")
            if labels != (name,):
                wrong.append(f"{id_}: {labels}, where {name} was confirmed last")
    return wrong


def serve(store: Path) -> tuple[subprocess.Popen[bytes], str]:
    """Start a server and wait for it."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    run = "from deepfishing.cli import main; main()"
    command = [sys.executable, "-c", run, "serve", str(store), "--port", str(port)]
    process = subprocess.Popen(
        command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    url = f"http://127.0.0.1:{port}"
    for _ in range(SECONDS * 10):
        try:
            httpx.get(f"{url}/api/store", timeout=SECONDS)
            return process, url
        except httpx.TransportError:
            time.sleep(0.1)
    process.kill()
    raise SystemExit("the server did not start")


def main() -> None:
    """Run readers and writers, and compare the log with what was confirmed."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--readers", type=int, default=20)
    parser.add_argument("--writers", type=int, default=5)
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    given.folder.mkdir(parents=True, exist_ok=True)
    store = make_store(given.folder / "store")
    process, url = serve(store.folder)
    n = given.readers + given.writers
    clients = [Client(url, k, np.random.default_rng([given.seed, k])) for k in range(n)]
    writers = clients[: given.writers]
    until = time.monotonic() + 60 * given.minutes
    threads = []
    for client in clients:
        act = write if client in writers else read
        threads.append(threading.Thread(target=client.run, args=(act, until)))
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    process.kill()  # what was confirmed is on disk
    process.wait()
    wrong = check(store, writers)
    times: dict[str, list[float]] = defaultdict(list)
    for client in clients:
        wrong += client.wrong
        for kind, some in client.times.items():
            times[kind] += some
    for kind, some in sorted(times.items()):
        median, slow = np.quantile(some, [0.5, 0.99])
        line = {"scene": kind, "requests": len(some), "wrong": []}
        milliseconds = {
            "median": round(1000 * float(median), 1),
            "99": round(1000 * float(slow), 1),
        }
        print(json.dumps({**line, "ms": milliseconds}), flush=True)
    labels = sum(len(writer.labels) for writer in writers)
    acts = sum(len(writer.acts) for writer in writers)
    said = {
        "scene": "everything",
        "minutes": given.minutes,
        "acts": acts,
        "labels": labels,
    }
    print(
        json.dumps(
            {**said, "requests": sum(map(len, times.values())), "wrong": wrong[:20]}
        )
    )


if __name__ == "__main__":
    main()

"""Kill -9 of the server at any moment of labelling: nothing that was confirmed is lost.

    python -m fire.labelling FOLDER [--kills 100] [--seed 0]

Three visitors label photos of one store as fast as the server answers, also undo, rename and label
groups, until the server dies at a random moment. Each label that was confirmed must be in the log
then; of a request without an answer, all photos or none may have changed. The next server goes on
with the same log. One JSON line a death.
"""

from __future__ import annotations

import argparse
import http.client
import json
import os
import random
import signal
import socket
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from deepfishing.store.label_log import LabelLog
from deepfishing.web.gallery import Gallery
from deepfishing.web.server import Address, make_server
from fire.forks import ended, fork
from fire.scenes import make_store

PHOTOS = 300
VISITORS = 3
LONGEST = 0.6  # seconds of labelling before a kill
GROUP = 5
START_SECONDS = 60.0


@dataclass
class Visitor:
    """Labels photos of its own, so that what each one must find is known."""

    number: int
    port: int
    chance: random.Random
    ids: list[str]
    confirmed: dict[str, str | None]  # label by id
    # asked for, without an answer
    open: dict[str, str | None] = field(default_factory=dict)
    answers: int = 0

    def work(self) -> None:
        """Label until the server is gone."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=30)
        while True:
            ids = self.chance.sample(self.ids, self.chance.choice([1, 1, 1, GROUP]))
            label = f"class {self.number} {self.chance.randrange(6)}"
            asked: str | None = None if self.chance.random() < 0.1 else label
            self.open = dict.fromkeys(ids, asked)
            body = {"ids": ids, "labels": None if asked is None else [asked]}
            try:
                answer = ask(connection, "/api/labels", body)
                if answer["act"] is not None and self.chance.random() < 0.1:
                    before = {id_: self.confirmed[id_] for id_ in ids}
                    self.confirmed.update(self.open)
                    self.open = before
                    ask(connection, "/api/labels/undo", {"act": answer["act"]})
            except (OSError, http.client.HTTPException):
                return
            self.confirmed.update(self.open)
            self.open = {}
            self.answers += 1


def ask(
    connection: http.client.HTTPConnection, path: str, body: dict[str, Any]
) -> dict[str, Any]:
    """Post JSON; what is not a success ends the visitor's work loudly."""
    connection.request(
        "POST", path, json.dumps(body), {"Content-Type": "application/json"}
    )
    answer = connection.getresponse()
    content = answer.read()
    if answer.status != 200:
        raise SystemExit(f"{path} {body}: {answer.status} {content[:200]!r}")
    found: dict[str, Any] = json.loads(content)
    return found


def serve(store: Path, listening: socket.socket, port: int) -> None:
    """Answer until somebody kills this process."""
    address = Address(listening, "127.0.0.1", port, None)
    make_server(Gallery(store), address).run(sockets=[listening])


def wrong_labels(
    store: Path, visitors: list[Visitor], content_of: dict[str, str]
) -> list[str]:
    """What the log has that it must not have, one line each; open requests are settled."""
    current = LabelLog.open(store).current()

    def label_of(id_: str) -> str | None:
        labels = current.get(content_of[id_])
        return labels[0] if labels else None

    wrong = []
    for visitor in visitors:
        found = {id_: label_of(id_) for id_ in visitor.ids}
        expected = dict(visitor.confirmed)
        if visitor.open and found == {**expected, **visitor.open}:
            # it was written, and the answer did not arrive
            expected.update(visitor.open)
        for id_, label in expected.items():
            if found[id_] != label:
                wrong.append(f"{id_}: {label!r} was confirmed, got {found[id_]!r}")
        visitor.confirmed = expected if not wrong else found
    return wrong


def play(folder: Path, kills: int, seed: int) -> None:
    """Kill the server so many times; print a line each."""
    chance = random.Random(f"{seed} labelling")
    store = folder / "store"
    rows = make_store(store, PHOTOS).rows().values()
    content_of = {row.id: str(row.sha256) for row in rows if row.status == "ok"}
    ids = sorted(content_of)
    confirmed: list[dict[str, str | None]] = []
    for number in range(VISITORS):
        confirmed.append(dict.fromkeys(ids[number::VISITORS]))
    for _ in range(kills):
        listening = socket.create_server(("127.0.0.1", 0), backlog=64)
        port = listening.getsockname()[1]
        process = fork(lambda s=listening, p=port: serve(store, s, p), folder / "log")
        listening.close()
        wait_for(port)
        visitors = [
            Visitor(
                n,
                port,
                random.Random(chance.random()),
                list(confirmed[n]),
                confirmed[n],
            )
            for n in range(VISITORS)
        ]
        threads = [threading.Thread(target=visitor.work) for visitor in visitors]
        for thread in threads:
            thread.start()
        after = round(chance.uniform(0, LONGEST), 4)
        time.sleep(after)
        os.kill(process, signal.SIGKILL)
        died = ended(process)
        for thread in threads:
            thread.join()
        wrong = [] if died == -signal.SIGKILL else [f"the server ended with {died}"]
        wrong += wrong_labels(store, visitors, content_of)
        confirmed = [visitor.confirmed for visitor in visitors]
        answers = sum(visitor.answers for visitor in visitors)
        line = {
            "scene": "label in the page",
            "at": after,
            "answers": answers,
            "wrong": wrong,
        }
        print(json.dumps(line), flush=True)


def wait_for(port: int) -> None:
    """Wait until the server answers."""
    end = time.monotonic() + START_SECONDS
    while True:
        try:
            connection = http.client.HTTPConnection("127.0.0.1", port, timeout=5)
            connection.request("GET", "/api/labels")
            if connection.getresponse().status == 200:
                return
        except (OSError, http.client.HTTPException):
            if time.monotonic() > end:
                raise SystemExit("the server does not answer") from None
        time.sleep(0.02)


def main() -> None:
    """Play."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--kills", type=int, default=100)
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    given.folder.mkdir(parents=True, exist_ok=True)
    play(given.folder.resolve(), given.kills, given.seed)


if __name__ == "__main__":
    main()

"""All of it: `make fire`, or
`python -m fire [--kills N] [--flips N] [--clusters N] [--minutes N] [PART ...]`.

Each part is a process of its own (`fire.kills` ...), whose lines are counted here. When all parts
ran, RESULTS.md and FAULTS.md beside this file are written. Exit code 1 if
anything was found.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import re
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).with_name("RESULTS.md")
PAGE = RESULTS.with_name("FAULTS.md")
HEAD = """# Under fire

Made by `{command}` on {machine}, in {minutes:.0f} minutes. The parts say in their first lines what
is done and how it is counted.

"""
PARTS = {
    "kills": "Kill -9 of a command, then the command again (`fire/kills.py`)",
    "workers": "Kill -9 of Ray's workers and of whole clusters (`fire/workers.py`)",
    "full_disk": "A full disk (`fire/full_disk.py`)",
    "flips": "Flipped bits (`fire/flips.py`)",
    "labelling": "Kill -9 of the server while people label (`fire/labelling.py`)",
    "page": "20 readers and 5 writers on the page (`fire/page.py`)",
}


def lines(part: str, options: list[str], folder: str) -> Iterator[dict[str, Any]]:
    """What a part says, as it says it."""
    command = [sys.executable, "-m", f"fire.{part}", str(Path(folder) / part), *options]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as ran:
        for line in ran.stdout or ():
            yield json.loads(line)
    if ran.returncode:
        yield {"scene": part, "wrong": [f"fire.{part} ended with {ran.returncode}"]}


def table(part: str, said: list[dict[str, Any]]) -> str:
    """The counts of a part as Markdown."""
    if part == "flips":
        head = "| file and reader | flips | told in one line | same result | wrong | crashes |"
        rows = [
            [
                one["target"],
                *(one.get(n, 0) for n in ("flips", "told", "same", "wrong", "crash")),
            ]
            for one in said
            if "target" in one
        ]
    elif part == "page":
        head = "| request | answers | median ms | 99 % ms | wrong or lost |"
        rows = []
        for one in said:
            times = one.get("ms", {"median": "", "99": ""})
            counts = (
                one.get("requests", 0),
                times["median"],
                times["99"],
                len(one["wrong"]),
            )
            rows.append([one["scene"], *counts])
    elif part == "full_disk":
        head = "| command | runs | ended with one line | ended well | wrong |"
        rows = [
            [name, len(ours), _count(ours, 1), _count(ours, 0), sum(map(_wrong, ours))]
            if "skipped" not in ours[0]
            else [name, 0, f"skipped: {ours[0]['skipped']}", "", ""]
            for name, ours in _by_scene(said)
        ]
    elif part == "workers":
        head = "| what | kills | stores compared | wrong |"
        rows = [
            [
                name,
                sum(one.get("kills", 0) for one in ours),
                len(ours),
                sum(map(_wrong, ours)),
            ]
            for name, ours in _by_scene(said)
        ]
    else:
        head = "| command | kills at a random time | kills at a write | wrong |"
        rows = [
            [
                name,
                sum(not isinstance(one.get("at"), list) for one in ours),
                sum(isinstance(one.get("at"), list) for one in ours),
                sum(map(_wrong, ours)),
            ]
            for name, ours in _by_scene(said)
        ]
    body = [f"| {' | '.join(map(str, row))} |" for row in rows]
    rule = "|" + "---|" * (head.count("|") - 1)
    return "\n".join([f"## {PARTS[part]}\n", head, rule, *body, ""])


def _by_scene(said: list[dict[str, Any]]) -> list[tuple[str, list[dict[str, Any]]]]:
    found: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for one in said:
        found[one["scene"]].append(one)
    return list(found.items())


def _count(said: list[dict[str, Any]], code: int) -> int:
    return sum(one.get("code") == code for one in said)


def _wrong(one: dict[str, Any]) -> int:
    return int(bool(one.get("wrong") or one.get("finds")))


def main() -> None:
    """Run the parts, print each table, write RESULTS.md."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("parts", nargs="*", metavar="PART", help=", ".join(PARTS))
    parser.add_argument("--kills", type=int, default=300)
    parser.add_argument("--flips", type=int, default=300)
    parser.add_argument("--clusters", type=int, default=10)
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_intermixed_args()
    if unknown := set(given.parts) - set(PARTS):
        parser.error(
            f"PART must be one of {', '.join(PARTS)}, got {', '.join(unknown)}"
        )
    seed = ["--seed", str(given.seed)]
    options = {
        "kills": [f"--kills={given.kills}", f"--writes={given.kills // 3}", *seed],
        "workers": [f"--kills={given.kills}", f"--clusters={given.clusters}", *seed],
        "full_disk": [],
        "flips": [f"--flips={given.flips}", *seed],
        "labelling": [f"--kills={given.kills}", *seed],
        "page": [f"--minutes={given.minutes}", *seed],
    }
    start, tables, found = time.monotonic(), {}, 0
    with tempfile.TemporaryDirectory() as folder:
        for part in given.parts or PARTS:
            said = []
            for line in lines(part, options[part], folder):
                said.append(line)
                if _wrong(line):
                    print(json.dumps(line), flush=True)
                elif sys.stderr.isatty():
                    print(
                        f"\r{part}: {len(said)} done",
                        end="\r",
                        file=sys.stderr,
                        flush=True,
                    )
            found += sum(map(_wrong, said))
            tables[part] = table(part, said)
            print(tables[part], flush=True)
    if not given.parts:
        python = f"Python {platform.python_version()}"
        machine = f"{os.cpu_count()} cores, {platform.machine()}, {python}"
        command = " ".join(["python -m fire", *sys.argv[1:]])
        minutes = (time.monotonic() - start) / 60
        head = HEAD.format(command=command, machine=machine, minutes=minutes)
        text = "\n".join(tables.values())
        RESULTS.write_text(head + text)
        block = f"<!-- fire -->\n{text.replace('## ', '### ')}<!-- /fire -->"
        page = re.sub(
            r"<!-- fire -->.*<!-- /fire -->",
            lambda _: block,
            PAGE.read_text(),
            flags=re.S,
        )
        PAGE.write_text(page)
    sys.exit(1 if found else 0)


if __name__ == "__main__":
    main()

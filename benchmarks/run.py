"""All benchmarks: `make bench`. Prints each ratio and writes RESULTS.md beside this file.

    python benchmarks/run.py [--quick] [NAME ...]

With names only those run, and only their sections of RESULTS.md are replaced. What stands there
from "Before and after" on is written by hand, from other commands, and stays.
"""

from __future__ import annotations

import argparse
import importlib
import os
import platform
import re
from pathlib import Path

import torch
from timing import Ratio

SECTIONS = {
    "throughput": "Images per second, end to end, and trunks against matrix products",
    "decoding": "Decoding: seconds of one core",
    "gradient_cost": "Gradients on top of forward features",
    "store_read": "Reading a store of 10,000 images x 8,192 values, warm cache",
    "start": "Starting on a complete store",
    "first_answer": "First answers of a command, in seconds of processor time",
    "train": "Training 20 machines",
    "projections": "Projections of rank-1 features",
}
HEAD = """# Benchmarks

Made by `make bench` on {machine}. Every line is a ratio of two things measured in the same run:
the median of the repetitions, and the lowest and highest of them. Seconds are the median of the
first thing. A file of the same name in this folder says what is measured.
"""
COLUMNS = """| what | ratio to | median | lowest | highest | repetitions | seconds |
|---|---|---|---|---|---|---|
"""
FOOT = """
Peak memory, which does not grow with the number of images, is measured by `benchmarks/memory.py`,
search by `benchmarks/search.py` (SEARCH.md), stores in fewer bits by `benchmarks/compression.py`
(COMPRESSION.md).
"""
BY_HAND = "\n## Before and after\n"
RESULTS = Path(__file__).parent / "RESULTS.md"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("names", nargs="*", metavar="NAME", help=", ".join(SECTIONS))
    parser.add_argument("--quick", action="store_true")
    chosen = parser.parse_args()
    if unknown := set(chosen.names) - set(SECTIONS):
        parser.error(
            f"NAME must be one of {', '.join(SECTIONS)}, got {', '.join(unknown)}"
        )
    sections = read_sections()
    for name in chosen.names or SECTIONS:
        rows = importlib.import_module(name).run(quick=chosen.quick)
        for row in rows:
            print(row, flush=True)
        sections[name] = section(name, rows)
        write_sections(sections)  # what is measured stays, whatever happens to the rest


def section(name: str, rows: list[Ratio]) -> str:
    lines = [
        f"| {r.name} | {r.baseline} | {r.median:.2f} | {r.low:.2f} | {r.high:.2f} | "
        f"{r.repetitions} | {r.seconds:.2f} |\n"
        for r in rows
    ]
    return f"\n## {SECTIONS[name]}\n\n{COLUMNS}{''.join(lines)}"


def read_sections() -> dict[str, str]:
    text = RESULTS.read_text() if RESULTS.exists() else ""
    found = {}
    for name, title in SECTIONS.items():
        match = re.search(rf"\n## {re.escape(title)}\n.*?(?=\n\n[^|])", text, re.S)
        if match:
            found[name] = match.group() + "\n"
    return found


def write_sections(sections: dict[str, str]) -> None:
    machine = f"{os.cpu_count()} cores, {platform.machine()}, torch {torch.__version__}"
    body = "".join(sections[name] for name in SECTIONS if name in sections)
    _, title, kept = (RESULTS.read_text() if RESULTS.exists() else "").partition(
        BY_HAND
    )
    RESULTS.write_text(HEAD.format(machine=machine) + body + FOOT + title + kept)


if __name__ == "__main__":
    main()

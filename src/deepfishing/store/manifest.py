"""Features on disk: `store.json`, which says how the features of a store were made.

Comes in: a folder. Goes out: where its store is, and what its manifest says, if it is sound.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from deepfishing.errors import StoreError
from deepfishing.files import is_intact

MANIFEST = "store.json"


def find_store(folder: Path) -> Path:
    """The folder itself, or the store that `deepfish reproduce` left in it.

    Raises
    ------
    StoreError
        If it left several: of two temperatures, say.
    """
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

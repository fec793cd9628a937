"""Files that the studio keeps in a store's folder beside the features.

They are in `.studio`, which is hidden so that no factor has its name. Arrays are `.npy` files that
can be mapped into memory; a sealed JSON file, which is written last, describes them. Names of
arrays have a random part, so that a process that has an older one mapped can keep it.
"""

from __future__ import annotations

import contextlib
import json
import secrets
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from deepfishing.core.rank_one import Array
from deepfishing.errors import StoreError, reraise_as
from deepfishing.store.journal import check_no_link
from deepfishing.util.files import (
    check_regular,
    is_intact,
    read_regular,
    remove_file,
    replacing,
    sealed,
)
from deepfishing.util.locks import hold_lock

FOLDER = ".studio"
LOCK = ".lock"
MAX_FACTS_BYTES = 64 << 20
HASH_BYTES = 32

# what damaged files make the readers raise
_UNREADABLE = (
    *(OSError, ValueError, LookupError, TypeError, AttributeError, RecursionError),
    *(EOFError, ArithmeticError, MemoryError, SyntaxError),
)


def side_folder(store: Path) -> Path:
    """Return the folder beside the features; made if absent."""
    folder = store / FOLDER
    check_no_link(folder)
    with reraise_as(
        StoreError, f"store cannot be written: {store}", "; make it writable", OSError
    ):
        folder.mkdir(exist_ok=True)
    return folder


def write_side(
    store: Path, name: str, facts: Mapping[str, Any], arrays: Mapping[str, Array]
) -> None:
    """Write arrays and the facts that describe them; older ones of that name are replaced."""
    folder = side_folder(store)
    do = "; free some space or make it writable and try again"
    with (
        reraise_as(StoreError, f"store cannot be written: {folder}", do, OSError),
        hold_lock(folder / LOCK),
    ):
        before = set(folder.glob(f"{name}-*.npy"))
        files = {}
        for key, values in arrays.items():
            files[key] = f"{name}-{key}-{secrets.token_hex(6)}.npy"
            with replacing(folder / files[key]) as partial, partial.open("wb") as file:
                np.save(file, np.ascontiguousarray(values), allow_pickle=False)
        document = sealed({**facts, "files": files})
        with replacing(folder / f"{name}.json") as partial:
            partial.write_text(json.dumps(document) + "\n", encoding="utf-8")
        for path in before:
            remove_file(path)


def read_side(store: Path, name: str) -> tuple[dict[str, Any], dict[str, Array]] | None:
    """Return facts and arrays, mapped into memory; None if they are missing or damaged."""
    folder = store / FOLDER
    with contextlib.suppress(*_UNREADABLE):
        check_no_link(folder)
        facts = json.loads(read_regular(folder / f"{name}.json", MAX_FACTS_BYTES))
        if not is_intact(facts):
            return None
        arrays = {}
        for key, file in facts.pop("files").items():
            path = folder / Path(file).name
            check_regular(path)
            arrays[key] = np.load(path, mmap_mode="r", allow_pickle=False)
        return facts, arrays
    return None


def pack_keys(keys: pa.Array) -> Array:
    """Return content hashes (n,) as bytes (n, 32)."""
    text = "".join(keys.to_pylist())
    return np.frombuffer(bytes.fromhex(text), np.uint8).reshape(-1, HASH_BYTES)


def unpack_keys(packed: Array) -> pa.Array:
    """Return the content hashes of `pack_keys`."""
    text = np.ascontiguousarray(packed).tobytes().hex()
    digits = 2 * HASH_BYTES
    ends = np.arange(0, len(text) + 1, digits, dtype=np.int64)
    values = pa.LargeStringArray.from_buffers(
        len(ends) - 1, pa.py_buffer(ends), pa.py_buffer(text.encode())
    )
    return values.cast(pa.string())

"""Files of a model: a folder with two of them.

`model.json`         what people read: recipe, network, weights' hash, classes, costs, training
`model.safetensors`  numbers: factors of the support vectors, dual coefficients, bias, calibration,
                     and the state of the recipe

`model.json` has the hash of the other file and one of itself, so that a file that is cut short,
changed or of another model is found out before any of its numbers is used. New numbers are first
written beside the old ones; with `model.json` they take their place, so that a crash leaves the old
model or the new one.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import re
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import load as read_tensors
from safetensors.numpy import save as tensor_bytes

from deepfishing import __version__
from deepfishing.core.rank_one import Array
from deepfishing.errors import WeightsError, one_line, reraise_as
from deepfishing.util.files import (
    is_intact,
    read_regular,
    remove_file,
    rename_file,
    replacing,
    sealed,
)
from deepfishing.util.locks import hold_lock

FORMAT = "deepfishing-model-1"
DOCUMENT = "model.json"
TENSORS = "model.safetensors"
LOCK = ".lock"
MAX_DOCUMENT_BYTES = 64 * 2**20
MAX_TENSORS_BYTES = 64 * 2**30
_SHA256 = re.compile(r"[0-9a-f]{64}")
_LEFTOVER = re.compile(rf"\.+({re.escape(TENSORS)}|{re.escape(DOCUMENT)})")


def write_files(
    folder: Path, document: Mapping[str, Any], tensors: Mapping[str, Array]
) -> None:
    """Write the two files; a model that exists is replaced by this one, or stays as it is."""
    content = tensor_bytes({n: np.ascontiguousarray(t) for n, t in tensors.items()})
    sha256 = hashlib.sha256(content).hexdigest()
    head = {
        "format": FORMAT,
        "version": __version__,
        "created": datetime.now(UTC).isoformat(timespec="seconds"),
    }
    text = (
        json.dumps(sealed({**head, **document, "sha256": {TENSORS: sha256}}), indent=1)
        + "\n"
    )
    do = "; choose another folder"
    with reraise_as(WeightsError, f"model cannot be written: {folder}", do, OSError):
        folder.mkdir(parents=True, exist_ok=True)
        with hold_lock(folder / LOCK):
            _clear_up(folder)
            new = _waiting(folder, sha256)
            with replacing(new) as partial:
                partial.write_bytes(content)
            try:
                with replacing(folder / DOCUMENT) as partial:
                    partial.write_text(text, encoding="utf-8")
            except OSError:
                new.unlink(missing_ok=True)
                raise
            rename_file(new, folder / TENSORS)


def read_files(folder: Path) -> tuple[dict[str, Any], dict[str, Array]]:
    """Read both files and check that they belong together."""
    document = read_document(folder / DOCUMENT)
    return document, read_tensors_of(folder, document)


def _waiting(folder: Path, sha256: str) -> Path:
    """Return the path of the tensors until the document that names them is written."""
    return folder / f".{TENSORS}-{sha256[:16]}"


def _clear_up(folder: Path) -> None:
    """Finish what a killed writer has begun, and delete what it has left."""
    with contextlib.suppress(WeightsError, FileNotFoundError):
        waiting = _waiting(folder, _expected(read_document(folder / DOCUMENT)))
        rename_file(waiting, folder / TENSORS)
    for left in folder.iterdir():
        if _LEFTOVER.match(left.name):
            remove_file(left)


def read_document(path: Path) -> dict[str, Any]:
    """Read `model.json`, which must be of this format and as it was written."""
    try:
        document = json.loads(read_regular(path, MAX_DOCUMENT_BYTES))
    except FileNotFoundError:
        raise WeightsError(
            f"a model must hold {DOCUMENT}, got none in {path.parent}; make one with "
            "`deepfish train`"
        ) from None
    except OSError as error:
        raise WeightsError(f"model cannot be read: {path} ({error.strerror})") from None
    except (ValueError, RecursionError) as error:
        raise damaged(path, f"no JSON: {error}") from None
    if not isinstance(document, dict) or document.get("format") != FORMAT:
        version = document.get("format") if isinstance(document, dict) else None
        raise WeightsError(
            f"format of a model must be {FORMAT!r}, got {version!r} in {path}; "
            "train it again with this version"
        )
    if not is_intact(document):
        raise damaged(path, "it is not as it was written")
    return document


def _expected(document: dict[str, Any]) -> str:
    """The hash of the numbers; part of a file's name, so nothing else is taken for one."""
    hashes = document.get("sha256")
    sha256 = str(hashes.get(TENSORS)) if isinstance(hashes, dict) else ""
    return sha256 if _SHA256.fullmatch(sha256) else ""


def read_tensors_of(folder: Path, document: dict[str, Any]) -> dict[str, Array]:
    """Read `model.safetensors`, which must be the file that the document names."""
    path, expected = folder / TENSORS, _expected(document)
    # left there by a writer killed at its last step
    waiting = _waiting(folder, expected)
    do = "; copy the whole folder"
    with reraise_as(WeightsError, f"model cannot be read: {path}", do, OSError):
        content = read_regular(
            waiting if waiting.is_file() else path, MAX_TENSORS_BYTES
        )
    sha256 = hashlib.sha256(content).hexdigest()
    if sha256 != expected:
        raise damaged(path, f"sha256 must be {expected or None}, got {sha256}")
    try:
        return dict(read_tensors(content))
    except (SafetensorError, KeyError, ValueError) as error:
        raise damaged(path, str(error)) from None


def damaged(path: Path, reason: str) -> WeightsError:
    """Return the error for a model that is not as it was written."""
    return WeightsError(
        f"model is damaged: {path} ({one_line(reason)}); copy it again or train it again"
    )

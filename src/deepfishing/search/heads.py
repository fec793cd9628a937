"""Heads of prototypes that a store keeps, so that its photos are always compared by the same head.

`own(x7,64)` is the gradient of a head made of the store's own photos. It is made once, from at most
20,000 of them, and stays as it is until the store has grown `GROWTH` times; then it is made again,
as an index is. Search and `curate choose` take it from here.

`.index/heads/<part>.safetensors`: centre and weights, and `facts`, a JSON text with the recipe, the
settings, the number of photos, and a hash of the arrays. A file that is missing, damaged or of
other settings is made again. Where the folder cannot be written, the head is made each time.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import load as read_tensors
from safetensors.numpy import save as tensor_bytes

from deepfishing.core.rank_one import Array
from deepfishing.core.recipes import Fitted, Recipe
from deepfishing.errors import FeatureError, StoreError
from deepfishing.search.compare import sample
from deepfishing.store import Store
from deepfishing.store.contents import Contents
from deepfishing.store.journal import check_no_link
from deepfishing.store.manifest import SOURCE
from deepfishing.util.files import read_regular, replacing

FIT_IMAGES = 20_000  # that a recipe is fitted to
GROWTH = 4  # times what it was made for, and a head is made again
FOLDER = ".index/heads"
FORMAT = "deepfishing-head-1"
FACTS = "facts"
MAX_BYTES = 1 << 28
DIGITS = 16

# what damaged or hostile files make the readers raise
UNREADABLE = (
    *(OSError, ValueError, LookupError, TypeError, AttributeError, RecursionError),
    *(SafetensorError, ArithmeticError, MemoryError, RuntimeError),
)


def fit_to_store(recipe: Recipe, contents: Contents, store: Store) -> Fitted:
    """Fit a recipe to the store's own photos, with the heads that the store keeps.

    `FIT_IMAGES` photos are drawn if there are more.
    """
    if not recipe.learns:
        return recipe.fit({})  # nothing to learn, so nothing is read
    parts = []
    for part in recipe.all_parts():
        if part.step == "own" and not part.parts[0].learns:
            parts.append(part)
    learnt: dict[str, Array] = {}
    for part in parts:
        learnt |= _read(part, contents, store)
    stored = set(learnt)
    with contextlib.suppress(FeatureError):  # there is something else to learn
        return recipe.load(learnt)
    photos = contents.read(sample(len(contents), FIT_IMAGES), recipe.columns)
    fitted = recipe.fit(photos, photos, learnt)
    for part in parts:
        if not stored.issuperset(_names(part)):
            _write(part, contents, store, learnt)
    return fitted


def _names(part: Recipe) -> tuple[str, str]:
    """Return the names of centre and weights in the state of a recipe."""
    return f"{part.name}/0", f"{part.name}/1"


def _path(part: Recipe, store: Store) -> Path:
    name = hashlib.sha256(part.name.encode()).hexdigest()[:DIGITS]
    return store.folder / FOLDER / f"{name}.safetensors"


def _facts(part: Recipe, store: Store, arrays: dict[str, Array]) -> dict[str, Any]:
    """Return the facts that a head in a store must have to be used."""
    settings = {name: value for name, value in store.settings.items() if name != SOURCE}
    digest = hashlib.sha256()
    for name in sorted(arrays):
        digest.update(arrays[name].tobytes())
    plain = json.loads(json.dumps(settings))
    return {
        "format": FORMAT,
        "of": part.name,
        "settings": plain,
        "sha256": digest.hexdigest(),
    }


def _read(part: Recipe, contents: Contents, store: Store) -> dict[str, Array]:
    """Return the head that the store keeps; empty if there is none that can be used."""
    path = _path(part, store)
    if not path.is_file():
        return {}
    check_no_link(path.parent.parent)
    check_no_link(path.parent)
    try:
        arrays = dict(read_tensors(read_regular(path, MAX_BYTES)))
        facts = json.loads(arrays.pop(FACTS).tobytes())
        made_for = int(facts.pop("made_for"))
        as_written = facts == _facts(part, store, arrays)
        centre_name, weights_name = _names(part)
        centre, weights = arrays[centre_name], arrays[weights_name]
    except UNREADABLE:
        return {}
    has_right_shape = weights.ndim == 3 and centre.shape == weights.shape[1:2]
    is_recent = 0 < made_for <= len(contents) <= GROWTH * made_for
    if as_written and has_right_shape and is_recent:
        return arrays
    return {}


def _write(
    part: Recipe, contents: Contents, store: Store, learnt: dict[str, Array]
) -> None:
    """Write a head, if the folder can be written."""
    path = _path(part, store)
    arrays = {name: np.ascontiguousarray(learnt[name]) for name in _names(part)}
    facts = {**_facts(part, store, arrays), "made_for": len(contents)}
    arrays[FACTS] = np.frombuffer(json.dumps(facts).encode(), np.uint8)
    with contextlib.suppress(OSError, StoreError):
        check_no_link(path.parent.parent)
        path.parent.mkdir(parents=True, exist_ok=True)
        check_no_link(path.parent)
        with replacing(path) as partial:
            partial.write_bytes(tensor_bytes(arrays))

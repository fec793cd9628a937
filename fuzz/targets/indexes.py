"""Target: index folders of a search, whose files have the hashes that their names promise."""

from __future__ import annotations

import hashlib
import json
import shutil
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

from deepfishing.errors import DeepFishingError
from deepfishing.search import Searcher
from deepfishing.search import index as files
from deepfishing.search.compare import Query, choose_recipe
from deepfishing.store import Store
from fuzz.formats import resealed
from fuzz.made import make_store
from fuzz.parts import join, split
from fuzz.rule import obey
from fuzz.target import Run, Target, put
from fuzz.targets.models import mutate_folder

_RECIPE = "x7"
_ENDINGS = {"arrays": "safetensors", "vectors": "faiss"}


def _search_index(folder: Path) -> Run:
    store = make_store(folder / "store")
    recipe = choose_recipe(store, _RECIPE)
    Searcher(store, _RECIPE, method="index")
    place = _place(store)

    def run(data: bytes) -> None:
        shutil.rmtree(place, ignore_errors=True)
        place.mkdir(parents=True)
        facts, *others = split(data, 3)
        names = {}
        for (name, ending), content in zip(_ENDINGS.items(), others, strict=True):
            digits = hashlib.sha256(content).hexdigest()[: files.DIGITS]
            names[name] = put(place / f"{name}-{digits}.{ending}", content).name
        put(place / files.FACTS, _with_names(facts, names))
        obey(_look)

    def _look() -> None:
        try:
            index, features, _ = files._read(place, store, recipe)
        except DeepFishingError:
            raise
        except (
            files._UnusableError,
            *files.UNREADABLE,
        ):
            # it would be made again, which takes long
            return
        first = features.contents.read(np.arange(1), recipe.columns)
        query = Query.from_factors(first, features.fitted, 1, ())
        features.of(index.candidates(query, 2))

    return run


def _place(store: Store) -> Path:
    """The folder of the one index of a store."""
    (facts,) = store.folder.glob(f"{files.FOLDER}/*/{files.FACTS}")
    return facts.parent


def _with_names(facts: bytes, names: dict[str, str]) -> bytes:
    try:
        read: Any = json.loads(facts)
        read["files"].update(names)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return facts
    return resealed(json.dumps(read).encode())


def _indexes() -> list[bytes]:
    with tempfile.TemporaryDirectory() as folder:
        store = make_store(Path(folder))
        Searcher(store, _RECIPE, method="index")
        place = _place(store)
        facts = json.loads((place / files.FACTS).read_bytes())
        names = [files.FACTS, *(facts["files"][name] for name in _ENDINGS)]
        return [join([(place / name).read_bytes() for name in names])]


TARGETS = {
    "search-index": Target(
        "index folders of a search",
        _search_index,
        _indexes,
        parts=3,
        mutate=mutate_folder,
        tokens=(
            b"IwSq",
            b"IxSq",
            b"IxFI",
            b"ilar",
            b"full",
            b'"root"',
            b'"made_for"',
            b'"I32"',
        ),
    )
}

"""Stage 7, search: an index on disk, beside the store that it is of.

`.index/<recipe>/index.json`          what it is of: recipe, settings, shards; hashes of the others
`.index/<recipe>/vectors-*.faiss`     the vectors
`.index/<recipe>/arrays-*.safetensors` keys of the contents, the map to vectors, whitening
`.index/<recipe>/rows-*.bin`          the contents' factors, see `PackedRows`

Comes in: a store and a recipe. Goes out: `Opened`, an index that covers the store as it is now:
read if it is there, extended if the store has grown, made if there is none or it does not fit. A
name carries a hash of the file, and `index.json` is replaced last, so that a reader never sees half
of it. Every file carries a hash, and so does each row that is read for a candidate: a flipped bit
makes the index again, or is an error that says so.
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import json
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from safetensors import SafetensorError
from safetensors.numpy import load as read_tensors
from safetensors.numpy import save as tensor_bytes

from deepfishing import __version__
from deepfishing.errors import DeepFishingError, StoreError, one_line
from deepfishing.files import is_intact, replacing, sealed
from deepfishing.progress import Progress
from deepfishing.rank_one import Array
from deepfishing.recipes import Recipe
from deepfishing.search.compare import Features, fit, sample
from deepfishing.search.index import GROWTH, Embedding, Index
from deepfishing.store import Store
from deepfishing.store.contents import Contents, PackedRows, pack, shard_files
from deepfishing.store.manifest import SOURCE

FORMAT = "deepfishing-index-3"
FOLDER = ".index"  # hidden, so that the store does not take it for a factor
FACTS = "index.json"
LOCK = ".lock"
DIGITS = 16

Notice = Callable[[str], None]

# what damaged or hostile files make the readers raise
_UNREADABLE = (
    *(OSError, ValueError, LookupError, TypeError, AttributeError, RecursionError),
    *(SafetensorError, ArithmeticError, MemoryError, RuntimeError),
)


@dataclass(frozen=True, eq=False)
class Opened:
    """An index, and the features that it covers."""

    index: Index
    features: Features


class _Unfit(Exception):  # noqa: N818 - never leaves this file
    """Why what is on disk cannot be used."""


def index_folder(store: Store, recipe: Recipe) -> Path:
    """Where the index of a recipe is; a recipe may hold anything, so its hash is the name."""
    return store.folder / FOLDER / hashlib.sha256(recipe.name.encode()).hexdigest()[:DIGITS]


def open_index(
    store: Store,
    recipe: Recipe,
    progress: Progress,
    notice: Notice,
) -> Opened:
    """An index that covers all of the store, and is on disk if the store can be written.

    Parameters
    ----------
    store : Store
    recipe : Recipe
    progress : callable
        Called with a stage, how much of it is done and how much there is.
    notice : callable
        Called with a line that says why an index is made again.
    """
    folder = index_folder(store, recipe)
    facts = _wanted(store, recipe)
    before: Opened | None = None
    first: PackedRows | None = None
    try:
        before, first, listed = _load(folder, store, recipe, facts)
        if listed is None:
            return before
    except _Unfit as reason:
        if (folder / FACTS).exists():
            notice(f"index is made again: {folder} ({reason})")
        listed = Contents.of(store, recipe.columns)
    contents: Contents | PackedRows = listed
    try:
        with _locked(folder):
            rows = folder / f"rows-{_keys_hash(listed.keys)}.bin"
            contents = pack(rows, listed, store.codec, first)
    except OSError as error:
        _cannot_be_kept(notice, folder, error)
    fitted = before.features.fitted if before else fit(recipe, contents)
    features = Features(contents, recipe.columns, fitted)
    if before:
        index = before.index
        index.extend(features, progress)
    else:
        index = Index.build(features, progress)
    opened = Opened(index, features)
    if isinstance(contents, PackedRows):
        try:
            with _locked(folder):
                _write(folder, opened, contents.path, facts)
        except OSError as error:
            _cannot_be_kept(notice, folder, error)
    return opened


def _cannot_be_kept(notice: Notice, folder: Path, error: OSError) -> None:
    notice(f"index cannot be kept: {folder} ({error.strerror}); it is made anew next time")


def _wanted(store: Store, recipe: Recipe) -> dict[str, Any]:
    return {
        "format": FORMAT,
        "recipe": recipe.name,
        "settings": json.loads(
            json.dumps({name: v for name, v in store.settings.items() if name != SOURCE})
        ),
        "shards": {name: [p.name for p in shard_files(store, name)] for name in recipe.columns},
    }


def _load(
    folder: Path, store: Store, recipe: Recipe, wanted: dict[str, Any]
) -> tuple[Opened, PackedRows, Contents | None]:
    """What is on disk, its rows, and None, or what the store has now if that is more.

    Then the contents of the index come first.
    """
    try:
        return _read(folder, store, recipe, wanted)
    except DeepFishingError:
        raise  # of the store itself, which a new index would meet too
    except FileNotFoundError as error:
        raise _Unfit(f"{Path(error.filename).name} is not there") from None
    except _UNREADABLE as error:  # RuntimeError: FAISS's, also if a newer one was made just now
        raise _Unfit(f"it is damaged: {one_line(error)}") from None


def _read(
    folder: Path, store: Store, recipe: Recipe, wanted: dict[str, Any]
) -> tuple[Opened, PackedRows, Contents | None]:
    facts = json.loads((folder / FACTS).read_bytes())
    for name in ("format", "recipe", "settings"):
        if facts[name] != wanted[name]:
            raise _Unfit(f"its {name} is another one")
    if not is_intact(facts):
        raise _Unfit(f"{FACTS} is not as it was written")
    files, made_for = facts["files"], int(facts["made_for"])
    vectors = _checked(folder, files["vectors"])
    arrays = dict(read_tensors(_checked(folder, files["arrays"]).read_bytes()))
    keys = pa.array(bytes(arrays["keys"]).decode("ascii").split("\n"))
    path = folder / Path(files["rows"]).name
    if path.stem.rpartition("-")[2] != _keys_hash(keys):
        raise _Unfit(f"{path.name} is of other images")
    shapes = {name: tuple(facts["shapes"][name]) for name in recipe.columns}
    rows = PackedRows(path, keys, store.codec, shapes)
    index = _read_vectors(vectors)
    if not 0 < made_for <= len(keys) == index.ntotal or index.d != arrays["root"].shape[1]:
        raise _Unfit(f"{vectors.name} has other images than its keys")
    fitted = recipe.load(_part("state/", arrays))
    chosen = sample(made_for, len(arrays["root"]))
    try:
        landmarks = fitted(rows.read(chosen, recipe.columns))
    except StoreError as error:
        raise _Unfit(f"{path.name} is damaged") from error
    contents = None
    if facts["shards"] != wanted["shards"]:
        contents = Contents.of(store, recipe.columns, first=keys)
        if not contents.keys[: len(keys)].equals(keys):
            raise _Unfit("images of it are no longer in the store")
        if len(contents) > GROWTH * made_for:
            raise _Unfit(f"the store has grown from {made_for} to {len(contents)} images")
    made = Index(Embedding(landmarks, arrays["root"]), index, made_for)
    return Opened(made, Features(rows, recipe.columns, fitted)), rows, contents


def _read_vectors(path: Path) -> Any:
    import faiss

    size = path.stat().st_size
    # Nothing that is in a file is larger than the file. FAISS believes what the file says, if it is
    # not told otherwise, and takes gigabytes for it.
    if hasattr(faiss, "set_deserialization_vector_byte_limit"):  # not in all versions
        faiss.set_deserialization_vector_byte_limit(size)
        faiss.set_deserialization_loop_limit(size)
    return faiss.read_index(str(path))


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """One at a time: two processes may make one index."""
    folder.mkdir(parents=True, exist_ok=True)
    with (folder.parent / LOCK).open("a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        for left in folder.glob(".*.*"):  # by one that was killed
            left.unlink(missing_ok=True)
        yield


def _write(folder: Path, opened: Opened, rows: Path, facts: dict[str, Any]) -> None:
    index, features = opened.index, opened.features
    contents = features.contents
    arrays = {f"state/{name}": values for name, values in features.fitted.state.items()}
    arrays["root"] = index.embedding.root
    arrays["keys"] = np.frombuffer("\n".join(contents.keys.to_pylist()).encode(), np.uint8)
    before = set(folder.glob("*-*.*"))
    vectors = _write_vectors(folder, index)
    # safetensors writes the bytes as they lie in memory
    content = tensor_bytes({name: np.ascontiguousarray(a) for name, a in arrays.items()})
    places = folder / f"arrays-{hashlib.sha256(content).hexdigest()[:DIGITS]}.safetensors"
    with replacing(places) as partial:
        partial.write_bytes(content)
    facts = {
        **facts,
        "version": __version__,
        "images": len(index),
        "made_for": index.made_for,
        "shapes": contents.shapes,
        "files": {"vectors": vectors.name, "arrays": places.name, "rows": rows.name},
    }
    with replacing(folder / FACTS) as partial:
        partial.write_text(json.dumps(sealed(facts), indent=1) + "\n")
    for old in before - {vectors, places, rows}:
        old.unlink(missing_ok=True)


def _keys_hash(keys: pa.Array) -> str:
    return hashlib.sha256("\n".join(keys.to_pylist()).encode()).hexdigest()[:DIGITS]


def _write_vectors(folder: Path, index: Index) -> Path:
    """The vectors in a file whose name comes from its content."""
    import faiss

    partial = folder / f".vectors.{os.getpid()}"
    try:
        faiss.write_index(index.vectors, str(partial))
        return partial.replace(folder / f"vectors-{_hash(partial)[:DIGITS]}.faiss")
    except RuntimeError as error:  # FAISS has no other for a full disk
        raise OSError(errno.EIO, " ".join(str(error).split())[-100:]) from None
    finally:
        partial.unlink(missing_ok=True)


def _checked(folder: Path, name: str) -> Path:
    """A file whose content is the one that its name says."""
    path = folder / Path(name).name
    if path.stem.rpartition("-")[2] != _hash(path)[:DIGITS]:
        raise _Unfit(f"{path.name} is damaged")
    return path


def _hash(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _part(prefix: str, arrays: dict[str, Array]) -> dict[str, Array]:
    found = ((name, values) for name, values in arrays.items() if name.startswith(prefix))
    return {name.removeprefix(prefix): values for name, values in found}

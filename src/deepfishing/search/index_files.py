"""Stage 7, search: an index on disk, beside the store that it is of.

`.index/<recipe>/index.json`          what it is of: recipe, settings, shards; hashes of the others
`.index/<recipe>/vectors-*.faiss`     the vectors
`.index/<recipe>/arrays-*.safetensors` keys of the contents, where in the shards they are and a
checksum of each row, the map to vectors, whitening

Comes in: a store and a recipe. Goes out: an index that covers the store as it is now, with its
features: read if it exists, extended if the store has grown, made if there is none or it does not
fit. A name carries a hash of the file, and `index.json` is replaced last, so that a reader never
sees half of it. A flipped bit in a file makes the index again; one in a row of a shard is an error.
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from safetensors import SafetensorError
from safetensors.numpy import load as read_tensors
from safetensors.numpy import save as tensor_bytes

from deepfishing import __version__
from deepfishing.errors import DeepFishingError, one_line
from deepfishing.files import is_intact, replacing, sealed
from deepfishing.progress import Progress
from deepfishing.rank_one import Array
from deepfishing.recipes import Recipe
from deepfishing.search.compare import Features, fit, sample
from deepfishing.search.index import GROWTH, Embedding, Index
from deepfishing.store import Store
from deepfishing.store.contents import PLACES, Contents, MappedColumn, shard_files
from deepfishing.store.manifest import SOURCE

FORMAT = "deepfishing-index-4"
FOLDER = ".index"  # hidden, so that the store does not take it for a factor
FACTS = "index.json"
LOCK = ".lock"
STATE = "state/"  # begins the names of what the recipe learnt
DIGITS = 16

Notice = Callable[[str], None]

# what damaged or hostile files make the readers raise
_UNREADABLE = (
    *(OSError, ValueError, LookupError, TypeError, AttributeError, RecursionError),
    *(SafetensorError, ArithmeticError, MemoryError, RuntimeError),
)


class _Unfit(Exception):  # noqa: N818 - never leaves this file
    """Why what is on disk cannot be used."""


def open_index(
    store: Store, recipe: Recipe, progress: Progress, notice: Notice
) -> tuple[Index, Features]:
    """An index that covers all of the store, and is on disk if the store can be written.

    `notice` is called with a line that says why an index is made again.
    """
    # a recipe may hold anything, so its hash is the name
    folder = store.folder / FOLDER / hashlib.sha256(recipe.name.encode()).hexdigest()[:DIGITS]
    try:
        index, features, is_whole = _read(folder, store, recipe)
    except DeepFishingError:
        raise  # of the store itself, which a new index would meet too
    except (_Unfit, *_UNREADABLE) as error:
        if (folder / FACTS).exists():
            notice(f"index is made again: {folder} ({_reason(error)})")
        contents = Contents.of(store, recipe.columns)
        features = Features(contents, recipe, fit(recipe, contents))
        index = Index.build(features, progress)
    else:
        if is_whole:
            return index, features
        index.extend(features, progress)
    features = replace(features, contents=features.contents.mapped())
    try:
        with _locked(folder):
            _write(folder, index, features, _facts(store, recipe))
    except OSError as error:
        notice(f"index cannot be kept: {folder} ({error.strerror}); it is made anew next time")
    return index, features


def _reason(error: Exception) -> str:
    if isinstance(error, FileNotFoundError):
        return f"{Path(error.filename).name} is not there"
    # RuntimeError: FAISS's, also if a newer one was made just now
    return str(error) if isinstance(error, _Unfit) else f"it is damaged: {one_line(error)}"


def _facts(store: Store, recipe: Recipe) -> dict[str, Any]:
    """What an index must be of to be used."""
    settings = {name: value for name, value in store.settings.items() if name != SOURCE}
    plain = json.loads(json.dumps(settings))
    return {"format": FORMAT, "recipe": recipe.name, "settings": plain}


def _read(folder: Path, store: Store, recipe: Recipe) -> tuple[Index, Features, bool]:
    """What is on disk, features of all that the store has, and whether the index covers them."""
    facts = json.loads((folder / FACTS).read_bytes())
    for name, value in _facts(store, recipe).items():
        if facts[name] != value:
            raise _Unfit(f"its {name} is another one")
    if not is_intact(facts):
        raise _Unfit(f"{FACTS} is not as it was written")
    paths = {kind: folder / Path(name).name for kind, name in facts["files"].items()}
    for path in paths.values():
        if path.stem.rpartition("-")[2] != _hash(path):
            raise _Unfit(f"{path.name} is damaged")
    arrays = dict(read_tensors(paths["arrays"].read_bytes()))
    ends, text = (pa.py_buffer(arrays[name]) for name in ("key_ends", "keys"))
    keys = pa.StringArray.from_buffers(len(arrays["key_ends"]) - 1, ends, text)
    keys.validate(full=True)
    vectors, root, made_for = _read_vectors(paths["vectors"]), arrays["root"], facts["made_for"]
    if not 0 < made_for <= len(keys) == vectors.ntotal or vectors.d != root.shape[1]:
        raise _Unfit(f"{paths['vectors'].name} has other images than its keys")
    is_whole = facts["shards"] == _names({n: shard_files(store, n) for n in recipe.columns})
    if is_whole:
        contents = Contents(keys, _columns(store, facts, arrays, len(keys)))
    else:
        contents = Contents.of(store, recipe.columns, first=keys)
        if not contents.keys[: len(keys)].equals(keys):
            raise _Unfit("images of it are no longer in the store")
        if len(contents) > GROWTH * made_for:
            raise _Unfit(f"the store has grown from {made_for} to {len(contents)} images")
    state = {name.removeprefix(STATE): a for name, a in arrays.items() if name.startswith(STATE)}
    features = Features(contents, recipe, recipe.load(state))
    landmarks = features.of(sample(made_for, len(root)))
    return Index(Embedding(landmarks, root), vectors, made_for), features, is_whole


def _columns(
    store: Store, facts: dict[str, Any], arrays: dict[str, Array], n: int
) -> dict[str, MappedColumn]:
    """Where the rows are, as the index has noted it."""
    columns = {}
    for factor, names in facts["shards"].items():
        places = {name: arrays[f"{factor}/{name}"] for name in PLACES}
        files = [store.shards_folder(factor) / name for name in names]
        counts = [len(places[name]) for name in PLACES]
        if counts != [n, n, len(files), n] or not 0 <= places["shard"].max() < len(files):
            raise _Unfit(f"rows of {factor} are not those of its keys")
        shape = tuple(facts["shapes"][factor])
        columns[factor] = MappedColumn(
            files, codec=store.codec, factor=factor, shape=shape, **places
        )
    return columns


def _names(files: Mapping[str, Sequence[Path]]) -> dict[str, list[str]]:
    return {factor: [path.name for path in paths] for factor, paths in files.items()}


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


def _write(folder: Path, index: Index, features: Features, facts: dict[str, Any]) -> None:
    contents = features.contents
    keys = contents.keys.to_pylist()
    arrays = {STATE + name: values for name, values in features.fitted.state.items()}
    arrays["root"] = index.embedding.root
    arrays["keys"] = np.frombuffer("".join(keys).encode(), np.uint8)
    arrays["key_ends"] = np.cumsum([0, *map(len, keys)], dtype=np.int32)
    for factor, column in contents.columns.items():
        arrays.update({f"{factor}/{name}": getattr(column, name) for name in PLACES})
    before = set(folder.glob("*-*.*"))
    # safetensors writes the bytes as they lie in memory
    content = tensor_bytes({name: np.ascontiguousarray(a) for name, a in arrays.items()})
    files = {
        "vectors": _kept(folder, "vectors-{}.faiss", lambda to: _write_vectors(index, to)),
        "arrays": _kept(folder, "arrays-{}.safetensors", lambda to: to.write_bytes(content)),
    }
    facts = {
        **facts,
        "shards": _names({factor: column.files for factor, column in contents.columns.items()}),
        "version": __version__,
        "images": len(index),
        "made_for": index.made_for,
        "shapes": contents.shapes,
        "files": {kind: path.name for kind, path in files.items()},
    }
    with replacing(folder / FACTS) as partial:
        partial.write_text(json.dumps(sealed(facts), indent=1) + "\n")
    for old in before - {*files.values()}:
        old.unlink(missing_ok=True)


def _kept(folder: Path, name: str, write: Callable[[Path], object]) -> Path:
    """Write a file whose name comes from its content."""
    partial = folder / f".{name}.{os.getpid()}"
    try:
        write(partial)
        return partial.replace(folder / name.format(_hash(partial)))
    finally:
        partial.unlink(missing_ok=True)


def _write_vectors(index: Index, path: Path) -> None:
    import faiss

    try:
        faiss.write_index(index.vectors, str(path))
    except RuntimeError as error:  # FAISS has no other for a full disk
        raise OSError(errno.EIO, one_line(error)[-100:]) from None


def _hash(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()[:DIGITS]

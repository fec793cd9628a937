"""Search index over many images, in memory and on disk beside its store.

For a query it returns the numbers of the images that may be nearest, which are then compared
exactly. Images are short vectors whose dot product is nearly the
recipe's kernel, two numbers in four bits, in lists around centres (FAISS, IVF with a product
quantiser that is scanned in registers); a query looks into the lists next to it. Where comparing an
image takes long, the candidates are first put in order by vectors in six bits per number.

The vectors: with landmark images L and the eigenvectors V, w of their Gram matrix,
phi(a) = w^(-1/2) V^T k(L, a) has the dot product of the kernel's projection onto its leading axes
(Nystroem, kernel PCA). It needs `gram` only, so gradients, sums and products are all alike to it.
An image that the landmarks describe badly has a short vector and would never be proposed; dividing
by the norm makes up for that.

`.index/<recipe>/index.json`          recipe, settings, shards; hashes of the other files
`.index/<recipe>/vectors-*.faiss`     the vectors
`.index/<recipe>/arrays-*.safetensors` keys of the contents, where in the shards they are, the map
to vectors, whitening

An index on disk is read if it exists, extended if the store has grown, made if there is none or it
does not fit. A name carries a hash of the file, and `index.json` is replaced last, so that a reader
never sees half of it. A flipped bit in a file makes the index again; one in a row of a shard is an
error.
"""

from __future__ import annotations

import errno
import hashlib
import json
import secrets
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from safetensors.numpy import load as read_tensors
from safetensors.numpy import save as tensor_bytes

from deepfishing import __version__
from deepfishing.core.kernels import Comparable, finite_gram, gram
from deepfishing.core.projections import inverse_root
from deepfishing.core.rank_one import Array, l2_normalize
from deepfishing.core.recipes import Recipe
from deepfishing.errors import DeepFishingError, one_line
from deepfishing.search.compare import SEED, Features, Query, sample
from deepfishing.search.heads import GROWTH, UNREADABLE, fit_to_store
from deepfishing.store import Store
from deepfishing.store.contents import PLACES, Contents, MappedColumn, shard_files
from deepfishing.store.journal import check_no_link
from deepfishing.store.manifest import SOURCE
from deepfishing.util.files import (
    check_regular,
    file_sha256,
    is_intact,
    read_regular,
    remove_file,
    rename_file,
    replacing,
    sealed,
)
from deepfishing.util.locks import hold_lock
from deepfishing.util.progress import Progress

LANDMARKS, DIMENSIONS = 2048, 768  # of the embedding
LIST_IMAGES = 512  # on average
MAX_LISTS = 512
TRAIN_PER_LIST = 40  # fewer, and FAISS complains
ROUNDS = 8  # of k-means
QUANTISED = 2  # numbers in four bits
# fewer are kept in a byte per number, which is precise and little
QUANTISED_IMAGES = 50_000
BLOCK_IMAGES = 4096
PROBES = 32  # lists that a query looks into
CANDIDATES = 500  # that are compared
WIDER = 4  # times as many candidates and lists, where their order means nothing
# Of the order of candidates and of exact scores. Measured: 0.50 to 0.96 on photos of VOC 2007 and
# on made-up clusters of up to 3,000 images, -0.08 to 0.43 in tight clusters of 12,000.
MIN_CORRELATION = 0.45
COARSE = 3  # times as many are taken by vectors of four bits, and compared or refined

FORMAT = "deepfishing-index-5"
FOLDER = ".index"  # hidden, so that the store does not take it for a factor
FACTS = "index.json"
LOCK = ".lock"
MAX_FACTS_BYTES = 256 * 2**20  # the facts name every shard
STATE = "state/"  # begins the names of what the recipe learnt
DIGITS = 16

Notice = Callable[[str], None]


@dataclass(frozen=True, eq=False)
class Embedding:
    """phi: features of the landmarks, and w^(-1/2) V^T as `root` (landmarks, m)."""

    landmarks: Comparable
    root: Array

    @classmethod
    def fit(cls, landmarks: Comparable, m: int) -> Embedding:
        """Return the map to at most m leading axes of the landmarks' kernel."""
        return cls(landmarks, inverse_root(finite_gram(landmarks), m))

    def __call__(self, features: Comparable) -> Array:
        """Return vectors (n, m) of norm 1."""
        return l2_normalize(self.linear(features))

    def linear(self, features: Comparable) -> Array:
        """Return vectors before they are normalised, which are linear in the kernel."""
        vectors: Array = gram(features, self.landmarks, "float32") @ self.root
        return vectors


@dataclass(frozen=True, eq=False)
class Index:
    """Vectors of the first n contents, and the map that made them."""

    embedding: Embedding
    vectors: Any  # of FAISS; its ids are the numbers of the contents
    made_for: int  # contents that there were when centres and landmarks were chosen

    def __len__(self) -> int:
        return int(self.vectors.ntotal)

    @property
    def is_coarse(self) -> bool:
        """Whether it takes `COARSE` times as many candidates, since nothing refines its vectors."""
        return hasattr(self.vectors, "pq")

    @classmethod
    def build(cls, features: Features, progress: Progress) -> Index:
        """Choose landmarks and centres among all contents, and add all of them."""
        import faiss  # takes a while to load

        n = len(features)
        embedding = Embedding.fit(features.of(sample(n, LANDMARKS)), DIMENSIONS)
        codes = "SQ8"
        parts = embedding.root.shape[1] // QUANTISED
        if n >= QUANTISED_IMAGES and parts:
            root = np.ascontiguousarray(embedding.root[:, : parts * QUANTISED])
            embedding = replace(embedding, root=root)
            codes = f"PQ{parts}x4fsr"
            if not features.is_quick:
                codes += ",Refine(SQ6)"
        m = embedding.root.shape[1]
        lists = max(1, min(MAX_LISTS, n // LIST_IMAGES))
        vectors = faiss.index_factory(
            m, f"IVF{lists},{codes}", faiss.METRIC_INNER_PRODUCT
        )
        k_means = _lists_of(vectors).cp
        k_means.niter = ROUNDS
        k_means.seed = SEED + 1
        chosen = sample(n, max(TRAIN_PER_LIST * lists, LANDMARKS))
        blocks = np.array_split(chosen, max(1, len(chosen) // BLOCK_IMAGES))
        progress("training", 0, 1)
        examples = [embedding(features.of(block)) for block in blocks]
        vectors.train(np.concatenate(examples))
        progress("training", 1, 1)
        index = cls(embedding, vectors, n)
        index.extend(features, progress)
        return index

    def extend(self, features: Features, progress: Progress) -> None:
        """Add the contents that are not in it yet: those with the highest numbers."""
        begin, n = len(self), len(features)
        for start in range(begin, n, BLOCK_IMAGES):
            numbers = np.arange(start, min(start + BLOCK_IMAGES, n))
            self.vectors.add(self.embedding(features.of(numbers)))
            progress("indexing", int(numbers[-1]) + 1 - begin, n - begin)

    def candidates(
        self, query: Query, n: int, allowed: Array | None = None, probes: int = PROBES
    ) -> Array:
        """Return at most n numbers of contents that may be nearest, the likeliest first.

        `allowed` is a mask of the contents to choose from.
        """
        if allowed is not None:
            # the rarer they are, the more lists it takes to find enough of them
            probes = probes * len(allowed) // max(int(allowed.sum()), 1)
        # a sum of examples is linear too
        examples = self.embedding.linear(query.examples)
        vector = query.weights.astype(np.float32)[None] @ examples
        numbers: Array = self.nearest(vector, n, probes, allowed)[0]
        return numbers[numbers >= 0]

    def nearest(
        self, vectors: Array, k: int, probes: int, allowed: Array | None = None
    ) -> Array:
        """Return numbers (n, k) of the contents next to n vectors; -1 where there are too few."""
        import faiss  # takes a while to load

        lists = _lists_of(self.vectors)
        options: dict[str, Any] = {"nprobe": min(probes, lists.nlist)}
        if allowed is not None:
            bits = np.packbits(allowed, bitorder="little")
            options["sel"] = faiss.IDSelectorBitmap(bits)
        params = faiss.SearchParametersIVF(**options)
        if hasattr(self.vectors, "refine_index"):
            params = faiss.IndexRefineSearchParameters(
                k_factor=COARSE, base_index_params=params
            )
        numbers: Array = self.vectors.search(vectors, k, params=params)[1]
        numbers[numbers >= len(self)] = -1  # a damaged index may name any image
        return numbers


def _lists_of(vectors: Any) -> Any:
    """Return the lists of an index, which may be refined by other vectors."""
    import faiss

    if hasattr(vectors, "refine_index"):
        return faiss.downcast_index(vectors.base_index)
    return vectors


def follows(scores: Array) -> bool:
    """Whether exact scores of candidates, the likeliest first, follow the order of the index.

    By Spearman's rank correlation. Of photos that are nearly the same the index has the same codes,
    so their order in it means nothing, and nearer ones may not be among the candidates.

    >>> follows(np.array([0.9, 0.8, 0.7, 0.75])), follows(np.array([0.7, 0.9, 0.75, 0.8]))
    (True, False)
    """
    place = np.arange(len(scores))
    rank = np.empty(len(scores))
    rank[np.argsort(-scores, kind="stable")] = place
    if len(scores) < 2:
        return True
    return float(np.corrcoef(place, rank)[0, 1]) >= MIN_CORRELATION


class _UnusableError(Exception):
    """The reason why an index on disk cannot be used; it is caught in this file."""


def open_index(
    store: Store, recipe: Recipe, progress: Progress, notice: Notice
) -> tuple[Index, Features]:
    """Return an index of the whole store; `notice` is called with the reason to make it again."""
    # a recipe may hold anything, so its hash is the name
    name = hashlib.sha256(recipe.name.encode()).hexdigest()[:DIGITS]
    folder = store.folder / FOLDER / name
    check_no_link(folder.parent)
    check_no_link(folder)
    try:
        index, features, is_whole = _read(folder, store, recipe)
    except DeepFishingError:
        raise  # of the store itself, which a new index would raise too
    except (_UnusableError, *UNREADABLE) as error:
        if (folder / FACTS).exists():
            notice(f"index is made again: {folder} ({_reason(error)})")
        contents = Contents.of(store, recipe.columns)
        features = Features(contents, recipe, fit_to_store(recipe, contents, store))
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
        notice(
            f"index cannot be written: {folder} ({error.strerror}); it is made again next time"
        )
    return index, features


def _reason(error: Exception) -> str:
    """Return why an index on disk cannot be used."""
    if isinstance(error, FileNotFoundError):
        return f"{Path(error.filename).name} does not exist"
    if isinstance(error, _UnusableError):
        return str(error)
    # RuntimeError: FAISS's, also if a newer one was made just now
    return f"it is damaged: {one_line(error)}"


def _facts(store: Store, recipe: Recipe) -> dict[str, Any]:
    """Return the facts that an index on disk must have to be used."""
    settings = {name: value for name, value in store.settings.items() if name != SOURCE}
    plain = json.loads(json.dumps(settings))
    return {"format": FORMAT, "recipe": recipe.name, "settings": plain}


def _read(folder: Path, store: Store, recipe: Recipe) -> tuple[Index, Features, bool]:
    """Return the index on disk, features of the whole store, and whether the index covers them."""
    facts = json.loads(read_regular(folder / FACTS, MAX_FACTS_BYTES))
    for name, value in _facts(store, recipe).items():
        if facts[name] != value:
            raise _UnusableError(f"its {name} is another one")
    if not is_intact(facts):
        raise _UnusableError(f"{FACTS} is not as it was written")
    paths = {}
    for kind, name in facts["files"].items():
        path = folder / Path(name).name
        paths[kind] = path
        check_regular(path)
        if path.stem.rpartition("-")[2] != _digits(path):
            raise _UnusableError(f"{path.name} is damaged")
    arrays = dict(read_tensors(paths["arrays"].read_bytes()))
    ends = pa.py_buffer(arrays["key_ends"])
    text = pa.py_buffer(arrays["keys"])
    keys = pa.StringArray.from_buffers(len(arrays["key_ends"]) - 1, ends, text)
    keys.validate(full=True)
    vectors = _read_vectors(paths["vectors"])
    root = arrays["root"]
    made_for = facts["made_for"]
    if not 0 < made_for <= len(keys) == vectors.ntotal or vectors.d != root.shape[1]:
        raise _UnusableError(f"{paths['vectors'].name} has other images than its keys")
    shards = {}
    for name in recipe.columns:
        shards[name] = _names(shard_files(store, name))
    is_whole = facts["shards"] == shards
    if is_whole:
        contents = Contents(keys, _columns(store, facts, arrays, len(keys)))
    else:
        contents = Contents.of(store, recipe.columns, first=keys)
        if not contents.keys[: len(keys)].equals(keys):
            raise _UnusableError("images of it are no longer in the store")
        if len(contents) > GROWTH * made_for:
            raise _UnusableError(
                f"the store has grown from {made_for} to {len(contents)} images"
            )
    state = {}
    for name, values in arrays.items():
        if name.startswith(STATE):
            state[name.removeprefix(STATE)] = values
    features = Features(contents, recipe, recipe.load(state))
    landmarks = features.of(sample(made_for, len(root)))
    return Index(Embedding(landmarks, root), vectors, made_for), features, is_whole


def _columns(
    store: Store, facts: dict[str, Any], arrays: dict[str, Array], n: int
) -> dict[str, MappedColumn]:
    """Return the columns with the places of the rows that the index has recorded."""
    columns = {}
    for factor, names in facts["shards"].items():
        places = {name: arrays[f"{factor}/{name}"] for name in PLACES}
        files = [store.shards_folder(factor) / name for name in names]
        counts = [len(places[name]) for name in PLACES]
        last_shard = places["shard"].max()
        if counts != [n, n, len(files)] or not 0 <= last_shard < len(files):
            raise _UnusableError(f"rows of {factor} are not those of its keys")
        shape = tuple(facts["shapes"][factor])
        columns[factor] = MappedColumn(
            files, codec=store.codec, factor=factor, shape=shape, **places
        )
    return columns


def _read_vectors(path: Path) -> Any:
    import faiss

    size = path.stat().st_size
    # Nothing in a file is larger than the file. Without a limit FAISS believes the sizes that the
    # file states, and allocates gigabytes for them.
    if hasattr(faiss, "set_deserialization_vector_byte_limit"):  # not in all versions
        faiss.set_deserialization_vector_byte_limit(size)
        faiss.set_deserialization_loop_limit(size)
    return faiss.read_index(str(path))


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """Hold the lock of the indexes: two processes may make the same one."""
    folder.mkdir(parents=True, exist_ok=True)
    with hold_lock(folder.parent / LOCK):
        for leftover in folder.glob(".*.*"):  # of a process that was killed
            remove_file(leftover)
        yield


def _write(
    folder: Path, index: Index, features: Features, facts: dict[str, Any]
) -> None:
    """Write an index; `index.json` is replaced last."""
    contents = features.contents
    keys = contents.keys.to_pylist()
    arrays = {STATE + name: values for name, values in features.fitted.state.items()}
    arrays["root"] = index.embedding.root
    arrays["keys"] = np.frombuffer("".join(keys).encode(), np.uint8)
    arrays["key_ends"] = np.cumsum([0, *map(len, keys)], dtype=np.int32)
    shards = {}
    for factor, column in contents.columns.items():
        shards[factor] = _names(column.files)
        for name in PLACES:
            arrays[f"{factor}/{name}"] = getattr(column, name)
    before = set(folder.glob("*-*.*"))
    for name, values in arrays.items():
        # safetensors writes the bytes as they are in memory
        arrays[name] = np.ascontiguousarray(values)
    content = tensor_bytes(arrays)
    vectors_file = _write_file(
        folder, "vectors-{}.faiss", lambda path: _write_vectors(index, path)
    )
    arrays_file = _write_file(
        folder, "arrays-{}.safetensors", lambda path: path.write_bytes(content)
    )
    facts = {
        **facts,
        "shards": shards,
        "version": __version__,
        "images": len(index),
        "made_for": index.made_for,
        "shapes": contents.shapes,
        "files": {"vectors": vectors_file.name, "arrays": arrays_file.name},
    }
    with replacing(folder / FACTS) as partial:
        partial.write_text(json.dumps(sealed(facts), indent=1) + "\n", encoding="utf-8")
    for old in before - {vectors_file, arrays_file}:
        remove_file(old)


def _names(paths: Sequence[Path]) -> list[str]:
    return [path.name for path in paths]


def _write_file(folder: Path, name: str, write: Callable[[Path], object]) -> Path:
    """Write a file whose name contains a hash of its content, and return its path."""
    partial = folder / f".{name}.{secrets.randbits(63)}"
    try:
        write(partial)
        path = folder / name.format(_digits(partial))
        rename_file(partial, path)
        return path
    finally:
        partial.unlink(missing_ok=True)


def _write_vectors(index: Index, path: Path) -> None:
    import faiss

    try:
        faiss.write_index(index.vectors, str(path))
    except RuntimeError as error:  # FAISS has no other for a full disk
        raise OSError(errno.EIO, one_line(error)[-100:]) from None


def _digits(path: Path) -> str:
    """Return the part of a file's hash that is in its name."""
    return file_sha256(path)[:DIGITS]

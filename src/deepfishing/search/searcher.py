"""Search for the images of a store that are nearest to some examples.

Examples are ids of the store, files, or bytes; hits have their score, its forward and backward
half, and the classes behind it. Up to `EXACT_IMAGES` all images are compared; beyond that an index
proposes candidates, which are compared exactly.
"""

from __future__ import annotations

import hashlib
import threading
import warnings
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow.compute as pc
from PIL import Image

from deepfishing.core.features import Factor
from deepfishing.core.rank_one import Array
from deepfishing.errors import ImageError, OptionError, check_choice
from deepfishing.extraction.batches import (
    gather,
    zero_gradient_note,
    zero_gradients,
)
from deepfishing.extraction.encoder import Encode, make_encoder
from deepfishing.extraction.options import Resources
from deepfishing.extraction.settings import Settings
from deepfishing.extraction.texts import TextVectors
from deepfishing.images.frames import bmp_bytes
from deepfishing.images.item import MAX_MEMBER, ImageBytes
from deepfishing.images.preprocess import ImageLike, open_image
from deepfishing.images.sources import find_again
from deepfishing.search.collection import Collection
from deepfishing.search.compare import Features, Query, choose_recipe, search_defaults
from deepfishing.search.heads import fit_to_store
from deepfishing.search.hits import Explanation, Hit, Hits, read_class_names
from deepfishing.search.index import (
    CANDIDATES,
    COARSE,
    PROBES,
    WIDER,
    Index,
    Notice,
    follows,
    open_index,
)
from deepfishing.search.words import (
    WORDS_FEATURE,
    Words,
    check_words_recipe,
    is_file_name,
)
from deepfishing.store import Store
from deepfishing.store.contents import Contents
from deepfishing.store.manifest import count_rows
from deepfishing.util.files import read_regular
from deepfishing.util.progress import Progress, silent

if TYPE_CHECKING:
    from deepfishing.networks.network import Network

EXACT_IMAGES = 100_000
# that a filter leaves: then comparing all of them is quick and sure
EXACT_FILTERED = 20_000
# candidates that the recipe itself compares, where cosines of factors choose them
LAST = 64
METHODS = ("auto", "exact", "index")
NO_WORDS = "words need a network with a text tower, hf:ORG/NAME or open_clip:NAME/TAG"
_KINDS = (int, ImageBytes, Words)  # what examples become, in the order of their factors

Example = str | Path | bytes | Image.Image | np.ndarray[Any, Any] | Words


class Searcher:
    """Searches one store by one recipe; may be used from several threads.

    Parameters
    ----------
    store : Store or path
    by : str, optional
        A recipe, such as `x7`, `dW8` or `pow(dW8,0.5)+x7`; by default the first of
        `compare.search_defaults` that the store has. A recipe that learns, such as prototypes, is
        learnt from the store's own images.
    method : "auto", "exact" or "index"
        Compare all images, or only candidates of an index; auto is exact up to `EXACT_IMAGES`.
    network, weights, device
        Of an image that is not in the store; without `network` the store's own is loaded when it
        is first needed: see `Encoder`.
    class_names : path, optional
        Names of the classes, one per line; by default ImageNet's where they are at hand.
    progress : callable, optional
        Called with a stage, how much of it is done and how much there is, while an index is made.
    notice : callable, optional
        Called with a line when an index is made again or cannot separate images; by default a
        warning. And when a network is prepared, which has no warning.

    Examples
    --------
    >>> import tempfile
    >>> from deepfishing.store import Row
    >>> keys = [f"{n:064x}" for n in range(3)]
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     store = Store(folder, {"network": "toy", "layers": {"8": "fc"}})
    ...     store.append(keys, {"x7": np.array([[1.0, 0], [0.8, 0.6], [0, 1]])})
    ...     store.write_rows(Row(n, f"{n}.jpg", k) for n, k in zip("abc", keys, strict=True))
    ...     [(hit.id, round(hit.score, 2)) for hit in Searcher(store, by="x7").search("a", k=2)]
    [('b', 0.8), ('c', 0.0)]
    """

    def __init__(
        self,
        store: Store | str | Path,
        by: str | None = None,
        method: str = "auto",
        *,
        network: Network | None = None,
        weights: str | Path | None = None,
        device: str = "cpu",
        class_names: Path | None = None,
        progress: Progress | None = None,
        notice: Notice | None = None,
    ) -> None:
        check_choice("method", method, METHODS)
        self.store = store if isinstance(store, Store) else Store.open(store)
        photos = count_rows(self.store.folder)
        self.recipe = choose_recipe(self.store, by, search_defaults(photos))
        self._is_default, self._method = by is None, method
        self._names = None if class_names is None else read_class_names(class_names)
        self.explanation = Explanation.from_recipe(self.recipe)
        self._notice = notice or _warn
        self.index: Index | None = None
        if method == "index" or (method == "auto" and photos > EXACT_IMAGES):
            self.index, self.features = open_index(
                self.store, self.recipe, progress or silent, self._notice
            )
        else:
            contents = Contents.of(self.store, self.recipe.columns)
            fitted = fit_to_store(self.recipe, contents, self.store)
            self.features = Features(contents, self.recipe, fitted)
        self.contents = self.features.contents
        self.collection = Collection.of(self.store, self.contents, self.recipe.columns)
        self.encoder = Encoder(
            self.store.settings,
            network=network,
            weights=weights,
            device=device,
            notice=notice,
        )
        self.texts = TextVectors(self.store.folder, self.store.settings)

    def __repr__(self) -> str:
        how = "exact" if self.index is None else "by index"
        images = f"{len(self.collection):,} images of {str(self.store.folder)!r}"
        return f"Searcher({images} by {self.recipe.title}, {how})"

    def search(
        self,
        like: Example | Sequence[Example],
        k: int = 10,
        unlike: Sequence[Example] = (),
        labels: Sequence[str] = (),
        path: str | None = None,
        candidates: int | None = None,
        probes: int = PROBES,
        among: Array | None = None,
    ) -> Hits:
        """Return the k nearest images, the nearest first.

        Parameters
        ----------
        like : example, or several
            A str is an id of the store, or else the path of a file; a Path is a file; bytes are
            the content of one; or a PIL image, or a uint8 array (H, W, 3). An image given by id is
            not found again; a file whose content is in the store is, with score 1. `Words`, or a
            str without a slash and the suffix of an image, are words where the network reads them.
        k : int
            How many.
        unlike : sequence of examples
            Negative ones: a quarter of their mean similarity is subtracted.
        labels : sequence of str
            Only images that have all of them.
        path : str
            Only images whose path or id is like this pattern, `*/dogs/*`.
        candidates, probes : int, optional
            How many images an index proposes, and how many of its lists it looks into. By default
            500 of 32 lists, and 1,500 if it has coarse vectors and comparing is quick.
        among : ndarray of bool, optional
            Whether each row of the collection may be found, after the other filters.
        """
        if k < 1:
            raise OptionError(f"k must be at least 1, got {k}")
        if self._is_default and self.recipe.name != WORDS_FEATURE:
            examples = map(self.read, (*_as_list(like), *_as_list(unlike)))
            if any(isinstance(example, Words) for example in examples):
                by_words = self._by_words
                return by_words.search(
                    like, k, unlike, labels, path, candidates, probes
                )
        passed = self.collection.passing(labels, path)
        if passed is None:
            passed = among
        elif among is not None:
            passed &= among
        query = self._query(like, unlike)
        rows, scores = self._nearest(query, k, passed, candidates, probes)
        return Hits(self._hits(query, rows, scores), repr(self), self.photo)

    @cached_property
    def _by_words(self) -> Searcher:
        """A searcher of the same store by the embedding, which words are compared with."""
        searcher = Searcher(self.store, WORDS_FEATURE, self._method)
        searcher.encoder = self.encoder
        searcher.texts = self.texts
        return searcher

    def photo(self, id_: str) -> bytes | None:
        """Return the file of an image of the store; None if it is missing or has changed."""
        row = self.collection.row_of(id_)
        if row is None:
            return None
        key = self.contents.keys[int(self.collection.content[row])].as_py()
        return find_again(self.store.folder, self.collection[row].path, key)[1]

    def picture(self, example: Example) -> ImageLike | None:
        """Return the picture of an example or a hit; None if its file is missing."""
        if isinstance(example, bytes):
            return ImageBytes("standard input", example)
        if isinstance(example, Image.Image | np.ndarray):
            return example
        if isinstance(self.read(example), Words):
            return None
        name = str(example)
        if self.collection.row_of(name) is None:
            return Path(name)
        photo = self.photo(name)
        if photo is None:
            return None
        return ImageBytes(name, photo)

    def similarities(
        self, like: Example | Sequence[Example], unlike: Sequence[Example] = ()
    ) -> tuple[Array, Array | None, Array]:
        """Return forward, backward and score of every image of the collection, in its order.

        `self.collection[i]` is the image of entry i. Backward is None for a recipe without a
        gradient. All images are read, index or not.
        """
        query = self._query(like, unlike)
        forward, backward, score = [], [], []
        for block in self.features.blocks():
            of_x, of_delta = self.explanation.similarities(block, query.likes)
            forward.append(of_x.mean(axis=1))
            score.append(query.scores(block))
            if of_delta is not None:
                backward.append(of_delta.mean(axis=1))
        content = self.collection.content
        backward_of_images = None
        if backward:
            backward_of_images = np.concatenate(backward)[content]
        return (
            np.concatenate(forward)[content],
            backward_of_images,
            np.concatenate(score)[content],
        )

    def _nearest(
        self,
        query: Query,
        k: int,
        passed: Array | None,
        candidates: int | None,
        probes: int,
    ) -> tuple[Array, Array]:
        """Return rows and scores of the k nearest images that passed a filter."""
        allowed = self.collection.contents_of(passed)
        n_allowed = len(self.contents)
        if allowed is not None:
            n_allowed = int(allowed.sum())
        is_filtered_to_few = passed is not None and n_allowed <= EXACT_FILTERED
        if self.index is None or is_filtered_to_few:
            numbers, scores = self._compare_all(query, allowed)
        else:
            numbers, scores = self._compare_candidates(
                self.index, query, k, allowed, candidates, probes
            )
        rows: list[int] = []
        scores_of_rows: list[float] = []
        # one more for each example, whose row is left out
        for best in _largest(scores, k + len(query.rows)):
            for row in self.collection.rows_of(int(numbers[best])):
                is_allowed = passed is None or passed[row]
                if is_allowed and row not in query.rows:
                    rows.append(int(row))
                    scores_of_rows.append(float(scores[best]))
        return np.array(rows[:k], int), np.array(scores_of_rows[:k])

    def _compare_all(self, query: Query, allowed: Array | None) -> tuple[Array, Array]:
        """Return the numbers of the allowed contents, and their scores."""
        n = len(self.contents)
        if allowed is None:
            numbers = np.arange(n)
        else:
            numbers = np.flatnonzero(allowed)
        if len(numbers) <= n // 2:
            return numbers, self._scores(numbers, query)
        # reading the others too is quicker than choosing
        blocks = [query.scores(block) for block in self.features.blocks()]
        return numbers, np.concatenate(blocks)[numbers]

    def _compare_candidates(
        self,
        index: Index,
        query: Query,
        k: int,
        allowed: Array | None,
        candidates: int | None,
        probes: int,
    ) -> tuple[Array, Array]:
        """Return numbers and scores of candidates of the index, in the order of the numbers.

        The k nearest images should be among them. Without a number of `candidates`, more and more
        of them are taken, up to `EXACT_IMAGES`, until the order of the index means something.
        """
        wanted = candidates
        if not wanted:
            wanted = CANDIDATES
            if index.is_coarse:
                wanted *= COARSE
        wanted = max(wanted, 4 * k)
        last = max(LAST, 4 * k + len(query.rows))
        while True:
            numbers = index.candidates(query, wanted, allowed, probes)
            is_quick = self.features.is_quick and len(numbers) > last
            if is_quick:
                scores = self.features.cosine_scores(numbers, query)
            else:
                scores = self._scores(numbers, query)
            if candidates is not None or len(numbers) < wanted or follows(scores):
                break
            if WIDER * wanted > EXACT_IMAGES:
                self._notice(
                    f"more than {wanted:,} images are nearly the same to the index; some that are "
                    "as near as these may be missing, take method exact"
                )
                break
            wanted, probes = WIDER * wanted, WIDER * probes
        if is_quick:
            # these scores are exact up to rounding in single precision only
            numbers = numbers[np.argpartition(-scores, last)[:last]]
            scores = self._scores(numbers, query)
        order = np.argsort(numbers)
        return numbers[order], scores[order]

    def _scores(self, numbers: Array, query: Query) -> Array:
        """Return the scores of these contents."""
        scores = [np.empty(0)]
        for block in self.features.blocks(numbers):
            scores.append(query.scores(block))
        return np.concatenate(scores)

    def _hits(self, query: Query, rows: Array, scores: Array) -> Iterator[Hit]:
        """Yield the hits in these rows, with their explanation."""
        if not len(rows):
            return
        features = self.features.of(self.collection.content[rows])
        forward, backward = self.explanation.similarities(features, query.likes)
        classes = self.explanation.class_terms(features, query.likes, self._names)
        for number, row in enumerate(rows.tolist()):
            picture = self.collection[row]
            mean_backward = None
            if backward is not None:
                mean_backward = float(backward[number].mean())
            yield Hit(
                picture.id,
                picture.path,
                picture.labels,
                score=float(scores[number]),
                forward=float(forward[number].mean()),
                backward=mean_backward,
                classes=classes[number],
            )

    def _query(
        self, like: Example | Sequence[Example], unlike: Sequence[Example]
    ) -> Query:
        """Return the query of these examples: of ids, files, images and words."""
        likes = _as_list(like)
        if not likes:
            raise OptionError("a search needs at least one example, got none")
        rows = []  # of the examples that are given by id
        contents: list[int | ImageBytes | Words] = []
        for example in map(self.read, (*likes, *_as_list(unlike))):
            row = None
            if isinstance(example, str):
                row = self.collection.row_of(example)
            if row is None:
                contents.append(self._find(example))
            else:
                rows.append(row)
                contents.append(int(self.collection.content[row]))
        arrays = self._factors(contents)
        return Query.from_factors(arrays, self.features.fitted, len(likes), tuple(rows))

    def _factors(
        self, contents: Sequence[int | ImageBytes | Words]
    ) -> dict[str, Array]:
        """Return the factors of stored contents, other images and words, in their order."""
        stored = [item for item in contents if isinstance(item, int)]
        images = [item for item in contents if isinstance(item, ImageBytes)]
        texts = [item.text for item in contents if isinstance(item, Words)]
        parts: list[dict[str, Array]] = []
        if stored:
            numbers = np.array(stored, dtype=np.int64)
            parts.append(self.contents.read(numbers, self.recipe.columns))
        if images:
            parts.append(self.encoder.factors(images, self.recipe.factors))
        if texts:
            parts.append(self._factors_of_texts(texts))
        # the parts follow each other in the order of `_KINDS`
        kinds = np.array([_KINDS.index(type(item)) for item in contents])
        order = np.argsort(np.argsort(kinds, kind="stable"), kind="stable")
        arrays = {}
        for name in self.recipe.columns:
            values = np.concatenate([part[name] for part in parts])
            arrays[name] = values[order]
        return arrays

    def read(self, example: Example) -> Example:
        """Return `Words` for a text that is neither an id nor a file, else the example itself.

        Only networks with a text tower read words; for others every such text is a file's name.
        """
        if not isinstance(example, str) or not self.texts.is_known:
            return example
        if is_file_name(example) or self.collection.row_of(example) is not None:
            return example
        return Words(example)

    def _factors_of_texts(self, texts: Sequence[str]) -> dict[str, Array]:
        check_words_recipe(self.recipe)
        return {name: self.texts(texts) for name in self.recipe.columns}

    def _find(self, example: Example) -> int | ImageBytes | Words:
        """Return the number of a content in the store, or else the image, or words."""
        if isinstance(example, Words):
            return example
        if isinstance(example, Image.Image | np.ndarray):
            return ImageBytes("the image given", bmp_bytes(open_image(example)))
        if isinstance(example, bytes):
            name, upload = "the bytes given", example
        else:
            name = str(example)
            try:
                upload = read_regular(Path(name), MAX_MEMBER, links=True)
            except (OSError, ValueError) as error:
                reason = getattr(error, "strerror", None) or error
                hint = self.collection.suggestion(name)
                if not hint and not is_file_name(name):
                    hint = f"; {NO_WORDS}"
                raise ImageError(
                    f"a query must be an id of {self.store.folder} or an image file, got "
                    f"{name!r} ({reason}){hint}"
                ) from None
        key = hashlib.sha256(upload).hexdigest()
        number = pc.index(self.contents.keys, key).as_py()
        if number >= 0:
            return int(number)
        return ImageBytes(name, upload)


class Encoder:
    """The network of a store, for queries.

    `settings` are those of the store. A module of the user's own cannot be loaded again from them
    and is given as `network`; `weights` is the weight file, if it is elsewhere now.
    """

    def __init__(
        self,
        settings: Mapping[str, Any],
        *,
        network: Network | None = None,
        weights: str | Path | None = None,
        device: str = "cpu",
        notice: Notice | None = None,
    ) -> None:
        self.settings = settings
        self.network = network
        self.weights = weights
        self.device = device
        self.notice = notice
        self._lock = threading.Lock()
        self._encoders: dict[tuple[Factor, ...], Encode] = {}

    def factors(
        self, images: Sequence[ImageBytes], wanted: tuple[Factor, ...]
    ) -> dict[str, Array]:
        """Return the factors of images, (n, d) or (n, P, d); refuse one that cannot be read."""
        with self._lock:  # one query at a time: the network has all cores already
            if wanted not in self._encoders:
                for image in images:
                    # an image that cannot be read is reported before the network is loaded
                    open_image(image, draft=1)
            factors = gather(self._encoder(wanted)(images))
        zero = zero_gradients(factors)
        if zero.any():
            names = [images[number].name for number in np.flatnonzero(zero).tolist()]
            (self.notice or _warn)(zero_gradient_note(names))
        return factors

    def _encoder(self, wanted: tuple[Factor, ...]) -> Encode:
        """Return the encoder of these factors, which is made once: cutting a network takes long."""
        if wanted not in self._encoders:
            self._encoders[wanted] = make_encoder(
                Settings.from_dict(self.settings),
                wanted,
                lambda: self._loaded_network,
                # starting another engine costs more than it saves on a few images
                resources=Resources(batch_size=8, engine="torch", device=self.device),
                weights=self.weights,
                own=self.network is not None,
                notice=self.notice,
            )
        return self._encoders[wanted]

    @cached_property
    def _loaded_network(self) -> Network:
        settings = Settings.from_dict(self.settings)
        if self.network is None:
            return settings.load_network(device=self.device, weights=self.weights)
        from deepfishing.networks.load import check_same  # torch takes seconds to load

        check_same(settings.network, self.network)
        return self.network


def _as_list(examples: Example | Sequence[Example]) -> list[Example]:
    """Return one example or several as a list."""
    if not isinstance(examples, list | tuple):
        examples = [examples]  # type: ignore[list-item]
    for example in examples:
        if not isinstance(
            example, str | Path | bytes | Image.Image | np.ndarray | Words
        ):
            raise OptionError(
                "an example must be an id, a path, bytes, a PIL image, an array or Words, got "
                f"{type(example).__name__}; give several as a list"
            )
    return list(examples)


def _largest(scores: Array, k: int) -> Array:
    """Return the places of the k largest scores, the largest first; ties keep their order."""
    # with all that are as large as the last one, so that ties keep their order
    smallest = -np.inf
    if k < len(scores):
        last = len(scores) - k
        smallest = np.partition(scores, last)[last]
    chosen: Array = np.flatnonzero(scores >= smallest)
    return chosen[np.argsort(-scores[chosen], kind="stable")][:k]


def _warn(line: str) -> None:
    warnings.warn(line, stacklevel=3)

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
        `compare.search_defaults` that the store has. What a recipe learns, prototypes say, is
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
        Called with a line when an index is made again or cannot tell images apart; by default a
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
        self.explanation = Explanation.of(self.recipe)
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
        """The k nearest images, the nearest first.

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
            Negative ones: a quarter of their mean similarity is taken away.
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
            examples = (
                self.read(example) for example in (*_listed(like), *_listed(unlike))
            )
            if any(isinstance(example, Words) for example in examples):
                by_words = self._by_words
                return by_words.search(
                    like, k, unlike, labels, path, candidates, probes
                )
        passed = self.collection.passing(labels, path)
        if among is not None:
            passed = among if passed is None else passed & among
        query = self._query(like, unlike)
        rows, scores = self._nearest(query, k, passed, candidates, probes)
        hits = self._hits(query, rows, scores) if len(rows) else ()
        return Hits(hits, repr(self), self.photo)

    @cached_property
    def _by_words(self) -> Searcher:
        """The same store by the embedding, which words are compared with."""
        made = Searcher(self.store, WORDS_FEATURE, self._method)
        made.encoder, made.texts = self.encoder, self.texts
        return made

    def photo(self, id_: str) -> bytes | None:
        """The file of an image of the store, found from any folder; None if it is gone or other."""
        row = self.collection.row_of(id_)
        if row is None:
            return None
        key = self.contents.keys[int(self.collection.content[row])].as_py()
        return find_again(self.store.folder, self.collection[row].path, key)[1]

    def picture(self, example: Example) -> ImageLike | None:
        """What to draw for an example or a hit; None for an image of the store that is gone."""
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
        return None if photo is None else ImageBytes(name, photo)

    def similarities(
        self, like: Example | Sequence[Example], unlike: Sequence[Example] = ()
    ) -> tuple[Array, Array | None, Array]:
        """Forward, backward and score of every image of the collection, in its order.

        `self.collection[i]` is the image of entry i. Backward is None for a recipe without a
        gradient. All images are read, index or not.
        """
        query = self._query(like, unlike)
        forward, backward, score = [], [], []
        for block in self.features.blocks():
            ahead, back = self.explanation.similarities(block, query.likes)
            forward.append(ahead.mean(axis=1))
            score.append(query.scores(block))
            if back is not None:
                backward.append(back.mean(axis=1))
        content = self.collection.content
        return (
            np.concatenate(forward)[content],
            np.concatenate(backward)[content] if backward else None,
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
        """Rows and scores of the k nearest images that passed a filter."""
        n, allowed = len(self.contents), self.collection.contents_of(passed)
        left = n if allowed is None else int(allowed.sum())
        if self.index is None or (passed is not None and left <= EXACT_FILTERED):
            numbers = np.arange(n) if allowed is None else np.flatnonzero(allowed)
            # then reading the rest too is quicker than choosing
            everything = left > n // 2
            blocks = self.features.blocks(None if everything else numbers)
            scores = np.concatenate([query.scores(block) for block in blocks])
            scores = scores[numbers] if left < n and everything else scores
        else:
            numbers, scores = self._proposed(
                self.index, query, k, allowed, candidates, probes
            )
        found = [
            (int(row), float(scores[best]))
            # one more for each example, whose row is not to be found again
            for best in _largest(scores, k + len(query.rows))
            for row in self.collection.rows_of(int(numbers[best]))
            if row not in query.rows and (passed is None or passed[row])
        ]
        return np.array([row for row, _ in found[:k]], int), np.array(
            [s for _, s in found[:k]]
        )

    def _proposed(
        self,
        index: Index,
        query: Query,
        k: int,
        allowed: Array | None,
        candidates: int | None,
        probes: int,
    ) -> tuple[Array, Array]:
        """Rising numbers and scores of contents among which the k nearest are, by the index.

        So many `candidates` if they are given; by default more and more of them, up to
        `EXACT_IMAGES`, until the order of the index means something.
        """
        wanted = max(
            candidates or CANDIDATES * (COARSE if index.is_coarse else 1), 4 * k
        )
        last = max(LAST, 4 * k + len(query.rows))
        while True:
            numbers = index.candidates(query, wanted, allowed, probes)
            quick = self.features.is_quick and len(numbers) > last
            near = self._scores(numbers, query, quick)
            if candidates is not None or len(numbers) < wanted or follows(near):
                break
            if WIDER * wanted > EXACT_IMAGES:
                self._notice(
                    f"more than {wanted:,} images are nearly the same to the index; some that are "
                    "as near as these may be missing, take method exact"
                )
                break
            wanted, probes = WIDER * wanted, WIDER * probes
        if quick:
            numbers = numbers[np.argpartition(-near, last)[:last]]
            near = self._scores(numbers, query, quick=False)
        order = np.argsort(numbers)
        return numbers[order], near[order]

    def _scores(self, numbers: Array, query: Query, quick: bool) -> Array:
        """Scores of these contents, `quick` up to rounding in single precision."""
        if quick:
            return self.features.cosine_scores(numbers, query)
        scores = [query.scores(block) for block in self.features.blocks(numbers)]
        return np.concatenate(scores) if scores else np.empty(0)

    def _hits(self, query: Query, rows: Array, scores: Array) -> Iterator[Hit]:
        features = self.features.of(self.collection.content[rows])
        forward, backward = self.explanation.similarities(features, query.likes)
        classes = self.explanation.class_terms(features, query.likes, self._names)
        for at, (row, score) in enumerate(
            zip(rows.tolist(), scores.tolist(), strict=True)
        ):
            picture, ahead = self.collection[row], float(forward[at].mean())
            back = None if backward is None else float(backward[at].mean())
            yield Hit(
                picture.id,
                picture.path,
                picture.labels,
                score,
                ahead,
                back,
                classes[at],
            )

    def _query(
        self, like: Example | Sequence[Example], unlike: Sequence[Example]
    ) -> Query:
        likes = _listed(like)
        if not likes:
            raise OptionError(
                "a search needs at least one example to be like, got none"
            )
        examples = [self.read(example) for example in (*likes, *_listed(unlike))]
        rows = [
            self.collection.row_of(e) if isinstance(e, str) else None for e in examples
        ]
        found = [
            self._find(one) if row is None else int(self.collection.content[row])
            for one, row in zip(examples, rows, strict=True)
        ]
        numbers = np.array(
            [one for one in found if isinstance(one, int)], dtype=np.int64
        )
        new = [one for one in found if isinstance(one, ImageBytes)]
        texts = [one.text for one in found if isinstance(one, Words)]
        stored = (
            self.contents.read(numbers, self.recipe.columns) if len(numbers) else {}
        )
        computed = self.encoder.factors(new, self.recipe.factors) if new else {}
        read = self._factors_of_texts(texts) if texts else {}
        # back into the order that they were given in
        kinds = np.array([_KINDS.index(type(one)) for one in found])
        order = np.argsort(np.argsort(kinds, kind="stable"), kind="stable")
        arrays = {
            name: np.concatenate(
                [side[name] for side in (stored, computed, read) if side]
            )[order]
            for name in self.recipe.columns
        }
        known = tuple(row for row in rows if row is not None)
        return Query.of(arrays, self.features.fitted, len(likes), known)

    def read(self, example: Example) -> Example:
        """Return `Words` for a text that is neither an id nor a file, else the example itself.

        Only networks with a text tower read words; for others every such text is a file's name.
        """
        if not isinstance(example, str) or not self.texts.is_known:
            return example
        is_words = not is_file_name(example) and self.collection.row_of(example) is None
        return Words(example) if is_words else example

    def _factors_of_texts(self, texts: Sequence[str]) -> dict[str, Array]:
        check_words_recipe(self.recipe)
        return {name: self.texts(texts) for name in self.recipe.columns}

    def _find(self, example: Example) -> int | ImageBytes | Words:
        """The number of a file's content, or the image if it is not in the store, or words."""
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
        return int(number) if number >= 0 else ImageBytes(name, upload)


class Encoder:
    """The network of a store, for queries.

    `facts` are the settings of the store. A module of the user's own cannot be loaded again from
    them and is given as `network`; `weights` is the weight file, if it is elsewhere now.
    """

    def __init__(
        self,
        facts: Mapping[str, Any],
        *,
        network: Network | None = None,
        weights: str | Path | None = None,
        device: str = "cpu",
        notice: Notice | None = None,
    ) -> None:
        self.facts = facts
        self.given = network
        self.weights = weights
        self.device = device
        self.notice = notice
        self._lock = threading.Lock()
        self._encoders: dict[tuple[Factor, ...], Encode] = {}

    def factors(
        self, images: Sequence[ImageBytes], wanted: tuple[Factor, ...]
    ) -> dict[str, Array]:
        """Factors of images, each (n, d) or (n, P, d); one that cannot be read is an error."""
        with self._lock:  # one query at a time: the network has all cores already
            if wanted not in self._encoders:
                for image in images:
                    # what cannot be read is told before the network is loaded
                    open_image(image, draft=1)
            factors = gather(self._encoder(wanted)(images))
        zero = zero_gradients(factors)
        if zero.any():
            names = [images[number].name for number in np.flatnonzero(zero).tolist()]
            (self.notice or _warn)(zero_gradient_note(names))
        return factors

    def _encoder(self, wanted: tuple[Factor, ...]) -> Encode:
        """Made once: to cut the network takes longer than a photo, and more memory each time."""
        if wanted not in self._encoders:
            self._encoders[wanted] = make_encoder(
                Settings.from_dict(self.facts),
                wanted,
                lambda: self._network,
                # starting another engine costs more than it saves on a few images
                resources=Resources(batch_size=8, engine="torch", device=self.device),
                weights=self.weights,
                own=self.given is not None,
                notice=self.notice,
            )
        return self._encoders[wanted]

    @cached_property
    def _network(self) -> Network:
        settings = Settings.from_dict(self.facts)
        if self.given is None:
            return settings.load_network(device=self.device, weights=self.weights)
        from deepfishing.networks.load import check_same  # torch takes seconds to load

        check_same(settings.network, self.given)
        return self.given


def _listed(examples: Example | Sequence[Example]) -> list[Example]:
    """One example or several, as a list."""
    listed = list(examples) if isinstance(examples, list | tuple) else [examples]
    for one in listed:
        if not isinstance(one, str | Path | bytes | Image.Image | np.ndarray | Words):
            raise OptionError(
                "an example must be an id, a path, bytes, a PIL image, an array or Words, got "
                f"{type(one).__name__}; give several as a list"
            )
    return listed  # type: ignore[return-value]


def _largest(scores: Array, k: int) -> Array:
    """Where the k largest scores are, the largest first, and the first of two that are the same."""
    # with all that are as large as the last one, so that the first of them can be told
    least = (
        np.partition(scores, len(scores) - k)[len(scores) - k]
        if k < len(scores)
        else -np.inf
    )
    chosen: Array = np.flatnonzero(scores >= least)
    return chosen[np.argsort(-scores[chosen], kind="stable")][:k]


def _warn(line: str) -> None:
    warnings.warn(line, stacklevel=3)

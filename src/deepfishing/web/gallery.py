"""Questions of the page to a store.

Ids, labels, texts and examples of a question are looked up among the images of the store and never
used as names of files; answers are plain values for JSON. Only recipes of a list are allowed, so a
visitor cannot make the server fit arbitrary ones.
"""

from __future__ import annotations

import itertools
import math
import threading
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pydantic import BaseModel, ConfigDict, Field, model_validator
from pydantic_core import PydanticCustomError

from deepfishing.core.features import (
    Factor,
    features_of,
    needed_factors,
    split_names,
    table_features,
)
from deepfishing.core.groups import similar_groups
from deepfishing.core.rank_one import Array
from deepfishing.core.recipes import Recipe, parse_recipe
from deepfishing.errors import FeatureError, OptionError, did_you_mean
from deepfishing.learn.folds import find_embedding
from deepfishing.learn.model import Model
from deepfishing.networks.reference import layers_of
from deepfishing.search import Searcher
from deepfishing.search.compare import choose_recipe, search_defaults
from deepfishing.search.hits import Hit
from deepfishing.search.words import MAX_LETTERS, WORDS_FEATURE, Words
from deepfishing.store import Store
from deepfishing.store.contents import Contents
from deepfishing.store.label_log import Labels
from deepfishing.store.manifest import count_rows
from deepfishing.util.machine import release_memory
from deepfishing.util.progress import Progress
from deepfishing.web.live_labels import LiveLabels
from deepfishing.web.photos import Thumbnails, Uploads
from deepfishing.web.selections import Selections

# Before all others if the store has them. The first gradient is what `deepfish search` takes, and
# the first forward recipe the features that most people take.
FORWARD_FIRST, GRADIENTS_LAST = ("x7", "pow(x7,0.5)"), ("pow(dW8,0.5)",)
TOP = 3  # classes that a model names
EXACT_PHOTOS = 15_000  # of more, an index keeps the server below a gigabyte
OPEN = 6  # recipes whose features are kept at a time
POINTS = 20_000  # that a plot shows at most
NEAREST = 2_000  # points of it where the store is searched by an index
MAX_HITS = 200
RELEASE_EVERY = 16  # searches, after which the pages of the features are let go
# hits that are found for each one that is shown, since copies share a place
LOOK_FURTHER, MAX_LOOKED_AT = 3, 600
NEW, HELD_OUT, SEEN = "new", "held out", "seen"  # basis of a prediction
MAX_EXAMPLES = 50
MAX_TEXT = 4096  # of an id, a label, a text

Text = Annotated[str, Field(max_length=MAX_TEXT)]
Only = Literal["", "labelled", "unlabelled", "none"]
Key = str | bytes | Words  # of an image of the store, or of an uploaded photo


class UnknownError(OptionError):
    """An image, a label or a recipe that the store does not have."""


class Example(BaseModel):
    """An image of the store, by its id, or an uploaded photo, by its key."""

    model_config = ConfigDict(extra="forbid", strict=True)
    id: Text = ""
    upload: Text = ""

    @model_validator(mode="after")
    def _has_one(self) -> Example:
        if bool(self.id) is bool(self.upload):
            line = "an example must have an id or an upload, and not both"
            raise PydanticCustomError("example", line)
        return self


@dataclass(frozen=True)
class Filter:
    """Conditions on images: all of the labels, a text in path or id, a selection.

    `only` stands for images that are labelled, not labelled, or labelled with none of the classes.
    """

    labels: tuple[str, ...] = ()
    text: str = ""
    selection: str = ""  # a key of `Selections`
    only: Only = ""


class Question(BaseModel):
    """A search: images like examples, by a recipe, among those that pass a filter."""

    model_config = ConfigDict(extra="forbid", strict=True)
    by: Text
    like: Annotated[list[Example], Field(max_length=MAX_EXAMPLES)] = []
    words: Annotated[str, Field(max_length=MAX_LETTERS)] = ""
    unlike: Annotated[list[Example], Field(max_length=MAX_EXAMPLES)] = []
    k: Annotated[int, Field(ge=1, le=MAX_HITS)] = 12
    labels: Annotated[list[Text], Field(max_length=20)] = []
    text: Text = ""
    selection: Text = ""
    only: Only = ""

    @model_validator(mode="after")
    def _has_example(self) -> Question:
        if not self.like and not self.words.strip():
            line = "a search must have an example in like, or words"
            raise PydanticCustomError("question", line)
        return self

    @property
    def recipe(self) -> str:
        """The recipe of the search: words are compared with the embedding alone."""
        if self.words.strip():
            return WORDS_FEATURE
        return self.by

    @property
    def filter(self) -> Filter:
        """The filter as one value."""
        return Filter(tuple(self.labels), self.text, self.selection, self.only)


@dataclass(frozen=True)
class Offer:
    """Recipes by their titles, the preselected one first; one side may be empty."""

    forward: tuple[str, ...]
    gradient: tuple[str, ...]
    factors: tuple[Factor, ...]  # that all of them need together

    def __contains__(self, name: object) -> bool:
        return name in self.forward or name in self.gradient


def make_offer(store: Store, features: str | None = None) -> Offer:
    """Return what a store can be searched by, these comma-separated recipes first."""
    factors = set(store.factors())
    layers = layers_of(store.settings)
    other_names = [feature.name for feature in features_of(factors)]
    sides: dict[bool, dict[str, Recipe]] = {True: {}, False: {}}
    for name in split_names(features) if features else ():
        recipe = choose_recipe(store, name)  # an unknown one is an error
        sides[recipe.is_gradient][recipe.title] = recipe
    defaults = search_defaults(count_rows(store.folder))
    first = (*FORWARD_FIRST, *defaults, *GRADIENTS_LAST)
    for name in (*first, *table_features(layers), *other_names):
        try:
            recipe = parse_recipe(name, layers)
        except FeatureError:
            continue  # of a layer that the network does not have
        if factors.issuperset(recipe.columns):
            sides[recipe.is_gradient].setdefault(recipe.title, recipe)
    if not sides[False] and not sides[True]:
        choose_recipe(store)  # refuses a store without usable factors
        raise OptionError(
            f"{store.folder} has no factors that the page knows; pass --features"
        )
    recipes = (*sides[False].values(), *sides[True].values())
    return Offer(tuple(sides[False]), tuple(sides[True]), needed_factors(recipes))


def shown_name(folder: Path) -> str:
    """Return the name of a store for the page: of `PHOTOS/.deepfishing` that of the photos.

    >>> shown_name(Path("/home/me/holiday/.deepfishing"))
    'holiday'
    """
    return folder.parent.name if folder.name.startswith(".") else folder.name


class Gallery:
    """A store that is open for the page; safe to use from several threads.

    `features` are recipes to start with, comma-separated, `model` the folder of a model that was
    trained with the same network, `weights` the network's weight file if it is elsewhere now.
    """

    def __init__(
        self,
        folder: str | Path,
        features: str | None = None,
        model: str | Path | None = None,
        progress: Progress | None = None,
        *,
        weights: str | Path | None = None,
    ) -> None:
        self.folder = Path(folder)
        self.name = shown_name(self.folder.absolute())
        self.unread = 0  # photos of the folder that are not in the store yet
        self.store = Store.open(folder)
        self.offer = make_offer(self.store, features)
        self.model: Model | None = None
        needed = self.offer.factors
        if model is not None:
            self.model = Model.load(model)
            self.model.check_store(self.store)
            self._judged = Contents.of(self.store, self.model.columns)
            needed = (*needed, *self.model.factors)
        self.uploads = Uploads(
            self.store.settings, tuple(dict.fromkeys(needed)), weights=weights
        )
        self.thumbnails = Thumbnails(self.store.folder)
        self._lock = threading.Lock()
        self._progress = progress
        self._searches = itertools.count(1)
        self._open = lru_cache(OPEN)(self._open_searcher)
        # the recipes that the page starts with are opened now, where progress is shown
        starts = (*self.offer.gradient[:1], *self.offer.forward[:1])
        searchers = [self.searcher(by) for by in starts]
        self._progress = None
        self.first_searcher = searchers[0]
        self.collection = self.first_searcher.collection
        self.keys = self.first_searcher.contents.keys
        self.live = LiveLabels(self.store.folder, self.collection, self.keys)
        self.selections = Selections()
        self._with_text = lru_cache(32)(self._find_text)

    def searcher(self, by: str) -> Searcher:
        """Return the searcher of a recipe; it is opened at its first use."""
        if by not in self.offer:
            raise UnknownError("by must be one of the recipes that /api/store lists")
        with self._lock:  # so that two threads do not open it at once
            return self._open(by)

    def _open_searcher(self, by: str) -> Searcher:
        # exact search keeps the features of all photos in memory, for each recipe
        is_large = count_rows(self.store.folder) > EXACT_PHOTOS
        method = "index" if is_large else "auto"
        searcher = Searcher(self.store, by, method, progress=self._progress)
        searcher.encoder = self.uploads
        searcher.contents.release()
        release_memory()
        return searcher

    def summary(self) -> dict[str, Any]:
        """Return the facts that the page shows first."""
        labels = []
        for name, count in self.live.counts().items():
            labels.append({"name": name, "images": count})
        model = None
        if self.model is not None:
            model = parse_recipe(self.model.recipe).title
        return {
            "name": self.name,
            "network": self.store.settings["network"],
            "images": len(self.collection),
            "forward": self.offer.forward,
            "gradient": self.offer.gradient,
            "labels": labels,
            "words": self.reads_words,
            "unread": self.unread,
            "model": model,
        }

    @property
    def reads_words(self) -> bool:
        """Whether images can be searched by words."""
        return self.first_searcher.texts.is_known and WORDS_FEATURE in self.offer

    def images(self, conditions: Filter, offset: int, limit: int) -> dict[str, Any]:
        """Return some of the images that pass a filter, and their number."""
        return self.images_of(self.rows(conditions), offset, limit)

    def images_of(self, rows: Array | None, offset: int, limit: int) -> dict[str, Any]:
        """Return some images of these rows in their order; None stands for all rows."""
        if rows is None:
            rows = np.arange(len(self.collection))
        page = rows[offset : offset + limit]
        images = [self._image(int(row)) for row in page]
        return {"total": len(rows), "images": images}

    def image(self, id_: str) -> dict[str, Any]:
        """Return the facts of one image."""
        return self._image(self.row(id_))

    def _image(self, row: int) -> dict[str, Any]:
        return {"id": self.id_of(row), "labels": self.live.of_row(row) or ()}

    def id_of(self, row: int) -> str:
        """Return the id of a row."""
        return str(self.collection.table.column("id")[row].as_py())

    def content(self, id_: str) -> tuple[str, str]:
        """Return path and hash of an image."""
        row = self.row(id_)
        return self.path_of(row), self.key_of_row(row)

    def path_of(self, row: int) -> str:
        """Return the path at which a row was seen last."""
        return str(self.collection.table.column("path")[row].as_py())

    def key_of_row(self, row: int) -> str:
        """Return the hash of a row's content."""
        return str(self.keys[int(self.collection.content[row])].as_py())

    def ids_of(self, contents: Collection[str]) -> list[str]:
        """Return the ids of all images that have one of these contents."""
        numbers = pc.index_in(pa.array(contents, pa.string()), value_set=self.keys)
        ids = []
        for number in numbers.drop_null().to_pylist():
            for row in self.collection.rows_of(number):
                ids.append(self.id_of(int(row)))
        return ids

    def search(self, question: Question) -> list[dict[str, Any]]:
        """Return the nearest images and why, the nearest first.

        Of copies and similar scenes only the nearest is a hit, so that they do not fill the first
        places; the others are its `similar`.
        """
        rows = self.rows(question.filter)
        if rows is not None and not len(rows):
            return []
        searcher, examples, negative = self._examples(question)
        among = self._rows_in(searcher, rows)
        if among is not None and not among.any():
            return []
        count = min(question.k * LOOK_FURTHER, MAX_LOOKED_AT)
        hits = searcher.search(examples, count, negative, among=among)
        if next(self._searches) % RELEASE_EVERY == 0:
            searcher.contents.release()
        groups = collapse(hits, groups_of(searcher, hits))
        return [self._hit(hit, similar) for hit, similar in groups[: question.k]]

    def _hit(self, hit: Hit, similar: list[str]) -> dict[str, Any]:
        """Return a hit for the page, with the ids of its copies and similar scenes."""
        classes = [{"name": c.name, "term": _number(c.term)} for c in hit.classes]
        return {
            "id": hit.id,
            "similar": similar,
            "labels": self._labels_of(hit.id) or (),
            "score": _number(hit.score),
            "forward": _number(hit.forward),
            "backward": _number(hit.backward),
            "classes": classes,
        }

    def _labels_of(self, id_: str) -> Labels:
        """Return the labels of an image as they are now; other recipes may have other images."""
        row = self.collection.row_of(id_)
        return None if row is None else self.live.of_row(row)

    def _rows_in(self, searcher: Searcher, rows: Array | None) -> Array | None:
        """Return whether each row of a searcher's collection is among these; None for all."""
        if rows is None:
            return None
        ids = self.collection.table.column("id")
        ids_of_searcher = searcher.collection.table.column("id")
        is_among = np.zeros(len(self.collection), dtype=bool)
        is_among[rows] = True
        if ids.equals(ids_of_searcher):
            return is_among
        ids_among = ids.filter(pa.array(is_among))
        in_searcher: Array = pc.is_in(ids_of_searcher, value_set=ids_among).to_numpy()
        return in_searcher

    def scatter(self, question: Question) -> dict[str, Any]:
        """Return forward and backward similarity of the images that pass a filter.

        `is_product` is true where the score is their product, so that lines of equal score can be
        drawn. Of more than `POINTS` images the points are those with the highest scores and an even
        sample of the others; with an index, the nearest `NEAREST`.
        """
        nothing = {
            "total": 0,
            "ids": [],
            "forward": [],
            "backward": [],
            "is_product": False,
        }
        passing = self.rows(question.filter)
        if passing is not None and not len(passing):
            return nothing
        searcher, examples, negative = self._examples(question)
        is_single = len(examples) == 1 and not negative
        is_product = searcher.recipe.is_plain and is_single
        among = self._rows_in(searcher, passing)
        if searcher.index is not None:
            nearest = searcher.search(examples, NEAREST, negative, among=among)
            total = len(self.collection)
            if passing is not None:
                total = len(passing)
            return {
                "total": total,
                "ids": [hit.id for hit in nearest],
                "forward": [_number(hit.forward) for hit in nearest],
                "backward": [_number(hit.backward or 0) for hit in nearest],
                "is_product": is_product,
            }
        forward, backward, score = searcher.similarities(examples, negative)
        if backward is None:
            return nothing
        rows = np.arange(len(score))
        if among is not None:
            rows = np.flatnonzero(among)
        points = thin_out(rows, score, POINTS)
        return {
            "total": len(rows),
            "ids": searcher.collection.table.column("id").take(points).to_pylist(),
            "forward": [_number(value, 4) for value in forward[points].tolist()],
            "backward": [_number(value, 4) for value in backward[points].tolist()],
            "is_product": is_product,
        }

    def predict(self, example: Example) -> dict[str, Any]:
        """Return the most probable classes of an image by the trained model.

        They are empty for an image without the model's factors. Of an image that the model was
        trained on, it is the prediction of the cross-validation, made without the image and its
        copies; `basis` is "held out" then.
        """
        if self.model is None:
            raise UnknownError("predictions need `deepfish serve --model`, got none")
        columns = self.model.columns
        held_out = None
        if example.upload:
            arrays = self.uploads.recall(example.upload)
        else:
            key = self.content(example.id)[1]
            if self.model.held_out is not None:
                held_out = self.model.held_out.find(key)
            number = pc.index(self._judged.keys, key).as_py()
            if number < 0:
                return {"classes": [], "basis": NEW}
            arrays = self._judged.read(np.array([number]), columns)
        if held_out is not None and (held_out >= 0).any():
            basis = HELD_OUT
            probabilities = np.where(held_out >= 0, held_out, np.nan)
        else:
            basis = NEW
            if held_out is not None:
                basis = SEEN
            factors = {name: arrays[name] for name in columns}
            probabilities = self.model.probabilities(factors)[0]
        classes = []
        for number in np.argsort(-probabilities, kind="stable")[:TOP]:
            probability = float(probabilities[number])
            if math.isfinite(probability):
                name = self.model.classes[number]
                classes.append({"name": name, "probability": round(probability, 4)})
        return {"classes": classes, "basis": basis}

    def _examples(self, question: Question) -> tuple[Searcher, list[Key], list[Key]]:
        """Return a searcher, examples and negative examples.

        Unknown ids are refused, since a searcher would take them for paths of files.
        """
        texts: list[Key] = []
        if question.words.strip():
            if not self.reads_words:
                raise UnknownError(
                    "words need a network with a text tower, which this store lacks"
                )
            texts = [Words(question.words.strip())]
        searcher = self.searcher(question.recipe)

        def key(example: Example) -> Key:
            if example.upload:
                self.uploads.recall(example.upload)
                return example.upload.encode()
            self.row(example.id)
            if searcher.collection.row_of(example.id) is None:
                raise UnknownError(
                    f"the image has no features for {searcher.recipe.name}"
                )
            return example.id

        examples = [*texts, *map(key, question.like)]
        negative = [key(example) for example in question.unlike]
        return searcher, examples, negative

    def row(self, id_: str) -> int:
        """Return the row of an id, or raise an `UnknownError`."""
        row = self.collection.row_of(id_)
        if row is None:
            raise UnknownError("the store has no image with this id")
        return row

    def rows(self, conditions: Filter) -> Array | None:
        """Return the rows that pass a filter, in ascending order; None if all pass."""
        parts = list(self._passing(conditions))
        if not parts:
            return None
        return np.flatnonzero(np.logical_and.reduce(parts))

    def _passing(self, conditions: Filter) -> Iterator[Array]:
        """Yield whether each row passes, for each part of a filter."""
        if conditions.text:
            yield self._with_text(conditions.text)
        if conditions.only:
            self.live.refresh()
            yield self.live.has_state(conditions.only)
        counts: Mapping[str, int] = {}
        if conditions.labels:
            counts = self.live.counts()
        for label in conditions.labels:
            if label not in counts:
                raise UnknownError(
                    f"label must be one that the store has, got {label!r}"
                    f"{did_you_mean(label, counts)}"
                )
            yield self.live.has(label)
        if conditions.selection:
            is_selected = np.zeros(len(self.collection), dtype=bool)
            is_selected[self.selections.get(conditions.selection).rows] = True
            yield is_selected

    def _find_text(self, text: str) -> Array:
        """Return whether the path or the id of each row contains a text, whatever its case."""
        contains = np.zeros(len(self.collection), dtype=bool)
        for name in ("path", "id"):
            column = self.collection.table.column(name)
            contains |= pc.match_substring(column, text, ignore_case=True).to_numpy()
        return contains


def collapse(hits: Sequence[Hit], groups: Sequence[int]) -> list[tuple[Hit, list[str]]]:
    """Return the first hit of each group, with the ids of its others."""
    firsts: dict[int, tuple[Hit, list[str]]] = {}
    for hit, group in zip(hits, groups, strict=True):
        if group in firsts:
            firsts[group][1].append(hit.id)
        else:
            firsts[group] = (hit, [])
    return list(firsts.values())


def groups_of(searcher: Searcher, hits: Sequence[Hit]) -> list[int]:
    """Return the groups of hits that are copies or similar scenes, by what the search compared."""
    if not hits:
        return []
    collection = searcher.collection
    numbers = [int(collection.content[collection.row_of(hit.id)]) for hit in hits]
    distinct, inverse = np.unique(numbers, return_inverse=True)
    arrays = searcher.contents.read(distinct, searcher.recipe.columns)
    embedding = np.asarray(find_embedding(arrays), dtype=np.float32)
    groups: list[int] = similar_groups(embedding)[inverse].tolist()
    return groups


def thin_out(rows: Array, score: Array, limit: int) -> Array:
    """Return at most `limit` of the rows: half the best, half evenly spread, in order."""
    if len(rows) <= limit:
        return rows
    order = rows[np.argsort(-score[rows], kind="stable")]
    half = limit // 2
    best, others = order[:half], np.sort(order[half:])
    positions = np.linspace(0, len(others) - 1, limit - half)
    spread = others[positions.round().astype(np.int64)]
    return np.sort(np.concatenate([best, spread]))


def _number(value: float | None, digits: int = 6) -> float | None:
    """Round a number for JSON; None if it is not finite."""
    if value is None or not math.isfinite(value):
        return None
    return round(float(value), digits)

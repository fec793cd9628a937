"""Questions of the page to a store.

Ids, labels, texts and examples of a question are looked up among the images of the store and never
used as names of files; answers are plain values for JSON. Only recipes of a list are allowed, so a
visitor cannot make the server fit arbitrary ones.
"""

from __future__ import annotations

import itertools
import math
import threading
from collections.abc import Collection, Iterator, Sequence
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
NEAREST = 2_000  # that it shows of a store too large to look at all
MAX_HITS = 200
RELEASE_EVERY = 16  # searches, after which the pages of the features are let go
# hits that are looked at for each one that is shown
LOOK_FURTHER, MAX_LOOKED_AT = 3, 600
NEW, HELD_OUT, SEEN = "new", "held out", "seen"  # what a prediction is made of
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
    """Only images with all of the labels, whose path or id contains the text, of a selection.

    `only` takes those that are labelled, not labelled, or labelled with none of the classes.
    """

    labels: tuple[str, ...] = ()
    text: str = ""
    selection: str = ""  # a key of `Selections`
    only: Only = ""


class Question(BaseModel):
    """What to search for: images like examples, by a recipe, of those that pass a filter."""

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
        """The recipe that is searched by: words are compared with the embedding alone."""
        return WORDS_FEATURE if self.words.strip() else self.by

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
    there = set(store.factors())
    layers = layers_of(store.settings)
    others = [feature.name for feature in features_of(there)]
    sides: dict[bool, dict[str, Recipe]] = {True: {}, False: {}}
    for name in split_names(features) if features else ():
        recipe = choose_recipe(store, name)  # an unknown one is an error
        sides[recipe.is_gradient][recipe.title] = recipe
    defaults = search_defaults(count_rows(store.folder))
    first = (*FORWARD_FIRST, *defaults, *GRADIENTS_LAST)
    for name in (*first, *table_features(layers), *others):
        try:
            recipe = parse_recipe(name, layers)
        except FeatureError:
            continue  # of a layer that the network does not have
        if there.issuperset(recipe.columns):
            sides[recipe.is_gradient].setdefault(recipe.title, recipe)
    if not sides[False] and not sides[True]:
        choose_recipe(store)  # an empty store, or one with nothing known in it: says so
        raise OptionError(
            f"{store.folder} has no factors that the page knows; pass --features"
        )
    recipes = (*sides[False].values(), *sides[True].values())
    return Offer(tuple(sides[False]), tuple(sides[True]), needed_factors(recipes))


class Gallery:
    """A store, open for the page; may be used from several threads.

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
        self.name = self.folder.absolute().name  # that the page shows
        self.unread = 0  # photos of the folder that are not in the store yet
        self.store = Store.open(folder)
        self.offer = make_offer(self.store, features)
        self.model = None if model is None else Model.load(model)
        needed = self.offer.factors
        if self.model is not None:
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
        # what the page starts with is opened now, where its progress can be seen
        starts = (*self.offer.gradient[:1], *self.offer.forward[:1])
        first, *_ = [self.searcher(by) for by in starts]
        self._progress = None
        self.first_searcher = first
        self.collection, self.keys = first.collection, first.contents.keys
        self.live = LiveLabels(self.store.folder, self.collection, self.keys)
        self.selections = Selections()
        self._with_text = lru_cache(32)(self._find_text)

    def searcher(self, by: str) -> Searcher:
        """The searcher of a recipe, opened when it is first asked for."""
        if by not in self.offer:
            raise UnknownError("by must be one of the recipes that /api/store lists")
        with self._lock:  # or two threads would open it at once
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
        """What the page shows before anything is asked."""
        return {
            "name": self.name,
            "network": self.store.settings["network"],
            "images": len(self.collection),
            "forward": self.offer.forward,
            "gradient": self.offer.gradient,
            "labels": [
                {"name": name, "images": n} for name, n in self.live.counts().items()
            ],
            "words": self.reads_words,
            "unread": self.unread,
            "model": None
            if self.model is None
            else parse_recipe(self.model.recipe).title,
        }

    @property
    def reads_words(self) -> bool:
        """Whether images can be searched by words."""
        return self.first_searcher.texts.is_known and WORDS_FEATURE in self.offer

    def images(self, wanted: Filter, offset: int, limit: int) -> dict[str, Any]:
        """Some of the images that pass a filter, and how many there are."""
        return self.images_of(self.rows(wanted), offset, limit)

    def images_of(self, rows: Array | None, offset: int, limit: int) -> dict[str, Any]:
        """Some images of rows in their order, of all rows if they are None."""
        total = len(self.collection) if rows is None else len(rows)
        some = range(offset, min(offset + limit, total))
        found = [self._image(i if rows is None else int(rows[i])) for i in some]
        return {"total": total, "images": found}

    def image(self, id_: str) -> dict[str, Any]:
        """One image."""
        return self._image(self.row(id_))

    def _image(self, row: int) -> dict[str, Any]:
        return {"id": self.id_of(row), "labels": self.live.of_row(row) or ()}

    def id_of(self, row: int) -> str:
        """Return the id of a row."""
        return str(self.collection.table.column("id")[row].as_py())

    def content(self, id_: str) -> tuple[str, str]:
        """Path and hash of an image."""
        row = self.row(id_)
        return self.path_of(row), self.key_of_row(row)

    def path_of(self, row: int) -> str:
        """Path at which a row was seen last."""
        return str(self.collection.table.column("path")[row].as_py())

    def key_of_row(self, row: int) -> str:
        """Hash of the content of a row."""
        return str(self.keys[int(self.collection.content[row])].as_py())

    def ids_of(self, contents: Collection[str]) -> list[str]:
        """Ids of all images that have one of these contents."""
        numbers = pc.index_in(
            pa.array(contents, pa.string()), value_set=self.keys
        ).drop_null()
        rows = [self.collection.rows_of(number) for number in numbers.to_pylist()]
        return [self.id_of(int(row)) for some in rows for row in some]

    def search(self, question: Question) -> list[dict[str, Any]]:
        """The nearest images and why, the nearest first; of similar ones, copies above all, one.

        The others of its group are `similar`, so that copies do not fill the first places.
        """
        rows = self.rows(question.filter)
        if rows is not None and not len(rows):
            return []
        searcher, likes, unlikes = self._examples(question)
        among = self._rows_in(searcher, rows)
        if among is not None and not among.any():
            return []
        most = min(question.k * LOOK_FURTHER, MAX_LOOKED_AT)
        hits = searcher.search(likes, most, unlikes, among=among)
        if next(self._searches) % RELEASE_EVERY == 0:
            searcher.contents.release()
        firsts = collapse(hits, groups_of(searcher, hits))[: question.k]
        return [
            {
                "id": hit.id,
                "similar": similar,
                "labels": self._labels_of(hit.id) or (),
                "score": _number(hit.score),
                "forward": _number(hit.forward),
                "backward": None if hit.backward is None else _number(hit.backward),
                "classes": [
                    {"name": one.name, "term": _number(one.term)} for one in hit.classes
                ],
            }
            for hit, similar in firsts
        ]

    def _labels_of(self, id_: str) -> Labels:
        """Return the labels of an image as they are now; other recipes may have other images."""
        row = self.collection.row_of(id_)
        return None if row is None else self.live.of_row(row)

    def _rows_in(self, searcher: Searcher, rows: Array | None) -> Array | None:
        """Whether each row of a searcher's collection is one of these rows; None if all are."""
        if rows is None:
            return None
        ids, others = (
            self.collection.table.column("id"),
            searcher.collection.table.column("id"),
        )
        passed = np.zeros(len(self.collection), dtype=bool)
        passed[rows] = True
        if ids.equals(others):
            return passed
        among: Array = pc.is_in(
            others, value_set=ids.filter(pa.array(passed))
        ).to_numpy()
        return among

    def scatter(self, question: Question) -> dict[str, Any]:
        """Forward and backward similarity of the images that pass a filter, and `is_product`:
        whether the score is their product, so that lines of the same score can be drawn.

        If there are more than `POINTS`, those with the highest scores and an even sample of the
        others. Where an index is needed, to look at all would take too long: the nearest `NEAREST`.
        """
        wanted = self.rows(question.filter)
        answer: dict[str, Any] = {"total": 0, "ids": [], "forward": [], "backward": []}
        answer["is_product"] = False
        if wanted is not None and not len(wanted):
            return answer
        searcher, likes, unlikes = self._examples(question)
        is_product = searcher.recipe.is_plain and len(likes) == 1 and not unlikes
        among = self._rows_in(searcher, wanted)
        if searcher.index is not None:
            near = searcher.search(likes, NEAREST, unlikes, among=among)
            return {
                "total": len(self.collection) if wanted is None else len(wanted),
                "ids": [hit.id for hit in near],
                "forward": [_number(hit.forward) for hit in near],
                "backward": [_number(hit.backward or 0) for hit in near],
                "is_product": is_product,
            }
        forward, backward, score = searcher.similarities(likes, unlikes)
        if backward is None:
            return answer
        rows = np.arange(len(score)) if among is None else np.flatnonzero(among)
        shown = thin_out(rows, score, POINTS)
        return {
            "total": len(rows),
            "ids": searcher.collection.table.column("id").take(shown).to_pylist(),
            "forward": [_number(one, 4) for one in forward[shown].tolist()],
            "backward": [_number(one, 4) for one in backward[shown].tolist()],
            "is_product": is_product,
        }

    def predict(self, example: Example) -> dict[str, Any]:
        """The most probable classes of an image, by the trained model; none without its factors.

        Of an image that the model was trained on, the prediction of its cross-validation, made
        without the image and its copies; `basis` says so.
        """
        if self.model is None:
            raise UnknownError("predictions need `deepfish serve --model`, got none")
        columns = self.model.columns
        held_out = None
        if example.upload:
            arrays = self.uploads.recall(example.upload)
        else:
            if self.model.held_out is not None:
                held_out = self.model.held_out.find(self.content(example.id)[1])
            number = pc.index(self._judged.keys, self.content(example.id)[1]).as_py()
            if number < 0:
                return {"classes": [], "basis": NEW}
            arrays = self._judged.read(np.array([number]), columns)
        if held_out is not None and (held_out >= 0).any():
            basis, chances = HELD_OUT, np.where(held_out >= 0, held_out, np.nan)
        else:
            basis = NEW if held_out is None else SEEN
            chances = self.model.probabilities(
                {name: arrays[name] for name in columns}
            )[0]
        best = np.argsort(-chances, kind="stable")[:TOP]
        classes = [
            {"name": self.model.classes[c], "probability": round(float(chances[c]), 4)}
            for c in best
            if np.isfinite(chances[c])
        ]
        return {"classes": classes, "basis": basis}

    def _examples(self, question: Question) -> tuple[Searcher, list[Key], list[Key]]:
        """A searcher and what it takes; an unknown id would be a path to it, so none gets there."""
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

        return (
            searcher,
            [*texts, *map(key, question.like)],
            [*map(key, question.unlike)],
        )

    def row(self, id_: str) -> int:
        """The row of an id; an `UnknownError` if there is none."""
        row = self.collection.row_of(id_)
        if row is None:
            raise UnknownError("the store has no image with this id")
        return row

    def rows(self, wanted: Filter) -> Array | None:
        """Return the rows that pass a filter, rising; None if all do."""
        conditions = list(self._conditions(wanted))
        if not conditions:
            return None
        return np.flatnonzero(np.logical_and.reduce(conditions))

    def _conditions(self, wanted: Filter) -> Iterator[Array]:
        """Yield whether each row passes, for each part of a filter."""
        if wanted.text:
            yield self._with_text(wanted.text)
        if wanted.only:
            self.live.refresh()
            yield self.live.has_state(wanted.only)
        counts = self.live.counts() if wanted.labels else {}
        for label in wanted.labels:
            if label not in counts:
                raise UnknownError(
                    f"label must be one that the store has, got {label!r}"
                    f"{did_you_mean(label, counts)}"
                )
            yield self.live.has(label)
        if wanted.selection:
            selected = np.zeros(len(self.collection), dtype=bool)
            selected[self.selections.get(wanted.selection).rows] = True
            yield selected

    def _find_text(self, text: str) -> Array:
        """Whether the path or the id of each row contains a text, in small or capital letters."""
        found = np.zeros(len(self.collection), dtype=bool)
        for name in ("path", "id"):
            column = self.collection.table.column(name)
            found |= pc.match_substring(column, text, ignore_case=True).to_numpy()
        return found


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
    distinct, place = np.unique(numbers, return_inverse=True)
    arrays = searcher.contents.read(distinct, searcher.recipe.columns)
    group = similar_groups(np.asarray(find_embedding(arrays), dtype=np.float32))
    return [int(one) for one in group[place]]


def thin_out(rows: Array, score: Array, most: int) -> Array:
    """At most so many of the rows: half of them the best, the rest evenly spread, all rising."""
    if len(rows) <= most:
        return rows
    order = rows[np.argsort(-score[rows], kind="stable")]
    best, rest = order[: most // 2], np.sort(order[most // 2 :])
    spread = np.linspace(0, len(rest) - 1, most - len(best)).round().astype(np.int64)
    return np.sort(np.concatenate([best, rest[spread]]))


def _number(value: float, digits: int = 6) -> float | None:
    """JSON has no word for what is not finite."""
    return round(float(value), digits) if math.isfinite(value) else None

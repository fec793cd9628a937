"""Stage 8, the page: all that it can ask a store for.

Comes in: questions as plain values: an id, labels, a text, examples. Goes out: answers as plain
values for JSON. Whatever comes in is looked up among the images of the store; nothing of it is
ever taken for the name of a file.
"""

from __future__ import annotations

import glob
import math
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.compute as pc

from deepfishing.errors import OptionError, did_you_mean
from deepfishing.progress import Progress
from deepfishing.rank_one import Array
from deepfishing.recipes import parse_recipe
from deepfishing.search import Hit, Searcher
from deepfishing.store import Store
from deepfishing.web.judge import Judge
from deepfishing.web.offer import make_offer
from deepfishing.web.thumbnails import Thumbnails
from deepfishing.web.uploads import Uploads

OPEN = 6  # recipes whose features are kept at a time
POINTS = 20_000  # that a plot shows at most
NEAREST = 2_000  # that it shows of a store too large to look at all


class UnknownError(OptionError):
    """An image, a label or a recipe that the store does not have."""


@dataclass(frozen=True)
class Example:
    """An image of the store, by its id, or an uploaded photo, by its key."""

    id: str = ""
    upload: str = ""


@dataclass(frozen=True)
class Filter:
    """Only images with all of the labels whose path or id contains the text."""

    labels: tuple[str, ...] = ()
    text: str = ""


class Gallery:
    """A store, open for the page; may be used from several threads.

    `forward` and `gradient` are the recipes to start with, `model` the folder of a model that was
    trained with the same network, `weights` the network's weight file if it is elsewhere now.
    """

    def __init__(
        self,
        folder: str | Path,
        forward: str | None = None,
        gradient: str | None = None,
        model: str | Path | None = None,
        progress: Progress | None = None,
        *,
        weights: str | Path | None = None,
    ) -> None:
        self.folder = Path(folder)
        self.store = Store.open(folder)
        self.offer = make_offer(self.store, forward, gradient)
        self.judge = None if model is None else Judge(model, self.store)
        needed = (*self.offer.factors, *(self.judge.model.factors if self.judge else ()))
        self.uploads = Uploads(self.store.settings, tuple(dict.fromkeys(needed)), weights=weights)
        self.thumbnails = Thumbnails(self.store.folder)
        self._lock = threading.Lock()
        self._progress = progress
        self._open = lru_cache(OPEN)(self._open_searcher)
        # what the page starts with is opened now, where its progress can be seen
        starts = (*self.offer.gradient[:1], *self.offer.forward[:1])
        first, *_ = [self.searcher(by) for by in starts]
        self._progress = None
        self.collection, self._keys = first.collection, first.contents.keys
        self.labels = self._count_labels()
        self._rows = lru_cache(32)(self._find_rows)

    def searcher(self, by: str) -> Searcher:
        """The searcher of a recipe, opened when it is first asked for."""
        if by not in self.offer:
            raise UnknownError("by must be one of the recipes that /api/store lists")
        with self._lock:  # or two threads would open it at once
            return self._open(by)

    def _open_searcher(self, by: str) -> Searcher:
        searcher = Searcher(self.store, by, progress=self._progress)
        searcher.encoder = self.uploads
        return searcher

    def summary(self) -> dict[str, Any]:
        """What the page shows before anything is asked."""
        return {
            "name": self.folder.absolute().name,
            "network": self.store.settings["network"],
            "images": len(self.collection),
            "forward": self.offer.forward,
            "gradient": self.offer.gradient,
            "labels": [{"name": name, "images": n} for name, n in self.labels.items()],
            "model": None if self.judge is None else parse_recipe(self.judge.model.recipe).title,
        }

    def images(self, wanted: Filter, offset: int, limit: int) -> dict[str, Any]:
        """Some of the images that pass a filter, and how many there are."""
        rows, total = self._rows(wanted), self._count(wanted)
        some = range(offset, min(offset + limit, total))
        found = [self.collection[i if rows is None else int(rows[i])] for i in some]
        return {
            "total": total,
            "images": [{"id": one.id, "labels": one.labels or ()} for one in found],
        }

    def image(self, id_: str) -> dict[str, Any]:
        """One image."""
        picture = self.collection[self._row(id_)]
        return {"id": picture.id, "labels": picture.labels or ()}

    def content(self, id_: str) -> tuple[str, str]:
        """Path and hash of an image."""
        row = self._row(id_)
        return self.collection[row].path, self._keys[int(self.collection.content[row])].as_py()

    def search(
        self,
        by: str,
        like: Sequence[Example],
        unlike: Sequence[Example],
        k: int,
        wanted: Filter,
    ) -> list[dict[str, Any]]:
        """The nearest images and why, the nearest first."""
        if not self._count(wanted):
            return []
        searcher = self.searcher(by)
        likes, unlikes = self._examples(searcher, like), self._examples(searcher, unlike)
        hits = searcher.search(likes, k, unlikes, wanted.labels, _pattern(wanted.text))
        return [_hit(hit) for hit in hits]

    def scatter(
        self, by: str, like: Sequence[Example], unlike: Sequence[Example], wanted: Filter
    ) -> dict[str, Any]:
        """Forward and backward similarity of the images that pass a filter, and `is_product`:
        whether the score is their product, so that lines of the same score can be drawn.

        If there are more than `POINTS`, those with the highest scores and an even sample of the
        others. Where an index is needed, to look at all would take too long: the nearest `NEAREST`.
        """
        answer: dict[str, Any] = {"total": 0, "ids": [], "forward": [], "backward": []}
        answer["is_product"] = False
        if not self._count(wanted):
            return answer
        searcher = self.searcher(by)
        likes, unlikes = self._examples(searcher, like), self._examples(searcher, unlike)
        is_product = searcher.recipe.is_plain and len(likes) == 1 and not unlikes
        pattern = _pattern(wanted.text)
        if searcher.index is not None:
            near = searcher.search(likes, NEAREST, unlikes, wanted.labels, pattern)
            return answer | {
                "total": self._count(wanted),
                "ids": [hit.id for hit in near],
                "forward": [_number(hit.forward) for hit in near],
                "backward": [_number(hit.backward or 0) for hit in near],
                "is_product": is_product,
            }
        forward, backward, score = searcher.similarities(likes, unlikes)
        if backward is None:
            return answer
        mask = searcher.collection.passing(wanted.labels, pattern)
        rows = np.arange(len(score)) if mask is None else np.flatnonzero(mask)
        shown = thin_out(rows, score, POINTS)
        return answer | {
            "total": len(rows),
            "ids": searcher.collection.table.column("id").take(shown).to_pylist(),
            "forward": [_number(one, 4) for one in forward[shown].tolist()],
            "backward": [_number(one, 4) for one in backward[shown].tolist()],
            "is_product": is_product,
        }

    def predict(self, example: Example) -> list[dict[str, Any]]:
        """The most probable classes of an image, by the trained model."""
        if self.judge is None:
            raise UnknownError("predictions need `deepfish serve --model`, got none")
        if example.upload:
            return self.judge.of_factors(self.uploads.recall(example.upload))
        return self.judge.of_content(self.content(example.id)[1])

    def _examples(self, searcher: Searcher, given: Sequence[Example]) -> list[str | bytes]:
        """What a searcher takes; it would take an unknown id for a path, so none gets there."""
        found: list[str | bytes] = []
        for example in given:
            if example.upload:
                self.uploads.recall(example.upload)
                found.append(example.upload.encode())
            else:
                self._row(example.id)
                if searcher.collection.row_of(example.id) is None:
                    raise UnknownError(f"the image has no features for {searcher.recipe.name}")
                found.append(example.id)
        return found

    def _row(self, id_: str) -> int:
        row = self.collection.row_of(id_)
        if row is None:
            raise UnknownError("the store has no image with this id")
        return row

    def _count(self, wanted: Filter) -> int:
        rows = self._rows(wanted)
        return len(self.collection) if rows is None else len(rows)

    def _find_rows(self, wanted: Filter) -> Array | None:
        """Rows that pass a filter; None if all do."""
        for label in wanted.labels:
            if label not in self.labels:
                raise UnknownError(
                    f"label must be one that the store has, got {label!r}"
                    f"{did_you_mean(label, self.labels)}"
                )
        try:
            passed = self.collection.passing(wanted.labels, _pattern(wanted.text))
        except OptionError:  # the labels are known, so nothing is left
            return np.empty(0, dtype=np.int64)
        return None if passed is None else np.flatnonzero(passed)

    def _count_labels(self) -> dict[str, int]:
        flat = pc.list_flatten(self.collection.table.column("labels").combine_chunks())
        counts = {one["values"]: one["counts"] for one in pc.value_counts(flat).to_pylist()}
        return {label: counts[label] for label in self.collection.labels()}


def thin_out(rows: Array, score: Array, most: int) -> Array:
    """At most so many of the rows: half of them the best, the rest evenly spread, all rising.

    >>> thin_out(np.arange(6), np.array([0, 9, 1, 2, 8, 3]), most=4).tolist()
    [0, 1, 4, 5]
    """
    if len(rows) <= most:
        return rows
    order = rows[np.argsort(-score[rows], kind="stable")]
    best, rest = order[: most // 2], np.sort(order[most // 2 :])
    spread = np.linspace(0, len(rest) - 1, most - len(best)).round().astype(np.int64)
    return np.sort(np.concatenate([best, rest[spread]]))


def _pattern(text: str) -> str | None:
    """What `Collection.passing` takes for: contains this text, in small or capital letters."""
    if not text:
        return None
    letters = (f"[{c.lower()}{c.upper()}]" if c.isalpha() else glob.escape(c) for c in text)
    return f"*{''.join(letters)}*"


def _hit(hit: Hit) -> dict[str, Any]:
    return {
        "id": hit.id,
        "labels": hit.labels or (),
        "score": _number(hit.score),
        "forward": _number(hit.forward),
        "backward": None if hit.backward is None else _number(hit.backward),
        "classes": [{"name": one.name, "term": _number(one.term)} for one in hit.classes],
    }


def _number(value: float, digits: int = 6) -> float | None:
    """JSON has no word for what is not finite."""
    return round(float(value), digits) if math.isfinite(value) else None

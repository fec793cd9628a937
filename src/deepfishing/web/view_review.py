"""Routes of the review: doubtful labels, what is taken for what, the most and least certain photos.

Predictions are made by classifiers that have not seen the photo. They are made again by a job when
labels have changed, at once where there are few.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass
from typing import Annotated, Any

import numpy as np
import pyarrow as pa
from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse
from pydantic import BaseModel, ConfigDict, Field

from deepfishing.core.rank_one import Array
from deepfishing.curate.review import (
    DoubtfulLabel,
    Judged,
    judge_labels,
    nearest_of_class,
)
from deepfishing.curate.selection import open_photos
from deepfishing.errors import DatasetError
from deepfishing.search import Searcher
from deepfishing.store.side_files import read_side, write_side
from deepfishing.util.progress import Progress
from deepfishing.web.gallery import MAX_TEXT, Filter, UnknownError
from deepfishing.web.guard import RefusedError
from deepfishing.web.jobs import RUNNING
from deepfishing.web.labelling import Name, Nothing
from deepfishing.web.messages import message_for_page
from deepfishing.web.studio import QueryText, Studio, answer, read_json
from deepfishing.web.view_photos import FilterQuery

JOB = "review"
KEPT = "review"  # the file of labels that were confirmed
AT_ONCE = 1500  # labelled photos that are judged again whenever a label has changed
MAX_DOUBTS = 200
NEAREST = 6
CERTAIN = 8


class Kept(BaseModel):
    """Mark the labels of a photo as right, against the classifier; or take the mark back."""

    model_config = ConfigDict(extra="forbid", strict=True)
    id: Annotated[str, Field(min_length=1, max_length=MAX_TEXT)]
    undo: bool = False


class Cell(BaseModel):
    """A cell of the table; "" is the class of photos that show none of the others."""

    model_config = ConfigDict(extra="forbid", strict=True)
    given: Name | Annotated[str, Field(max_length=0)]
    predicted: Name | Annotated[str, Field(max_length=0)]


@dataclass(frozen=True, eq=False)
class _Review:
    """Judged labels of one moment, and where the photos are."""

    version: int
    judged: Judged
    rows: Array  # of the gallery, of each judged photo


class ReviewRoom:
    """The review of a gallery; may be used from several threads."""

    def __init__(self, studio: Studio) -> None:
        self.studio = studio
        self.gallery = studio.gallery
        self.review: _Review | None = None
        self._began = -1  # version of the labels that were judged last
        self.too_few = ""
        self._too_few_version = -1
        self._photos: Searcher | None = None
        self._lock = threading.Lock()
        self._kept: dict[str, list[str]] = {}
        side_file = read_side(self.gallery.store.folder, KEPT)
        if side_file is not None:
            self._kept = dict(side_file[0].get("kept", {}))

    # ---- judging ----

    def begin(self) -> None:
        """Judge the labels as they are now."""
        self._began = self.gallery.live.version
        self.studio.jobs.start(JOB, self._judge)

    def _judge(self, progress: Progress) -> None:
        live = self.gallery.live
        version = live.version
        rows = np.flatnonzero(live.is_labelled())
        contents = self.gallery.collection.content[rows]
        _, first = np.unique(contents, return_index=True)
        rows = rows[np.sort(first)]
        keys = self.gallery.keys.take(
            pa.array(self.gallery.collection.content[rows])
        ).to_pylist()
        progress("reading", 0, 0)
        if self._photos is None:
            self._photos = open_photos(self.gallery.store)
        try:
            judged = judge_labels(
                self._photos, keys, live.of_rows(rows), progress=progress
            )
        except DatasetError as error:
            folders = {"the store": self.gallery.store.folder}
            self.too_few = message_for_page(error, "judging the labels", folders)
            self._too_few_version = version
            return
        row_of = dict(zip(keys, rows.tolist(), strict=True))
        names = self._photos.contents.keys.take(pa.array(judged.contents)).to_pylist()
        found = np.array([row_of[name] for name in names])
        self.review = _Review(version, judged, found)
        self.too_few = ""

    def state(self, conditions: Filter) -> dict[str, Any]:
        """Return how far the review is, and its summary."""
        version = self.gallery.live.version
        job = self.studio.jobs.get(JOB)
        is_running = job is not None and job.state == RUNNING
        review = self.review
        is_stale = review is None or review.version != version
        is_hopeless = bool(self.too_few) and self._too_few_version == version
        few = int(self.gallery.live.is_labelled().sum()) <= AT_ONCE
        is_new = self._began != version and (few or job is None)
        if is_stale and is_new and not is_running and not is_hopeless:
            self.begin()
            job, is_running = self.studio.jobs.get(JOB), True
        about: dict[str, Any] = {
            "is_running": is_running,
            "is_stale": is_stale,
            "is_too_few": is_hopeless,
            "error": "",
            "job": None,
        }
        if job is not None:
            about["error"] = job.error
            about["job"] = job.as_dict()
        if is_hopeless:
            about["error"] = self.too_few
        if review is None or is_hopeless:
            return about
        return {
            **about,
            **self._summary(review),
            "doubts": self._doubts(review, conditions),
        }

    def _summary(self, review: _Review) -> dict[str, Any]:
        judged = review.judged
        accuracy = judged.accuracy()
        figures = None
        if accuracy is not None:
            low, high = accuracy.top1_interval
            figures = {
                "accuracy": round(accuracy.top1, 1),
                "interval": [round(low, 1), round(high, 1)],
            }
        return {
            "photos": len(judged.contents),
            "classes": judged.classes,
            "known": judged.known.tolist(),
            "table": judged.table().tolist(),
            "estimate": figures,
        }

    def _doubts(self, review: _Review, conditions: Filter) -> dict[str, Any]:
        """Return the doubtful labels that were neither changed nor confirmed since."""
        passed = self.gallery.rows(conditions)
        inside = None if passed is None else set(passed.tolist())
        doubts = []
        contents: set[int] = set()
        for doubt in review.judged.doubts():
            row = int(review.rows[doubt.number])
            labels = review.judged.labels[doubt.number]
            is_other = inside is not None and row not in inside
            if row in contents or is_other or self.gallery.live.of_row(row) != labels:
                continue
            if self._kept.get(self.gallery.key_of_row(row)) == list(labels):
                continue
            contents.add(row)
            doubts.append(self._doubt(doubt, row, labels))
        return {"total": len(doubts), "first": doubts[:MAX_DOUBTS]}

    def _doubt(
        self, doubt: DoubtfulLabel, row: int, labels: tuple[str, ...]
    ) -> dict[str, Any]:
        return {
            "id": self.gallery.id_of(row),
            "given": labels,
            "suggested": doubt.suggested,
            "loses": doubt.loses,
            "gains": doubt.gains,
            "doubt": round(doubt.doubt, 4),
        }

    # ---- questions ----

    def beside(self, id_: str, loses: str, gains: str) -> dict[str, Any]:
        """Return the nearest photos of both classes."""
        review, photos = self._judged()
        row = self.gallery.row(id_)
        numbers = np.flatnonzero(review.rows == row)
        if not len(numbers):
            raise UnknownError(
                "the photo is not labelled, or was not when labels were judged"
            )
        beside = {}
        for side, name in (("loses", loses), ("gains", gains)):
            column = self._column(review, name)
            near = nearest_of_class(
                photos, review.judged, int(numbers[0]), column, NEAREST
            )
            beside[side] = [self.gallery.id_of(int(review.rows[at])) for at in near]
        return beside

    def select_cell(self, cell: Cell) -> dict[str, Any]:
        """Make a selection of the photos of a cell."""
        review, _ = self._judged()
        given, predicted = (
            self._column(review, name) for name in (cell.given, cell.predicted)
        )
        numbers = review.judged.cell(given, predicted)
        if not len(numbers):
            raise UnknownError("no photo is in this cell any more; look again")
        names = [name or "none of these" for name in (cell.given, cell.predicted)]
        words = f"{names[0]}, taken for {names[1]}"
        if given == predicted:
            words = f"{names[0]}, right"
        return self.studio.selections.add(review.rows[numbers], words).as_dict()

    def of_class(self, name: str) -> dict[str, Any]:
        """Return the most and the least certain photos of a class."""
        review, _ = self._judged()
        column = self._column(review, name)
        numbers, ahead = review.judged.certainty(column)
        photos = [
            {
                "id": self.gallery.id_of(int(review.rows[number])),
                "ahead": round(float(by), 3),
            }
            for number, by in zip(numbers, ahead, strict=True)
            if np.isfinite(by)
        ]
        half = min(CERTAIN, len(photos) // 2)
        return {
            "photos": len(numbers),
            "most": photos[:half],
            "least": photos[::-1][:half],
        }

    def keep(self, body: Kept) -> dict[str, Any]:
        """Remember that the labels of a photo are right."""
        row = self.gallery.row(body.id)
        content = self.gallery.key_of_row(row)
        with self._lock:
            if body.undo:
                self._kept.pop(content, None)
            else:
                self._kept[content] = list(self.gallery.live.of_row(row) or ())
            write_side(self.gallery.store.folder, KEPT, {"kept": self._kept}, {})
        return {"kept": len(self._kept)}

    def _judged(self) -> tuple[_Review, Searcher]:
        if self.review is None or self._photos is None:
            raise RefusedError(
                409, "the labels have not been looked at yet; wait a moment"
            )
        return self.review, self._photos

    def _column(self, review: _Review, name: str) -> int:
        if name not in review.judged.classes:
            raise UnknownError(
                "there is no such class among the labels that were looked at"
            )
        return review.judged.classes.index(name)


def make_routes(studio: Studio) -> APIRouter:
    """Make the routes of the review."""
    routes = APIRouter(prefix="/review")
    room = ReviewRoom(studio)

    @routes.get("")
    async def state(conditions: FilterQuery) -> JSONResponse:
        return await answer(studio.computing, room.state, conditions)

    @routes.post("")
    async def begin(request: Request) -> JSONResponse:
        await read_json(request, Nothing)
        room.begin()
        return await answer(studio.computing, room.state, Filter())

    @routes.get("/beside")
    async def beside(
        id: QueryText, loses: QueryText = "", gains: QueryText = ""
    ) -> JSONResponse:
        return await answer(studio.computing, room.beside, id, loses, gains)

    @routes.get("/class")
    async def of_class(name: QueryText = "") -> JSONResponse:
        return await answer(studio.computing, room.of_class, name)

    @routes.post("/cell")
    async def cell(request: Request) -> JSONResponse:
        body = await read_json(request, Cell)
        return await answer(studio.computing, room.select_cell, body)

    @routes.post("/keep")
    async def keep(request: Request) -> JSONResponse:
        body = await read_json(request, Kept)
        return await answer(studio.writing, room.keep, body)

    return routes

"""Routes of the map: places of photos, their colours, names of regions, and selections.

Places and colours of 100,000 photos are sent as a few numbers each, in base64. A shape that a
visitor draws becomes a selection here, of all photos inside, also of those that are not drawn.
"""

from __future__ import annotations

import base64
from posixpath import commonpath
from typing import Annotated, Any, Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from fastapi import APIRouter, Query, Request
from fastapi.responses import JSONResponse
from pydantic import BaseModel, ConfigDict, Field

from deepfishing.core.rank_one import Array
from deepfishing.curate.label_session import NONE
from deepfishing.curate.layout import Layout, open_layout
from deepfishing.util.progress import Progress
from deepfishing.web.apart import run_apart
from deepfishing.web.gallery import Filter
from deepfishing.web.guard import RefusedError
from deepfishing.web.model_room import Predictions
from deepfishing.web.studio import NEVER_KEPT, Studio, answer, read_json
from deepfishing.web.view_photos import Wanted

JOB = "map"
NONE_WORDS = "none of the classes"
MAX_POINTS = 200_000  # that are drawn
MAX_CORNERS = 2000
MAX_COLOURS = 24  # classes with a colour of their own; the rarest share one
PLACES = 65_535  # steps of a coordinate
# of the labelled photos of a region, from which their label names it
LABELLED_SHARE = 0.5
MIN_LABELLED = 3
MAX_LABELS = 200  # the most common ones, that a region may be named by
BLOCK_ROWS = 1 << 16

By = Literal["label", "prediction", "folder", "doubt", "region"]
Corner = Annotated[list[float], Field(min_length=2, max_length=2)]


class Shape(BaseModel):
    """A polygon on the map, in [0, 1] x [0, 1]; its corners in order."""

    model_config = ConfigDict(extra="forbid")
    corners: Annotated[list[Corner], Field(min_length=3, max_length=MAX_CORNERS)]
    name: Annotated[str, Field(min_length=1, max_length=200)] = "on the map"


class Making(BaseModel):
    """Whether what is on the map already is laid out again."""

    model_config = ConfigDict(extra="forbid", strict=True)
    again: bool = False


def make_routes(studio: Studio) -> APIRouter:
    """Make the routes of the map."""
    routes = APIRouter(prefix="/map")
    chart = Chart(studio)

    @routes.get("")
    async def summary() -> JSONResponse:
        return await answer(studio.computing, chart.summary)

    @routes.post("/make")
    async def make(request: Request) -> JSONResponse:
        asked = await read_json(request, Making)
        job = studio.jobs.start(JOB, lambda progress: chart.make(asked.again, progress))
        return JSONResponse(job.as_dict(), headers=NEVER_KEPT)

    @routes.get("/points")
    async def points() -> JSONResponse:
        return await answer(studio.computing, chart.points)

    @routes.get("/colours")
    async def colours(by: By = "label") -> JSONResponse:
        return await answer(studio.computing, chart.colours, by)

    @routes.get("/regions")
    async def regions() -> JSONResponse:
        return await answer(studio.computing, chart.regions)

    @routes.get("/passing")
    async def passing(wanted: Wanted) -> JSONResponse:
        return await answer(studio.computing, chart.passing, wanted)

    @routes.get("/photo")
    async def photo(point: Annotated[int, Query(ge=0, le=2**31)]) -> JSONResponse:
        return await answer(studio.computing, chart.photo, point)

    @routes.post("/select")
    async def select(request: Request) -> JSONResponse:
        asked = await read_json(request, Shape)
        return await answer(studio.computing, chart.select, asked)

    return routes


class Chart:
    """The map of a gallery."""

    def __init__(self, studio: Studio) -> None:
        self.studio = studio
        self.gallery = studio.gallery
        self.room = studio.model_room
        self._read()

    def _read(self) -> None:
        """Read the layout that was made last, and find the place of each row."""
        layout = open_layout(self.gallery.store)
        searcher = self.gallery.first_searcher
        n = len(self.gallery.collection)
        places = np.full((n, 2), np.nan, dtype=np.float32)
        group = np.zeros(n, dtype=np.int64)
        if layout is not None:
            content = self.gallery.collection.content
            keys = searcher.contents.keys
            places = layout.places_of(keys)[content]
            group = _groups_of(layout, keys)[content]
        placed = np.flatnonzero(np.isfinite(places[:, 0]))
        shown = placed
        if len(placed) > MAX_POINTS:
            even = np.linspace(0, len(placed) - 1, MAX_POINTS).round().astype(np.int64)
            shown = placed[even]
        self.layout = layout
        self.places = places
        self.group = group
        self.placed = placed
        self.shown = shown

    def make(self, again: bool, progress: Progress) -> None:
        """Lay out the photos in a process of its own."""
        options = '{"again": true}' if again else "{}"
        run_apart("map", [str(self.gallery.store.folder), options], progress)
        self._read()

    def summary(self) -> dict[str, Any]:
        """Return what there is of the map."""
        job = self.studio.jobs.get(JOB)
        layout = self.layout
        return {
            "job": None if job is None else job.as_dict(),
            "photos": len(self.gallery.collection),
            "placed": len(self.placed),
            "shown": len(self.shown),
            "laid_out": 0 if layout is None else layout.laid_out,
            "contents": 0 if layout is None else len(layout.keys),
            "by": "" if layout is None else layout.by,
            "recipe": "" if layout is None else layout.recipe,
            "colours": self._available(),
        }

    def _available(self) -> list[str]:
        """Return what points can be coloured by."""
        available = ["label", "region"]
        if self._predicted() is not None:
            available += ["prediction", "doubt"]
        return [*available, "folder"]

    def _predicted(self) -> Predictions | None:
        """Predictions of the model; without one, those of what was learnt from the labels."""
        predicted = self.room.predictions()
        if predicted is not None:
            return predicted
        taught, prepared = self.studio.learner.taught, self.studio.learner.prepared
        if taught is None or taught.learned is None or prepared is None:
            return None
        learned = taught.learned
        confidence = learned.confidence(learned.scores)
        if confidence is None:  # of too few labels nothing can be said
            return None
        numbers = prepared.number_of_row
        at = np.maximum(numbers, 0)
        codes = np.where(numbers >= 0, learned.scores.argmax(axis=1)[at], -1)
        names = tuple(name if name != NONE else NONE_WORDS for name in learned.classes)
        return Predictions(names, codes, confidence[at])

    def points(self) -> dict[str, Any]:
        """Return the places of the points that are drawn."""
        places = np.nan_to_num(self.places[self.shown])
        steps = (np.clip(places, 0, 1) * PLACES).round().astype("<u2")
        return {"points": len(steps), "places": _base64(steps)}

    def photo(self, point: int) -> dict[str, Any]:
        """Return the photo of a point."""
        if point >= len(self.shown):
            raise RefusedError(
                400, f"point must be below {len(self.shown)}, got {point}"
            )
        row = int(self.shown[point])
        predicted = self._predicted()
        about: dict[str, Any] = {
            "id": self.gallery.id_of(row),
            "labels": self.gallery.live.of_row(row) or (),
        }
        if predicted is not None and predicted.codes[row] >= 0:
            about["prediction"] = predicted.classes[predicted.codes[row]]
            about["probability"] = round(float(predicted.probability[row]), 3)
        return about

    def colours(self, by: By) -> dict[str, Any]:
        """Return a number for each point, and what the numbers mean; the last is "other"."""
        if by == "doubt":
            return self._doubt()
        if by == "label":
            names, codes = self._labels()
        elif by == "prediction":
            names, codes = self._predictions()
        elif by == "region":
            names, codes = (
                [one["name"] for one in self.regions()["regions"]],
                self.group,
            )
        else:
            names, codes = self._folders()
        return _legend(names, codes, codes[self.shown])

    def _doubt(self) -> dict[str, Any]:
        predicted = self._predicted()
        if predicted is None:
            raise RefusedError(409, "doubt needs a model or more labels, got neither")
        doubt = np.where(predicted.codes >= 0, 1 - predicted.probability, 0.0)[
            self.shown
        ]
        levels = (np.clip(doubt, 0, 1) * 255).round().astype(np.uint8)
        return {"scale": ["sure", "unsure"], "codes": _base64(levels)}

    def _labels(self) -> tuple[list[str], Array]:
        """Classes, and the number of each row's first label; -1 without one."""
        live = self.gallery.live
        counts = live.counts()
        names = [name for name, images in counts.items() if images]
        codes = np.full(len(self.places), -1, dtype=np.int64)
        for number, name in enumerate(names):
            has = live.has(name)
            codes[has & (codes < 0)] = number
        return names, codes

    def _predictions(self) -> tuple[list[str], Array]:
        predicted = self._predicted()
        if predicted is None:
            raise RefusedError(
                409, "predictions need a model or more labels, got neither"
            )
        return list(predicted.classes), predicted.codes

    def _folders(self) -> tuple[list[str], Array]:
        ids = self.gallery.collection.table.column("id").to_pylist()
        folders = [id_.rpartition("/")[0] for id_ in ids]
        common = len(commonpath(folders)) if all(folders) else 0
        names, codes = np.unique(np.array(folders), return_inverse=True)
        return [str(name)[common:].strip("/") or "(no folder)" for name in names], codes

    def regions(self) -> dict[str, Any]:
        """Return names and places of regions: by the user's labels, else by the network."""
        if self.layout is None:
            return {"regions": []}
        of_labels = self._region_labels(len(self.layout.names))
        found = []
        for number, by_network in enumerate(self.layout.names):
            rows = self.placed[self.group[self.placed] == number]
            if not len(rows):
                found.append(
                    {"name": by_network, "photos": 0, "x": 0.5, "y": 0.5, "by": ""}
                )
                continue
            label = of_labels[number]
            x = float(np.median(self.places[rows, 0]))
            y = float(np.quantile(self.places[rows, 1], 0.03))  # the name lies above
            found.append(
                {
                    "name": label or by_network,
                    "by": "labels" if label else "network",
                    "photos": len(rows),
                    "x": round(x, 4),
                    "y": round(y, 4),
                }
            )
        return {"regions": found}

    def _region_labels(self, regions: int) -> list[str]:
        """The most common label of each region, if enough of its labelled photos have it."""
        live = self.gallery.live
        counts = live.counts()
        is_placed = np.zeros(len(self.places), dtype=bool)
        is_placed[self.placed] = True

        def per_region(chosen: Array) -> Array:
            return np.bincount(self.group[chosen & is_placed], minlength=regions)

        labelled = per_region(live.is_labelled())
        best = [""] * regions
        most = np.maximum(LABELLED_SHARE * labelled, MIN_LABELLED)
        for name in sorted(counts, key=lambda name: -counts[name])[:MAX_LABELS]:
            with_label = per_region(live.has(name))
            for region in np.flatnonzero(with_label >= most):
                if not best[region] or with_label[region] > most[region]:
                    best[region] = name
                    most[region] = with_label[region]
        return best

    def passing(self, wanted: Filter) -> dict[str, Any]:
        """Return which points pass a filter, one bit each; none if all do."""
        rows = self.gallery.rows(wanted)
        if rows is None:
            return {"passing": None, "images": len(self.gallery.collection)}
        passed = np.zeros(len(self.places), dtype=bool)
        passed[rows] = True
        bits = np.packbits(passed[self.shown], bitorder="little")
        return {"passing": _base64(bits), "images": len(rows)}

    def select(self, asked: Shape) -> dict[str, Any]:
        """Remember the photos inside of a shape as a selection."""
        corners = np.array(asked.corners, dtype=np.float64)
        if not np.isfinite(corners).all():
            raise RefusedError(400, "corners must be finite numbers")
        inside = [
            block[is_inside(self.places[block], corners)]
            for block in np.split(
                self.placed, range(BLOCK_ROWS, len(self.placed), BLOCK_ROWS)
            )
        ]
        rows = np.concatenate(inside)
        if not len(rows):
            return {"selection": None, "name": asked.name, "images": 0}
        return self.studio.selections.add(rows, asked.name).as_dict()


def is_inside(places: Array, corners: Array) -> Array:
    """Whether places (n, 2) lie inside of a polygon (m, 2), by the even-odd rule.

    Examples
    --------
    >>> square = np.array([[0, 0], [1, 0], [1, 1], [0, 1]])
    >>> is_inside(np.array([[0.5, 0.5], [1.5, 0.5]]), square).tolist()
    [True, False]
    """
    low, high = corners.min(axis=0), corners.max(axis=0)
    near = np.flatnonzero(((places >= low) & (places <= high)).all(axis=1))
    x, y = places[near].astype(np.float64).T
    odd = np.zeros(len(near), dtype=bool)
    for (x0, y0), (x1, y1) in zip(corners, np.roll(corners, -1, axis=0), strict=True):
        if y0 == y1:
            continue
        crosses = (y0 > y) != (y1 > y)
        odd ^= crosses & (x < x0 + (y - y0) * (x1 - x0) / (y1 - y0))
    inside = np.zeros(len(places), dtype=bool)
    inside[near[odd]] = True
    return inside


def _groups_of(layout: Layout, keys: pa.Array) -> Array:
    """The group of each content; 0 of one that is not on the map."""
    numbers = pc.fill_null(pc.index_in(keys, value_set=layout.keys), 0)
    groups: Array = np.asarray(layout.group)[numbers.to_numpy(zero_copy_only=False)]
    return groups.astype(np.int64)


def _legend(names: list[str], of_rows: Array, of_points: Array) -> dict[str, Any]:
    """The most common names with a colour of their own, and the number of each point's.

    0 is "none", 1 to `MAX_COLOURS` are the names, and the next is all others.
    """
    counts = np.bincount(of_rows[of_rows >= 0], minlength=len(names))
    order = np.argsort(-counts, kind="stable")
    order = order[counts[order] > 0]
    number = np.full(len(names) + 1, MAX_COLOURS + 1)
    number[order[:MAX_COLOURS]] = np.arange(1, len(order[:MAX_COLOURS]) + 1)
    number[-1] = 0  # of -1
    legend = [{"name": names[i], "photos": int(counts[i])} for i in order[:MAX_COLOURS]]
    return {
        "names": legend,
        "others": int(counts[order[MAX_COLOURS:]].sum()),
        "none": int((of_rows < 0).sum()),
        "codes": _base64(number[of_points].astype(np.uint8)),
    }


def _base64(values: Array) -> str:
    return base64.b64encode(np.ascontiguousarray(values).tobytes()).decode("ascii")

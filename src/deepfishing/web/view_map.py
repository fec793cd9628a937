"""Routes of the map: places of photos, their colours, names of regions, and selections.

Places and colours of 100,000 photos are sent as a few numbers each, in base64. A shape that a
visitor draws becomes a selection here, of all photos inside, also of those that are not drawn.
"""

from __future__ import annotations

import base64
import json
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
from deepfishing.web.view_photos import FilterQuery

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
    """A request to make the map; `again` also lays out the photos that are on it."""

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
        making = await read_json(request, Making)

        def work(progress: Progress) -> None:
            chart.make(making.again, progress)

        job = studio.jobs.start(JOB, work)
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
    async def passing(conditions: FilterQuery) -> JSONResponse:
        return await answer(studio.computing, chart.passing, conditions)

    @routes.get("/photo")
    async def photo(point: Annotated[int, Query(ge=0, le=2**31)]) -> JSONResponse:
        return await answer(studio.computing, chart.photo, point)

    @routes.post("/select")
    async def select(request: Request) -> JSONResponse:
        shape = await read_json(request, Shape)
        return await answer(studio.computing, chart.select, shape)

    return routes


class Chart:
    """The map of a gallery."""

    def __init__(self, studio: Studio) -> None:
        self.studio = studio
        self.gallery = studio.gallery
        self.room = studio.model_room
        self._read()

    def _read(self) -> None:
        """Read the latest layout and find the place of each row."""
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
        points = placed
        if len(placed) > MAX_POINTS:
            even = np.linspace(0, len(placed) - 1, MAX_POINTS)
            points = placed[even.round().astype(np.int64)]
        self.layout = layout
        self.places = places
        self.group = group
        self.placed = placed
        self.point_rows = points

    def make(self, again: bool, progress: Progress) -> None:
        """Lay out the photos in another process."""
        options = json.dumps({"again": again})
        run_apart("map", [str(self.gallery.store.folder), options], progress)
        self._read()

    def summary(self) -> dict[str, Any]:
        """Return the state of the map, and what its points can be coloured by."""
        facts: dict[str, Any] = {
            "job": None,
            "photos": len(self.gallery.collection),
            "placed": len(self.placed),
            "shown": len(self.point_rows),
            "laid_out": 0,
            "contents": 0,
            "by": "",
            "recipe": "",
            "colours": self._available(),
        }
        job = self.studio.jobs.get(JOB)
        if job is not None:
            facts["job"] = job.as_dict()
        if self.layout is not None:
            facts["laid_out"] = self.layout.laid_out
            facts["contents"] = len(self.layout.keys)
            facts["by"] = self.layout.by
            facts["recipe"] = self.layout.recipe
        return facts

    def _available(self) -> list[str]:
        """Return the values of `by` that can be drawn."""
        available = ["label", "region"]
        if self._predicted() is not None:
            available += ["prediction", "doubt"]
        return [*available, "folder"]

    def _predicted(self) -> Predictions | None:
        """Return predictions of the model, or else of the classifier that learns from labels."""
        predicted = self.room.predictions()
        if predicted is not None:
            return predicted
        taught, prepared = self.studio.learner.taught, self.studio.learner.prepared
        if taught is None or taught.learned is None or prepared is None:
            return None
        learned = taught.learned
        confidence = learned.confidence(learned.scores)
        if confidence is None:  # too few labels
            return None
        numbers = prepared.number_of_row
        positions = np.maximum(numbers, 0)
        best = learned.scores.argmax(axis=1)[positions]
        codes = np.where(numbers >= 0, best, -1)
        names = [{NONE: NONE_WORDS}.get(name, name) for name in learned.classes]
        return Predictions(tuple(names), codes, confidence[positions])

    def points(self) -> dict[str, Any]:
        """Return the places of the points that are drawn."""
        places = np.nan_to_num(self.places[self.point_rows])
        steps = (np.clip(places, 0, 1) * PLACES).round().astype("<u2")
        return {"points": len(steps), "places": _base64(steps)}

    def photo(self, point: int) -> dict[str, Any]:
        """Return the photo of a point."""
        if point >= len(self.point_rows):
            raise RefusedError(
                400, f"point must be below {len(self.point_rows)}, got {point}"
            )
        row = int(self.point_rows[point])
        facts: dict[str, Any] = {
            "id": self.gallery.id_of(row),
            "labels": self.gallery.live.of_row(row) or (),
        }
        predicted = self._predicted()
        if predicted is not None and predicted.codes[row] >= 0:
            facts["prediction"] = predicted.classes[predicted.codes[row]]
            facts["probability"] = round(float(predicted.probability[row]), 3)
        return facts

    def colours(self, by: By) -> dict[str, Any]:
        """Return the number of each point's colour, and the legend; the last is "other"."""
        if by == "doubt":
            return self._doubt()
        if by == "label":
            names, codes = self._labels()
        elif by == "prediction":
            names, codes = self._predictions()
        elif by == "region":
            names = [region["name"] for region in self.regions()["regions"]]
            codes = self.group
        else:
            names, codes = self._folders()
        return _legend(names, codes, codes[self.point_rows])

    def _doubt(self) -> dict[str, Any]:
        predicted = self._predicted()
        if predicted is None:
            raise RefusedError(409, "doubt needs a model or more labels, got neither")
        doubt = np.where(predicted.codes >= 0, 1 - predicted.probability, 0.0)
        levels = (np.clip(doubt[self.point_rows], 0, 1) * 255).round()
        levels = levels.astype(np.uint8)
        return {"scale": ["sure", "unsure"], "codes": _base64(levels)}

    def _labels(self) -> tuple[list[str], Array]:
        """Return the classes, and the number of each row's first label, -1 for none."""
        live = self.gallery.live
        counts = live.counts()
        names = [name for name, images in counts.items() if images]
        codes = np.full(len(self.places), -1, dtype=np.int64)
        for number, name in enumerate(names):
            is_first = live.has(name) & (codes < 0)
            codes[is_first] = number
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
        common = 0
        if all(folders):
            common = len(commonpath(folders))
        distinct, codes = np.unique(np.array(folders), return_inverse=True)
        names = []
        for folder in distinct.tolist():
            names.append(folder[common:].strip("/") or "(no folder)")
        return names, codes

    def regions(self) -> dict[str, Any]:
        """Return names and places of regions: by the user's labels, else by the network."""
        if self.layout is None:
            return {"regions": []}
        labels = self._region_labels(len(self.layout.names))
        regions = []
        for number, name_of_network in enumerate(self.layout.names):
            rows = self.placed[self.group[self.placed] == number]
            region = {"name": name_of_network, "photos": len(rows), "by": "network"}
            if not len(rows):
                regions.append({**region, "x": 0.5, "y": 0.5, "by": ""})
                continue
            if labels[number]:
                region |= {"name": labels[number], "by": "labels"}
            x = np.median(self.places[rows, 0])
            y = np.quantile(self.places[rows, 1], 0.03)  # the name is drawn above
            regions.append({**region, "x": round(float(x), 4), "y": round(float(y), 4)})
        return {"regions": regions}

    def _region_labels(self, regions: int) -> list[str]:
        """Return the most common label of each region, "" if too few of its photos have it."""
        live = self.gallery.live
        counts = live.counts()
        is_placed = np.zeros(len(self.places), dtype=bool)
        is_placed[self.placed] = True

        def per_region(chosen: Array) -> Array:
            return np.bincount(self.group[chosen & is_placed], minlength=regions)

        labels = [""] * regions
        labelled = per_region(live.is_labelled())
        largest = np.maximum(LABELLED_SHARE * labelled, MIN_LABELLED)
        by_count = sorted(counts, key=lambda name: -counts[name])
        for name in by_count[:MAX_LABELS]:
            with_label = per_region(live.has(name))
            for region in np.flatnonzero(with_label >= largest):
                if not labels[region] or with_label[region] > largest[region]:
                    labels[region] = name
                    largest[region] = with_label[region]
        return labels

    def passing(self, conditions: Filter) -> dict[str, Any]:
        """Return which points pass a filter, one bit each; None if all do."""
        rows = self.gallery.rows(conditions)
        if rows is None:
            return {"passing": None, "images": len(self.gallery.collection)}
        passes = np.zeros(len(self.places), dtype=bool)
        passes[rows] = True
        bits = np.packbits(passes[self.point_rows], bitorder="little")
        return {"passing": _base64(bits), "images": len(rows)}

    def select(self, shape: Shape) -> dict[str, Any]:
        """Keep the photos inside a shape as a selection."""
        corners = np.array(shape.corners, dtype=np.float64)
        if not np.isfinite(corners).all():
            raise RefusedError(400, "corners must be finite numbers")
        inside = []
        for start in range(0, len(self.placed), BLOCK_ROWS):
            block = self.placed[start : start + BLOCK_ROWS]
            inside.append(block[is_inside(self.places[block], corners)])
        rows = np.concatenate([*inside, self.placed[:0]])
        if not len(rows):
            return {"selection": None, "name": shape.name, "images": 0}
        return self.studio.selections.add(rows, shape.name).as_dict()


def is_inside(places: Array, corners: Array) -> Array:
    """Return whether each place (n, 2) is inside a polygon (m, 2), by the even-odd rule.

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
    """Return the group of each content, 0 for one that is not on the map."""
    numbers = pc.fill_null(pc.index_in(keys, value_set=layout.keys), 0)
    groups: Array = np.asarray(layout.group)[numbers.to_numpy(zero_copy_only=False)]
    return groups.astype(np.int64)


def _legend(names: list[str], row_codes: Array, point_codes: Array) -> dict[str, Any]:
    """Return the legend and the number of each point's colour.

    0 stands for "none", 1 to `MAX_COLOURS` for the most common names, the next for all others.
    """
    counts = np.bincount(row_codes[row_codes >= 0], minlength=len(names))
    order = np.argsort(-counts, kind="stable")
    order = order[counts[order] > 0]
    coloured, others = order[:MAX_COLOURS], order[MAX_COLOURS:]
    colours = np.full(len(names) + 1, MAX_COLOURS + 1)
    colours[coloured] = np.arange(1, len(coloured) + 1)
    colours[-1] = 0  # of the code -1
    legend = [{"name": names[i], "photos": int(counts[i])} for i in coloured]
    return {
        "names": legend,
        "others": int(counts[others].sum()),
        "none": int((row_codes < 0).sum()),
        "codes": _base64(colours[point_codes].astype(np.uint8)),
    }


def _base64(values: Array) -> str:
    return base64.b64encode(np.ascontiguousarray(values).tobytes()).decode("ascii")

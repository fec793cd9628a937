"""Routes of the photos, which all views use: images, thumbnails, searches, selections, jobs."""

from __future__ import annotations

from functools import partial
from typing import Annotated, Literal

import numpy as np
from fastapi import APIRouter, Depends, Query, Request
from fastapi.responses import JSONResponse, Response
from pydantic import BaseModel, ConfigDict, Field

from deepfishing.web.gallery import MAX_TEXT, Example, Filter, Question, UnknownError
from deepfishing.web.orders import Order, Orders
from deepfishing.web.photos import MAX_BYTES
from deepfishing.web.studio import (
    NEVER_KEPT,
    QueryText,
    Studio,
    answer,
    read_json,
    wanted_filter,
)

MAX_PAGE = 500
MAX_SELECTED = 10_000
MAX_SELECTION_BYTES = 4 << 20

Wanted = Annotated[Filter, Depends(wanted_filter)]
Id = Annotated[str, Field(max_length=MAX_TEXT)]


class NewSelection(BaseModel):
    """Photos that were selected one by one, and a name for the selection."""

    model_config = ConfigDict(extra="forbid", strict=True)
    ids: Annotated[list[Id], Field(min_length=1, max_length=MAX_SELECTED)]
    name: Annotated[str, Field(min_length=1, max_length=200)] = "selected photos"


class JobName(BaseModel):
    """The name of a job."""

    model_config = ConfigDict(extra="forbid", strict=True)
    name: Annotated[str, Field(min_length=1, max_length=100)]


def make_routes(studio: Studio) -> APIRouter:
    """Make the routes of a gallery."""
    routes = APIRouter()
    gallery = studio.gallery
    orders = Orders(gallery, studio.learner, studio.jobs)

    @routes.get("/store")
    async def store() -> JSONResponse:
        return await answer(studio.writing, gallery.summary)

    @routes.get("/images")
    async def images(
        wanted: Wanted,
        offset: Annotated[int, Query(ge=0, le=2**40)] = 0,
        limit: Annotated[int, Query(ge=1, le=MAX_PAGE)] = 100,
        order: Order = "",
    ) -> JSONResponse:
        def find() -> dict[str, object]:
            rows = orders.sort(gallery.rows(wanted), order)
            found = gallery.images_of(rows, offset, limit)
            for image in found["images"] if order else ():
                image["group"] = orders.group_of(gallery.row(image["id"]), order)
            return found

        return await answer(studio.computing, find)

    @routes.get("/image")
    async def image(id: QueryText) -> JSONResponse:
        return await answer(studio.computing, gallery.image, id)

    @routes.get("/thumbnail")
    async def thumbnail(
        request: Request,
        id: QueryText,
        size: Literal["small", "large", "full"] = "small",
    ) -> Response:
        path, sha256 = gallery.content(id)
        headers = {
            "ETag": f'"{sha256[:32]}-{size}"',
            "Cache-Control": "private, max-age=3600",
        }
        if request.headers.get("if-none-match") == headers["ETag"]:
            return Response(status_code=304, headers=headers)
        make = partial(gallery.thumbnails.jpeg, path, sha256, size)
        jpeg = await studio.decoding.run(make)
        return Response(jpeg, media_type="image/jpeg", headers=headers)

    @routes.get("/uploads")
    async def uploads() -> JSONResponse:
        return JSONResponse(
            {"network": gallery.uploads.network_state}, headers=NEVER_KEPT
        )

    @routes.post("/uploads")
    async def upload(request: Request) -> JSONResponse:
        async with studio.receiving.body(request, MAX_BYTES) as content:
            return await answer(
                studio.encoding, lambda: {"upload": gallery.uploads.add(content)}
            )

    @routes.post("/search")
    async def search(request: Request) -> JSONResponse:
        asked = await read_json(request, Question)
        # the text tower has all cores
        gate = studio.encoding if asked.words else studio.computing
        return await answer(
            gate, lambda: {"by": asked.recipe, "hits": gallery.search(asked)}
        )

    @routes.post("/scatter")
    async def scatter(request: Request) -> JSONResponse:
        asked = await read_json(request, Question)
        return await answer(studio.computing, gallery.scatter, asked)

    @routes.post("/predict")
    async def predict(request: Request) -> JSONResponse:
        example = await read_json(request, Example)
        return await answer(studio.computing, lambda: gallery.predict(example))

    @routes.post("/selections")
    async def select(request: Request) -> JSONResponse:
        asked = await read_json(request, NewSelection, MAX_SELECTION_BYTES)

        def add() -> dict[str, object]:
            rows = np.array([gallery.row(id_) for id_ in asked.ids])
            return studio.selections.add(rows, asked.name).as_dict()

        return await answer(studio.computing, add)

    @routes.get("/selections")
    async def selection(key: QueryText) -> JSONResponse:
        return await answer(
            studio.computing, lambda: studio.selections.get(key).as_dict()
        )

    @routes.get("/jobs")
    async def job(name: QueryText) -> JSONResponse:
        found = studio.jobs.get(name)
        if found is None:
            raise UnknownError("no work of this name was started")
        return JSONResponse(found.as_dict(), headers=NEVER_KEPT)

    @routes.post("/jobs/cancel")
    async def cancel_job(request: Request) -> JSONResponse:
        asked = await read_json(request, JobName)
        found = studio.jobs.cancel(asked.name)
        if found is None:
            raise UnknownError("no work of this name was started")
        return JSONResponse(found.as_dict(), headers=NEVER_KEPT)

    return routes

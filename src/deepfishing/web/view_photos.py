"""Routes of the photos, which all views use: images, thumbnails, searches, selections, jobs."""

from __future__ import annotations

from functools import partial
from typing import Annotated, Literal

import numpy as np
from fastapi import APIRouter, Depends, Query, Request
from fastapi.responses import JSONResponse, Response
from pydantic import BaseModel, ConfigDict, Field

from deepfishing.web.gallery import MAX_TEXT, Example, Filter, Question, UnknownError
from deepfishing.web.jobs import Job
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

FilterQuery = Annotated[Filter, Depends(wanted_filter)]
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
    for part in (
        _photo_routes,
        _upload_routes,
        _search_routes,
        _selection_routes,
        _job_routes,
    ):
        routes.include_router(part(studio))
    return routes


def _photo_routes(studio: Studio) -> APIRouter:
    """Make the routes of the collection and its photos."""
    routes = APIRouter()
    gallery = studio.gallery
    orders = Orders(gallery, studio.learner, studio.jobs)

    @routes.get("/store")
    async def store() -> JSONResponse:
        return await answer(studio.writing, gallery.summary)

    @routes.get("/images")
    async def images(
        conditions: FilterQuery,
        offset: Annotated[int, Query(ge=0, le=2**40)] = 0,
        limit: Annotated[int, Query(ge=1, le=MAX_PAGE)] = 100,
        order: Order = "",
    ) -> JSONResponse:
        return await answer(
            studio.computing, orders.images, conditions, order, offset, limit
        )

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
        etag = f'"{sha256[:32]}-{size}"'
        headers = {"ETag": etag, "Cache-Control": "private, max-age=3600"}
        if request.headers.get("if-none-match") == etag:
            return Response(status_code=304, headers=headers)
        make = partial(gallery.thumbnails.jpeg, path, sha256, size)
        jpeg = await studio.decoding.run(make)
        return Response(jpeg, media_type="image/jpeg", headers=headers)

    return routes


def _upload_routes(studio: Studio) -> APIRouter:
    """Make the routes of uploaded photos, which are not stored."""
    routes = APIRouter()
    uploads = studio.gallery.uploads

    @routes.get("/uploads")
    async def state() -> JSONResponse:
        return JSONResponse({"network": uploads.network_state}, headers=NEVER_KEPT)

    @routes.post("/uploads")
    async def upload(request: Request) -> JSONResponse:
        async with studio.receiving.body(request, MAX_BYTES) as content:
            return await answer(
                studio.encoding, lambda: {"upload": uploads.add(content)}
            )

    @routes.post("/predict")
    async def predict(request: Request) -> JSONResponse:
        example = await read_json(request, Example)
        return await answer(studio.computing, studio.gallery.predict, example)

    return routes


def _search_routes(studio: Studio) -> APIRouter:
    """Make the routes of searches."""
    routes = APIRouter()
    gallery = studio.gallery

    def find(body: Question) -> dict[str, object]:
        return {"by": body.recipe, "hits": gallery.search(body)}

    @routes.post("/search")
    async def search(request: Request) -> JSONResponse:
        body = await read_json(request, Question)
        # the text tower has all cores
        gate = studio.encoding if body.words else studio.computing
        return await answer(gate, find, body)

    @routes.post("/scatter")
    async def scatter(request: Request) -> JSONResponse:
        body = await read_json(request, Question)
        return await answer(studio.computing, gallery.scatter, body)

    return routes


def _selection_routes(studio: Studio) -> APIRouter:
    """Make the routes of selections."""
    routes = APIRouter(prefix="/selections")
    gallery, selections = studio.gallery, studio.selections

    def add(body: NewSelection) -> dict[str, object]:
        rows = np.array([gallery.row(id_) for id_ in body.ids])
        return selections.add(rows, body.name).as_dict()

    def find(key: str) -> dict[str, object]:
        return selections.get(key).as_dict()

    @routes.post("")
    async def select(request: Request) -> JSONResponse:
        body = await read_json(request, NewSelection, MAX_SELECTION_BYTES)
        return await answer(studio.computing, add, body)

    @routes.get("")
    async def selection(key: QueryText) -> JSONResponse:
        return await answer(studio.computing, find, key)

    return routes


def _job_routes(studio: Studio) -> APIRouter:
    """Make the routes of long work."""
    routes = APIRouter(prefix="/jobs")

    def as_answer(job: Job | None) -> JSONResponse:
        if job is None:
            raise UnknownError("no work of this name was started")
        return JSONResponse(job.as_dict(), headers=NEVER_KEPT)

    @routes.get("")
    async def state(name: QueryText) -> JSONResponse:
        return as_answer(studio.jobs.get(name))

    @routes.post("/cancel")
    async def cancel(request: Request) -> JSONResponse:
        body = await read_json(request, JobName)
        return as_answer(studio.jobs.cancel(body.name))

    return routes

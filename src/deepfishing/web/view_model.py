"""Routes of the model: training, thresholds, photos to try it on, downloads."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Literal

from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse, Response
from pydantic import BaseModel, ConfigDict, Field

from deepfishing.web.gallery import MAX_TEXT, Example
from deepfishing.web.model_room import ONNX, TRAIN
from deepfishing.web.studio import NEVER_KEPT, QueryText, Studio, answer, read_json
from deepfishing.web.view_photos import FilterQuery

What = Literal["model", "onnx", "labels", "report", "sorted"]
FILES: dict[What, tuple[str, str]] = {
    "model": ("model.zip", "application/zip"),
    "onnx": ("model.onnx", "application/octet-stream"),
    "labels": ("labels.csv", "text/csv"),
    "report": ("model.html", "text/html"),
    "sorted": ("sorted.csv", "text/csv"),
}


class Training(BaseModel):
    """The recipe to train with."""

    model_config = ConfigDict(extra="forbid", strict=True)
    recipe: Annotated[str, Field(min_length=1, max_length=200)] = "auto"


class Threshold(BaseModel):
    """The threshold of a class; null for the usual one."""

    model_config = ConfigDict(extra="forbid", strict=True)
    name: Annotated[str, Field(min_length=1, max_length=MAX_TEXT)]
    value: Annotated[float, Field(ge=0, le=1)] | None


def make_routes(studio: Studio) -> APIRouter:
    """Make the routes of the model."""
    routes = APIRouter(prefix="/model")
    room = studio.model_room

    @routes.get("")
    async def summary() -> JSONResponse:
        return await answer(studio.computing, room.summary)

    @routes.post("/train")
    async def train(request: Request) -> JSONResponse:
        body = await read_json(request, Training)
        job = studio.jobs.start(
            TRAIN, lambda progress: room.train(body.recipe, progress)
        )
        return JSONResponse(job.as_dict(), headers=NEVER_KEPT)

    @routes.get("/curve")
    async def curve(name: QueryText) -> JSONResponse:
        return await answer(studio.computing, room.curve, name)

    @routes.post("/threshold")
    async def threshold(request: Request) -> JSONResponse:
        body = await read_json(request, Threshold)
        return await answer(studio.writing, room.set_threshold, body.name, body.value)

    @routes.post("/try")
    async def try_photo(request: Request) -> JSONResponse:
        example = await read_json(request, Example)
        return await answer(studio.computing, room.predict, example)

    @routes.get("/folders")
    async def folders(conditions: FilterQuery) -> JSONResponse:
        return await answer(
            studio.computing,
            lambda: {"folders": room.folders(studio.gallery.rows(conditions))},
        )

    @routes.post("/onnx")
    async def onnx() -> JSONResponse:
        room.require()
        return JSONResponse(
            studio.jobs.start(ONNX, room.write_onnx).as_dict(), headers=NEVER_KEPT
        )

    @routes.get("/download")
    async def download(conditions: FilterQuery, what: What) -> Response:
        makers: dict[What, Callable[[], bytes]] = {
            "model": room.zipped,
            "onnx": room.onnx,
            "labels": room.labels_csv,
            "report": room.report,
            "sorted": lambda: room.sorted_csv(studio.gallery.rows(conditions)),
        }
        content = await studio.computing.run(makers[what])
        name, kind = FILES[what]
        headers = {
            **NEVER_KEPT,
            "Content-Disposition": f'attachment; filename="{name}"',
        }
        return Response(content, media_type=kind, headers=headers)

    return routes

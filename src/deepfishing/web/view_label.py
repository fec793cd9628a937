"""Routes of the labels: what there is, what to label next, changes and their undoing."""

from __future__ import annotations

from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse, Response

from deepfishing.web.guard import RefusedError, read_body
from deepfishing.web.labelling import (
    MAX_TABLE_BYTES,
    ClassChange,
    LabelChange,
    NextQuestion,
    Nothing,
    UndoQuestion,
)
from deepfishing.web.studio import NEVER_KEPT, QueryText, Studio, answer, read_json
from deepfishing.web.view_photos import FilterQuery

MAX_CHANGE_BYTES = 24 << 20  # thousands of ids


def make_routes(studio: Studio) -> APIRouter:
    """Make the routes of the label log."""
    routes = APIRouter(prefix="/labels")
    labelling, learner, writing = studio.labelling, studio.learner, studio.writing

    @routes.get("")
    async def summary(conditions: FilterQuery) -> JSONResponse:
        return await answer(writing, labelling.summary, conditions)

    @routes.get("/of")
    async def labels_of(id: QueryText) -> JSONResponse:
        return await answer(writing, labelling.labels_of, id)

    @routes.get("/learned")
    async def learned() -> JSONResponse:
        return await answer(writing, learner.state)

    @routes.post("")
    async def change(request: Request) -> JSONResponse:
        body = await read_json(request, LabelChange, MAX_CHANGE_BYTES)
        return await answer(writing, labelling.change, body)

    @routes.post("/undo")
    async def undo(request: Request) -> JSONResponse:
        body = await read_json(request, UndoQuestion)
        return await answer(writing, labelling.undo, body)

    @routes.post("/next")
    async def next_to_label(request: Request) -> JSONResponse:
        body = await read_json(request, NextQuestion)
        return await answer(writing, labelling.next, body)

    @routes.post("/classes")
    async def change_class(request: Request) -> JSONResponse:
        body = await read_json(request, ClassChange)
        return await answer(writing, labelling.change_class, body)

    @routes.post("/forget-folders")
    async def forget_folders(request: Request) -> JSONResponse:
        await read_json(request, Nothing)
        return await answer(writing, labelling.forget_folders)

    @routes.get("/labels.csv")
    async def table() -> Response:
        content = await writing.run(labelling.table)
        headers = {
            **NEVER_KEPT,
            "Content-Disposition": 'attachment; filename="labels.csv"',
        }
        return Response(content, media_type="text/csv", headers=headers)

    @routes.post("/labels.csv")
    async def read_table(request: Request) -> JSONResponse:
        if (
            request.headers.get("content-type", "").partition(";")[0].strip()
            != "text/csv"
        ):
            raise RefusedError(415, "Content-Type must be text/csv")
        content = await read_body(request, MAX_TABLE_BYTES)
        return await answer(writing, labelling.read_table, content)

    return routes

"""Routes of the labels: what there is, what to label next, changes and their undoing."""

from __future__ import annotations

from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse

from deepfishing.web.labelling import LabelChange, NextQuestion, UndoQuestion
from deepfishing.web.studio import QueryText, Studio, answer, read_json


def make_routes(studio: Studio) -> APIRouter:
    """Make the routes of the label log."""
    routes = APIRouter(prefix="/labels")
    labelling = studio.labelling

    @routes.get("")
    async def summary() -> JSONResponse:
        return await answer(studio.writing, labelling.summary)

    @routes.get("/of")
    async def labels_of(id: QueryText) -> JSONResponse:
        return await answer(studio.writing, labelling.labels_of, id)

    @routes.post("")
    async def change(request: Request) -> JSONResponse:
        asked = await read_json(request, LabelChange)
        return await answer(studio.writing, labelling.change, asked)

    @routes.post("/undo")
    async def undo(request: Request) -> JSONResponse:
        asked = await read_json(request, UndoQuestion)
        return await answer(studio.writing, labelling.undo, asked)

    @routes.post("/next")
    async def next_to_label(request: Request) -> JSONResponse:
        asked = await read_json(request, NextQuestion)
        return await answer(studio.writing, labelling.next, asked)

    return routes

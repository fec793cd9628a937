"""State shared by the routes of all views: gallery, selections, jobs, limits on load."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Annotated, TypeVar

from fastapi import Query, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from pydantic import BaseModel, ValidationError

from deepfishing.web.gallery import MAX_TEXT, Filter, Gallery, Only
from deepfishing.web.guard import Gate, Receiver, RefusedError, read_body
from deepfishing.web.jobs import Jobs
from deepfishing.web.labelling import Labelling
from deepfishing.web.learner import Learner
from deepfishing.web.model_room import ModelRoom
from deepfishing.web.photos import MAX_BYTES

MAX_JSON = 1 << 18
MAX_RECEIVED = 8 * MAX_BYTES  # of all photos that are uploaded at the same time
NEVER_KEPT = {"Cache-Control": "no-store"}

QueryText = Annotated[str, Query(max_length=MAX_TEXT)]
Body = TypeVar("Body", bound=BaseModel)


class Studio:
    """A gallery, and limits on load for each kind of work."""

    def __init__(self, gallery: Gallery) -> None:
        self.gallery = gallery
        self.selections = gallery.selections
        self.jobs = Jobs({"the store": gallery.store.folder})
        self.learner = Learner(gallery, self.jobs)
        self.labelling = Labelling(gallery, self.learner)
        self.model_room = ModelRoom(gallery, self.jobs)
        # searches: numpy has the cores to itself
        self.computing = Gate(running=2, waiting=64)
        self.decoding = Gate(running=2, waiting=256)  # thumbnails
        self.receiving = Receiver(MAX_RECEIVED)  # photos
        # one at a time, in no search's place
        self.encoding = Gate(running=1, waiting=64)
        self.writing = Gate(running=1, waiting=64)  # labels


def wanted_filter(
    label: Annotated[list[QueryText], Query(max_length=20)] = [],  # noqa: B006
    text: QueryText = "",
    selection: QueryText = "",
    only: Only = "",
) -> Filter:
    """Return the filter that a GET request names; for `Depends`."""
    return Filter(tuple(label), text, selection, only)


async def answer(
    gate: Gate, work: Callable[..., object], *arguments: object
) -> JSONResponse:
    """Run a function within a limit on load and answer with its result as JSON."""
    return JSONResponse(await gate.run(partial(work, *arguments)), headers=NEVER_KEPT)


async def read_json(request: Request, model: type[Body], limit: int = MAX_JSON) -> Body:
    """Return the body as JSON of this shape."""
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != "application/json":
        raise RefusedError(415, "Content-Type must be application/json")
    try:
        return model.model_validate_json(await read_body(request, limit))
    except ValidationError as error:
        first = error.errors(
            include_url=False, include_input=False, include_context=False
        )[0]
        raise RequestValidationError(
            [{**first, "loc": ("body", *first["loc"])}]
        ) from None

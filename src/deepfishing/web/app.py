"""Stage 8, the page: the application as a whole.

Comes in: a gallery and the address that is bound. Goes out: an ASGI application behind its guard:
the page's own files, which are read once and sent by name, the questions that a browser can ask
below /api, answered as JSON and JPEG, and `{"error": "one line"}` for everything that goes wrong.
What a line must not tell, since it has a path in it, is said in the terminal.
"""

from __future__ import annotations

import hashlib
import logging
import mimetypes
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Annotated, Literal, TypeVar

from fastapi import APIRouter, FastAPI, Query, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, Response
from pydantic import BaseModel, ValidationError
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp

from deepfishing.errors import DeepFishingError, ImageError
from deepfishing.web.gallery import MAX_TEXT, Example, Filter, Gallery, Question, UnknownError
from deepfishing.web.guard import Gate, Guard, Receiver, RefusedError, read_body
from deepfishing.web.labelling import LabelChange, Labelling, NextQuestion, UndoQuestion
from deepfishing.web.photos import MAX_BYTES, ForgottenError

STATIC = Path(__file__).parent / "static"
INDEX = "index.html"
MAX_JSON = 1 << 18
MAX_RECEIVED = 8 * MAX_BYTES  # of all photos that are uploaded at the same time
MAX_PAGE = 500
NEVER_KEPT = {"Cache-Control": "no-store"}

QueryText = Annotated[str, Query(max_length=MAX_TEXT)]
Body = TypeVar("Body", bound=BaseModel)

_log = logging.getLogger("deepfishing.web")


def make_app(
    gallery: Gallery, host: str = "127.0.0.1", port: int = 0, token: str | None = None
) -> ASGIApp:
    """The application, behind the guard of the address that the server is bound to."""
    # no pages of FastAPI's own, which load scripts from elsewhere
    app = FastAPI(docs_url=None, redoc_url=None, openapi_url=None)
    app.include_router(make_routes(gallery))
    files = {path.name: path.read_bytes() for path in STATIC.iterdir() if path.is_file()}

    @app.get("/")
    async def index(request: Request) -> Response:
        return _file(request, INDEX, files[INDEX])

    @app.get("/label")
    async def label(request: Request) -> Response:
        return _file(request, "label.html", files["label.html"])

    @app.get("/static/{name}")
    async def static(request: Request, name: str) -> Response:
        if name not in files:
            raise HTTPException(404)
        return _file(request, name, files[name])

    for kind in (RefusedError, RequestValidationError, HTTPException, DeepFishingError, Exception):
        app.add_exception_handler(kind, _answer)
    return Guard(app, host, port, token)


def make_routes(gallery: Gallery) -> APIRouter:
    """All addresses below /api."""
    routes = APIRouter(prefix="/api")
    computing = Gate(running=2, waiting=64)  # searches: numpy has the cores to itself
    decoding = Gate(running=2, waiting=256)  # thumbnails
    receiving = Receiver(MAX_RECEIVED)  # photos
    encoding = Gate(running=1, waiting=64)  # one at a time, in no search's place
    writing = Gate(running=1, waiting=64)  # labels
    labelling = Labelling(gallery)

    @routes.get("/store")
    async def store() -> JSONResponse:
        return JSONResponse(gallery.summary())

    @routes.get("/images")
    async def images(
        label: Annotated[list[QueryText], Query(max_length=20)] = [],  # noqa: B006
        text: QueryText = "",
        offset: Annotated[int, Query(ge=0, le=2**40)] = 0,
        limit: Annotated[int, Query(ge=1, le=MAX_PAGE)] = 100,
    ) -> JSONResponse:
        wanted = Filter(tuple(label), text)
        return await _json(computing, partial(gallery.images, wanted, offset, limit))

    @routes.get("/image")
    async def image(id: QueryText) -> JSONResponse:
        return await _json(computing, partial(gallery.image, id))

    @routes.get("/thumbnail")
    async def thumbnail(
        request: Request,
        id: QueryText,
        size: Literal["small", "large", "full"] = "small",
    ) -> Response:
        path, sha256 = gallery.content(id)
        headers = {"ETag": f'"{sha256[:32]}-{size}"', "Cache-Control": "private, max-age=3600"}
        if request.headers.get("if-none-match") == headers["ETag"]:
            return Response(status_code=304, headers=headers)
        jpeg = await decoding.run(partial(gallery.thumbnails.jpeg, path, sha256, size))
        return Response(jpeg, media_type="image/jpeg", headers=headers)

    @routes.get("/uploads")
    async def uploads() -> JSONResponse:
        return JSONResponse({"network": gallery.uploads.network_state}, headers=NEVER_KEPT)

    @routes.post("/uploads")
    async def upload(request: Request) -> JSONResponse:
        async with receiving.body(request, MAX_BYTES) as content:
            return await _json(encoding, lambda: {"upload": gallery.uploads.add(content)})

    @routes.post("/search")
    async def search(request: Request) -> JSONResponse:
        asked = await read_json(request, Question)
        gate = encoding if asked.words else computing  # the text tower has all cores
        return await _json(gate, lambda: {"by": asked.recipe, "hits": gallery.search(asked)})

    @routes.post("/scatter")
    async def scatter(request: Request) -> JSONResponse:
        asked = await read_json(request, Question)
        return await _json(computing, partial(gallery.scatter, asked))

    @routes.post("/predict")
    async def predict(request: Request) -> JSONResponse:
        example = await read_json(request, Example)
        return await _json(computing, lambda: {"classes": gallery.predict(example)})

    @routes.get("/labels")
    async def labels() -> JSONResponse:
        return await _json(writing, labelling.summary)

    @routes.get("/labels/of")
    async def labels_of(id: QueryText) -> JSONResponse:
        return await _json(writing, partial(labelling.labels_of, id))

    @routes.post("/labels")
    async def change_labels(request: Request) -> JSONResponse:
        asked = await read_json(request, LabelChange)
        return await _json(writing, partial(labelling.change, asked))

    @routes.post("/labels/undo")
    async def undo_labels(request: Request) -> JSONResponse:
        asked = await read_json(request, UndoQuestion)
        return await _json(writing, partial(labelling.undo, asked))

    @routes.post("/labels/next")
    async def next_to_label(request: Request) -> JSONResponse:
        asked = await read_json(request, NextQuestion)
        return await _json(writing, partial(labelling.next, asked))

    return routes


async def read_json(request: Request, model: type[Body]) -> Body:
    """The body as JSON of this shape."""
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != "application/json":
        raise RefusedError(415, "Content-Type must be application/json")
    try:
        return model.model_validate_json(await read_body(request, MAX_JSON))
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False, include_context=False)[0]
        raise RequestValidationError([{**first, "loc": ("body", *first["loc"])}]) from None


async def _json(gate: Gate, work: Callable[[], object]) -> JSONResponse:
    return JSONResponse(await gate.run(work), headers=NEVER_KEPT)


def _file(request: Request, name: str, content: bytes) -> Response:
    etag = f'"{hashlib.sha256(content).hexdigest()[:32]}"'
    headers = {"ETag": etag, "Cache-Control": "no-cache"}
    if request.headers.get("if-none-match") == etag:
        return Response(status_code=304, headers=headers)
    kind = "text/javascript" if name.endswith(".js") else mimetypes.guess_type(name)[0]
    return Response(content, media_type=kind, headers=headers)


async def _answer(request: Request, error: Exception) -> JSONResponse:
    """One line of JSON for each kind of error."""
    match error:
        case RefusedError():
            status, line = error.status, error.line
        case UnknownError() | ForgottenError():
            status, line = 404, str(error)
        case ImageError():
            # a thumbnail is asked for by GET; its image is gone. What is posted is a bad photo.
            status, line = 404 if request.method == "GET" else 400, str(error)
        case RequestValidationError():
            first = error.errors()[0]
            where = ".".join(map(str, first["loc"][1:])) or "the body"
            status, line = 400, f"{where}: {first['msg']}"
        case HTTPException():
            lines = {404: "there is nothing here", 405: "this address takes another method"}
            status, line = error.status_code, lines.get(error.status_code, str(error.detail))
        case DeepFishingError():
            _log.warning("deepfish: %s", error)
            status, line = 503, "the server cannot do this now; its terminal says why"
        case _:
            status, line = 500, "the server made a mistake; its terminal says more"
    return JSONResponse({"error": line}, status, getattr(error, "headers", None))

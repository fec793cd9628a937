"""ASGI application of the page.

Behind its guard it serves the page's own files, which are read once, the requests below /api, which
are answered as JSON and JPEG, and `{"error": "one line"}` for every error. Messages with a path in
them are printed in the terminal instead.
"""

from __future__ import annotations

import hashlib
import logging
import mimetypes
from collections.abc import Mapping
from pathlib import Path

from fastapi import APIRouter, FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, RedirectResponse, Response
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp

from deepfishing.errors import DeepFishingError, ImageError
from deepfishing.web.gallery import Gallery, UnknownError
from deepfishing.web.guard import Guard, RefusedError
from deepfishing.web.photos import ForgottenError
from deepfishing.web.selections import ForgottenSelectionError
from deepfishing.web.studio import Studio
from deepfishing.web.views import VIEWS

STATIC = Path(__file__).parent / "static"
INDEX = "index.html"
NAVIGATION, TEMPLATES = b"<!-- views -->", b"<!-- templates -->"

_log = logging.getLogger("deepfishing.web")


def make_app(
    gallery: Gallery, host: str = "127.0.0.1", port: int = 0, token: str | None = None
) -> ASGIApp:
    """Return the application with its access control."""
    return Guard(make_page(gallery), host, port, token)


def make_page(gallery: Gallery) -> ASGIApp:
    """Return the application of a gallery without access control."""
    app = make_site()
    app.include_router(make_routes(gallery))
    return app


def make_site() -> FastAPI:
    """Return an application with the static files and error handlers."""
    # no pages of FastAPI's own, which load scripts from elsewhere
    app = FastAPI(docs_url=None, redoc_url=None, openapi_url=None)
    paths = (path for path in STATIC.rglob("*") if path.is_file())
    files = {path.relative_to(STATIC).as_posix(): path.read_bytes() for path in paths}
    templates = b"".join(_template(view.name, files) for view in VIEWS)
    files[INDEX] = (
        files[INDEX].replace(NAVIGATION, _links()).replace(TEMPLATES, templates)
    )

    @app.get("/")
    async def index(request: Request) -> Response:
        return _file(request, INDEX, files[INDEX])

    @app.get("/label")
    async def label() -> Response:
        return RedirectResponse("/#view=label")

    @app.get("/static/{name:path}")
    async def static(request: Request, name: str) -> Response:
        if name not in files:
            raise HTTPException(404)
        return _file(request, name, files[name])

    for kind in (
        RefusedError,
        RequestValidationError,
        HTTPException,
        DeepFishingError,
        Exception,
    ):
        app.add_exception_handler(kind, _answer)
    return app


def make_routes(gallery: Gallery) -> APIRouter:
    """Return all routes below /api."""
    studio = Studio(gallery)
    routes = APIRouter(prefix="/api")
    for view in VIEWS:
        routes.include_router(view.make_routes(studio))
    return routes


def _links() -> bytes:
    """Return the links of the navigation."""
    link = '<a href="#view={0.name}" data-view="{0.name}">{0.title}</a>'
    return "".join(link.format(view) for view in VIEWS).encode()


def _template(name: str, files: Mapping[str, bytes]) -> bytes:
    """Return the HTML template of a view, which its script copies."""
    content = files.get(f"view_{name}.html", b"")
    return b'<template id="view-%s">%s</template>' % (name.encode(), content)


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
        case UnknownError() | ForgottenError() | ForgottenSelectionError():
            status, line = 404, str(error)
        case ImageError():
            # GET is for a thumbnail, whose image is gone; a POST has an unreadable photo
            status, line = 404 if request.method == "GET" else 400, str(error)
        case RequestValidationError():
            first = error.errors()[0]
            where = ".".join(map(str, first["loc"][1:])) or "the body"
            status, line = 400, f"{where}: {first['msg']}"
        case HTTPException():
            lines = {
                404: "there is nothing here",
                405: "this address takes another method",
            }
            status, line = (
                error.status_code,
                lines.get(error.status_code, str(error.detail)),
            )
        case DeepFishingError():
            _log.warning("deepfish: %s", error)
            status, line = 503, "the server cannot do this now; its terminal says why"
        case _:
            status, line = 500, "the server made a mistake; its terminal says more"
    return JSONResponse({"error": line}, status, getattr(error, "headers", None))

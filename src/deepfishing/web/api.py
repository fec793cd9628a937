"""Stage 8, the page: the questions that a browser can ask, as addresses.

Comes in: HTTP requests that the guard has let through. Goes out: JSON and JPEG. Every answer that
is not one is `{"error": "one line"}`.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Annotated, Literal, TypeVar

from fastapi import APIRouter, Query, Request
from fastapi.responses import JSONResponse, Response
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from deepfishing.web.gallery import Example, Filter, Gallery
from deepfishing.web.gate import Gate, RefusedError, read_body
from deepfishing.web.uploads import MAX_BYTES

MAX_JSON = 1 << 18
MAX_PAGE = 500
MAX_HITS = 200
MAX_EXAMPLES = 50
MAX_TEXT = 4096  # of an id, a label, a text
NEVER_KEPT = {"Cache-Control": "no-store"}

Text = Annotated[str, Field(max_length=MAX_TEXT)]
QueryText = Annotated[str, Query(max_length=MAX_TEXT)]


class ExampleBody(BaseModel):
    """An example as the page sends it: an id, or the key of an upload."""

    model_config = ConfigDict(extra="forbid", strict=True)
    id: Text = ""
    upload: Text = ""

    def example(self) -> Example:
        """The same as the gallery takes it."""
        if bool(self.id) is bool(self.upload):
            raise RefusedError(400, "an example must have an id or an upload, and not both")
        return Example(self.id, self.upload)


class SearchBody(BaseModel):
    """A search as the page sends it."""

    model_config = ConfigDict(extra="forbid", strict=True)
    by: Text
    like: Annotated[list[ExampleBody], Field(min_length=1, max_length=MAX_EXAMPLES)]
    unlike: Annotated[list[ExampleBody], Field(max_length=MAX_EXAMPLES)] = []
    k: Annotated[int, Field(ge=1, le=MAX_HITS)] = 12
    labels: Annotated[list[Text], Field(max_length=20)] = []
    text: Text = ""

    def parts(self) -> tuple[list[Example], list[Example], Filter]:
        """Examples, counter-examples and filter, as the gallery takes them."""
        like, unlike = ([one.example() for one in some] for some in (self.like, self.unlike))
        return like, unlike, Filter(tuple(self.labels), self.text)


Body = TypeVar("Body", bound=BaseModel)


async def read_json(request: Request, model: type[Body]) -> Body:
    """The body as JSON of this shape."""
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != "application/json":
        raise RefusedError(415, "Content-Type must be application/json")
    try:
        return model.model_validate_json(await read_body(request, MAX_JSON))
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False, include_context=False)[0]
        where = ".".join(map(str, first["loc"])) or "the body"
        raise RefusedError(400, f"{where}: {first['msg']}") from None


def make_routes(gallery: Gallery) -> APIRouter:
    """All addresses below /api."""
    routes = APIRouter(prefix="/api")
    computing = Gate(running=2, waiting=64)  # searches: numpy has the cores to itself
    decoding = Gate(running=2, waiting=256)  # thumbnails
    receiving = Gate(running=2, waiting=64)  # photos; those that wait are not in memory yet
    encoding = Gate(running=1, waiting=1)  # one at a time, in no search's place

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
        async with receiving.place():
            content = await read_body(request, MAX_BYTES)
            return await _json(encoding, lambda: {"upload": gallery.uploads.add(content)})

    @routes.post("/search")
    async def search(request: Request) -> JSONResponse:
        asked = await read_json(request, SearchBody)
        like, unlike, wanted = asked.parts()
        find = partial(gallery.search, asked.by, like, unlike, asked.k, wanted)
        return await _json(computing, lambda: {"by": asked.by, "hits": find()})

    @routes.post("/scatter")
    async def scatter(request: Request) -> JSONResponse:
        asked = await read_json(request, SearchBody)
        return await _json(computing, partial(gallery.scatter, asked.by, *asked.parts()))

    @routes.post("/predict")
    async def predict(request: Request) -> JSONResponse:
        example = (await read_json(request, ExampleBody)).example()
        return await _json(computing, lambda: {"classes": gallery.predict(example)})

    return routes


async def _json(gate: Gate, work: Callable[[], object]) -> JSONResponse:
    return JSONResponse(await gate.run(work), headers=NEVER_KEPT)

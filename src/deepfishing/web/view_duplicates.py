"""Routes of the copies: groups that were found, decisions about them, the list of what may go.

Files are only read. Which photos may be listed is decided in `curate.copies_review`.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

import pyarrow as pa
import pyarrow.compute as pc
from fastapi import APIRouter, Query, Request
from fastapi.responses import JSONResponse, Response
from pydantic import BaseModel, ConfigDict, Field

from deepfishing.core.rank_one import Array
from deepfishing.curate.copies_review import Copy, CopyGroup, Review, as_text
from deepfishing.errors import OptionError
from deepfishing.util.progress import Progress
from deepfishing.web.apart import run_apart
from deepfishing.web.gallery import MAX_TEXT, Filter, UnknownError
from deepfishing.web.guard import RefusedError
from deepfishing.web.studio import NEVER_KEPT, QueryText, Studio, answer, read_json
from deepfishing.web.view_photos import FilterQuery

JOB = "duplicates"
MAX_GROUPS = 50  # in one answer
FORMS = {
    "tab": "text/tab-separated-values",
    "nul": "application/octet-stream",
    "csv": "text/csv",
}
FILES = {"tab": "copies.tsv", "nul": "copies.nul", "csv": "copies.csv"}

Form = Literal["tab", "nul", "csv"]


class Decision(BaseModel):
    """Set a photo aside, keep it, or go back to the default with null."""

    model_config = ConfigDict(extra="forbid", strict=True)
    id: Annotated[str, Field(min_length=1, max_length=MAX_TEXT)]
    aside: bool | None


def make_routes(studio: Studio) -> APIRouter:
    """Make the routes of the copies."""
    routes = APIRouter(prefix="/duplicates")
    copies = Copies(studio)

    @routes.get("")
    async def summary(
        conditions: FilterQuery,
        offset: Annotated[int, Query(ge=0, le=2**31)] = 0,
        limit: Annotated[int, Query(ge=1, le=MAX_GROUPS)] = 20,
        open_only: bool = False,
    ) -> JSONResponse:
        return await answer(
            studio.computing, copies.summary, conditions, offset, limit, open_only
        )

    @routes.post("/find")
    async def find() -> JSONResponse:
        return JSONResponse(
            studio.jobs.start(JOB, copies.find).as_dict(), headers=NEVER_KEPT
        )

    @routes.post("/decide")
    async def decide(request: Request) -> JSONResponse:
        body = await read_json(request, Decision)
        return await answer(studio.writing, copies.decide, body)

    @routes.get("/difference")
    async def difference(a: QueryText, b: QueryText) -> Response:
        jpeg = await studio.decoding.run(lambda: copies.difference(a, b))
        headers = {"Cache-Control": "private, max-age=3600"}
        return Response(jpeg, media_type="image/jpeg", headers=headers)

    @routes.get("/export")
    async def export(conditions: FilterQuery, form: Form = "tab") -> Response:
        content, headers = await studio.computing.run(
            lambda: copies.export(conditions, form)
        )
        return Response(
            content, media_type=FORMS[form], headers={**NEVER_KEPT, **headers}
        )

    return routes


class Copies:
    """The copies of a gallery."""

    def __init__(self, studio: Studio) -> None:
        self.studio = studio
        self.gallery = studio.gallery
        self.review = Review(self.gallery.store.folder)

    def find(self, progress: Progress) -> None:
        """Look for copies in another process."""
        run_apart("duplicates", [str(self.gallery.store.folder)], progress)
        self.review.reload()

    def summary(
        self, conditions: Filter, offset: int, limit: int, open_only: bool
    ) -> dict[str, Any]:
        """Return some of the groups that have a photo that passes a filter."""
        review = self.review
        among = self._ids_among(conditions)
        groups = [
            group for group in review.groups if self._passes(group, among, open_only)
        ]
        page = groups[offset : offset + limit]
        job = self.studio.jobs.get(JOB)
        photos = len(self.gallery.collection)
        aside = sum(len(review.aside(group)) for group in groups)
        return {
            "job": None if job is None else job.as_dict(),
            "found": review.images is not None,
            "new_photos": 0
            if review.images is None
            else max(0, photos - review.images),
            "total": len(groups),
            "aside": aside,
            "groups": [self._group(group) for group in page],
        }

    def decide(self, body: Decision) -> dict[str, Any]:
        """Write a decision; return the group as it is now."""
        try:
            group = self.review.decide(body.id, body.aside)
        except OptionError as error:
            raise RefusedError(409, str(error)) from None
        return self._group(group)

    def difference(self, a: str, b: str) -> bytes:
        """Return a picture of how two photos of a group differ."""
        try:
            return self.review.difference(a, b)
        except OptionError as error:
            raise UnknownError(str(error)) from None

    def export(self, conditions: Filter, form: Form) -> tuple[bytes, dict[str, str]]:
        """Return the list of removable photos, and headers with the number of omitted ones."""
        among = self._ids_among(conditions)
        passes = None
        if among is not None:
            passes = among.__contains__
        listed, refused = self.review.listed(passes)
        content, unwritable = as_text(listed, form)
        return content, {
            "Content-Disposition": f'attachment; filename="{FILES[form]}"',
            "X-Listed": str(len(listed) - unwritable),
            "X-Left-Out": str(len(refused) + unwritable),
        }

    def _passes(
        self, group: CopyGroup, among: set[str] | None, open_only: bool
    ) -> bool:
        if among is not None and not any(copy.id in among for copy in group.copies):
            return False
        if not open_only:
            return True
        decided = self.review.decisions.of
        return not any(
            decided(copy.id, copy.sha256) is not None for copy in group.copies
        )

    def _ids_among(self, conditions: Filter) -> set[str] | None:
        """Return ids of photos of groups that pass a filter; None if all pass."""
        rows = self.gallery.rows(conditions)
        if rows is None:
            return None
        ids: list[str] = []
        for group in self.review.groups:
            ids += [copy.id for copy in group.copies]
        return passing_ids(self.gallery.collection.table.column("id"), rows, ids)

    def _group(self, group: CopyGroup) -> dict[str, Any]:
        return {
            "why": group.why,
            "photos": [self._photo(copy) for copy in group.copies],
        }

    def _photo(self, copy: Copy) -> dict[str, Any]:
        names = ("id", "width", "height", "bytes", "kind", "is_file")
        return {
            **{name: getattr(copy, name) for name in names},
            "difference": round(copy.difference, 3),
            "aside": self.review.is_aside(copy),
            "is_decided": self.review.decisions.of(copy.id, copy.sha256) is not None,
            "labels": self._labels(copy.id),
        }

    def _labels(self, id_: str) -> list[str]:
        try:
            row = self.gallery.row(id_)
        except UnknownError:  # found by a newer process than this one
            return []
        return list(self.gallery.live.of_row(row) or ())


def passing_ids(column: pa.ChunkedArray, rows: Array, ids: list[str]) -> set[str]:
    """Return those of some ids whose row in a column is among these rows."""
    passed = column.take(pa.array(rows))
    mask = pc.is_in(pa.array(ids, pa.string()), value_set=passed.combine_chunks())
    return {id_ for id_, is_in in zip(ids, mask.to_pylist(), strict=True) if is_in}

"""`deepfish studio`: read a folder of photos with progress, then show its page.

While photos are read, the page shows the progress. Reading can be cancelled and resumed; the photos
that have been read can be viewed before it is finished.
"""

from __future__ import annotations

import hashlib
import logging
import os
import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse
from starlette.types import ASGIApp, Receive, Scope, Send

from deepfishing.errors import DeepFishingError, OptionError, one_line
from deepfishing.images.folder import is_folder
from deepfishing.store.manifest import MANIFEST
from deepfishing.util.progress import Progress
from deepfishing.web.app import make_page, make_site
from deepfishing.web.gallery import Gallery
from deepfishing.web.guard import RefusedError
from deepfishing.web.jobs import DONE, RUNNING, Jobs
from deepfishing.web.labelling import Nothing
from deepfishing.web.photos import LOADING
from deepfishing.web.studio import NEVER_KEPT, read_json

FOLDER = ".deepfishing"
JOB = "reading"
PREFIX = "/api/opening"
END_SECONDS = 20.0  # that a network which is being loaded may take to end
IMAGES = "images"  # the stage of an extraction that computes

_log = logging.getLogger("deepfishing.web")


@dataclass(frozen=True)
class Place:
    """The location of the store of a folder of photos."""

    store: Path
    is_beside: bool  # in the folder itself, or else in the user's data folder


def find_place(photos: Path) -> Place:
    """Return where the store of a folder is kept: in it, if it can be written to."""
    if not is_folder(photos):
        raise OptionError(
            f"PHOTOS must be a folder, got {photos}; give one that exists"
        )
    if (photos / MANIFEST).exists():
        raise OptionError(
            f"PHOTOS must be a folder of photos, got a store; try serve {photos}"
        )
    beside = photos / FOLDER
    if beside.is_symlink():
        raise OptionError(f"{beside} must be a folder, got a link; remove it")
    if _can_write(beside):
        return Place(beside, True)
    name = hashlib.sha256(os.fsencode(photos.absolute())).hexdigest()[:16]
    other = data_folder() / f"{photos.absolute().name}-{name}"
    if not _can_write(other):
        raise OptionError(
            f"features must be kept in {photos} or in {other.parent}, and neither can be written "
            "to; use `deepfish extract` with a folder of your choice, then `deepfish serve`"
        )
    return Place(other, False)


def data_folder() -> Path:
    """Return the user's folder for data of programs."""
    if sys.platform == "win32":
        base = os.environ.get("LOCALAPPDATA", "")
        default = Path.home() / "AppData" / "Local"
    elif sys.platform == "darwin":
        base, default = "", Path.home() / "Library" / "Application Support"
    else:
        base, default = (
            os.environ.get("XDG_DATA_HOME", ""),
            Path.home() / ".local" / "share",
        )
    return (Path(base) if base else default) / "deepfishing"


def _can_write(folder: Path) -> bool:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError:
        return False
    return os.access(folder, os.W_OK | os.X_OK)


class Opening:
    """An application that shows the progress of reading, then the page of the store.

    Parameters
    ----------
    name : str
        Name of the folder on the page.
    place : Place
    read : callable
        Reads the photos into the store; called with a progress function, which ends it by an
        exception when somebody cancels.
    make_gallery : callable
        Opens the store.
    photos : Path, optional
        The folder, which messages call "the folder".
    """

    def __init__(
        self,
        name: str,
        place: Place,
        read: Callable[[Progress], None],
        make_gallery: Callable[[], Gallery],
        photos: Path | None = None,
    ) -> None:
        self.name = name
        self.place = place
        folders = {"the store": place.store}
        if photos is not None:
            folders["the folder"] = photos
        self.jobs = Jobs(folders)
        self._read = read
        self._make_gallery = make_gallery
        self._site = make_site()
        self._site.include_router(self._routes())
        self._page: ASGIApp | None = None
        self._lock = threading.Lock()
        # loads the network for visitors' photos
        self._warming: threading.Thread | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer with the page, or with how far it is."""
        asks_here = scope.get("path", "").startswith(PREFIX)
        app = self._site if asks_here or self._page is None else self._page
        await app(scope, receive, send)

    def start(self) -> None:
        """Begin to read, or go on."""
        self._page = None
        self.jobs.start(JOB, self._work)

    def close(self) -> None:
        """Stop reading; what is finished is kept."""
        self.jobs.close(seconds=60)
        if self._warming is not None:
            self._warming.join(END_SECONDS)

    def state(self) -> dict[str, Any]:
        """Return the progress for the page."""
        job = self.jobs.get(JOB)
        if job is None:
            return {"is_ready": False, "name": self.name, "job": None}
        return {
            "is_ready": self._page is not None,
            "name": self.name,
            "is_beside": self.place.is_beside,
            "job": job.as_dict(),
        }

    def show(self, unread: int = 0) -> None:
        """Show what is in the store."""
        with self._lock:
            gallery = self._make_gallery()
            gallery.unread = unread
            self._warming = gallery.uploads.warm_up()
            self._page = make_page(gallery)

    def _work(self, progress: Progress) -> None:
        try:
            if self._warming is not None:
                self._warming.join()  # torch cannot prepare two networks at a time
            self._read(progress)
            progress("opening", 0, 0)
            self.show()
        except OSError as error:
            raise OptionError(one_line(error)) from None

    def _routes(self) -> APIRouter:
        routes = APIRouter()

        @routes.get("/api/store")
        async def store() -> JSONResponse:
            return JSONResponse({"opening": True}, headers=NEVER_KEPT)

        @routes.get("/api/uploads")
        async def uploads() -> JSONResponse:
            return JSONResponse({"network": LOADING}, headers=NEVER_KEPT)

        @routes.get(PREFIX)
        async def state() -> JSONResponse:
            return JSONResponse(self.state(), headers=NEVER_KEPT)

        @routes.post(f"{PREFIX}/cancel")
        async def cancel(request: Request) -> JSONResponse:
            await read_json(request, Nothing)
            self.jobs.cancel(JOB)
            return JSONResponse(self.state(), headers=NEVER_KEPT)

        @routes.post(f"{PREFIX}/resume")
        async def resume(request: Request) -> JSONResponse:
            await read_json(request, Nothing)
            job = self.jobs.get(JOB)
            if job is None or job.state != DONE:
                self.start()
            return JSONResponse(self.state(), headers=NEVER_KEPT)

        @routes.post(f"{PREFIX}/show")
        def show_part() -> JSONResponse:
            job = self.jobs.get(JOB)
            if job is not None and job.state == RUNNING:
                raise RefusedError(409, "the photos are still being read; cancel first")
            unread = (
                job.total - job.done if job is not None and job.stage == IMAGES else 0
            )
            try:
                self.show(unread)
            except DeepFishingError as error:
                _log.warning("deepfish: %s", error)
                raise RefusedError(409, "no photo has been read yet; resume") from None
            return JSONResponse(self.state(), headers=NEVER_KEPT)

        return routes

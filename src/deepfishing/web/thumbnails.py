"""Stage 8, the page: images of the store, small.

Comes in: a row of the store: where the image was seen, and the hash of its content. Goes out: a
JPEG of our own making. The file must still be the image that the features are of, so neither a
file that took its place nor anything else on the disk can be looked at through here.
"""

from __future__ import annotations

import hashlib
import io
import threading
from collections import OrderedDict
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path

from deepfishing.errors import DatasetError, ImageError, MissingDependencyError
from deepfishing.images.item import Item, located
from deepfishing.images.preprocess import Openable, open_image
from deepfishing.images.remote import is_url
from deepfishing.images.tar import is_tar, read_tar
from deepfishing.search.encoder import Upload

SIDES = {"small": 320, "large": 1024}  # pixels of the longer side
QUALITY = 80
KEEP_BYTES = 64 << 20
MAX_FILE = 1 << 28  # a larger file is not read for a thumbnail


class Thumbnails:
    """Makes thumbnails and keeps the last ones in memory.

    Parameters
    ----------
    folder : Path
        Of the store. A relative path in it started where `deepfish extract` ran, which often is
        above the store.
    keep_bytes : int
        What all that are kept may take.
    """

    def __init__(self, folder: Path, keep_bytes: int = KEEP_BYTES) -> None:
        self.folder = folder.absolute()
        self.keep_bytes = keep_bytes
        self._kept: OrderedDict[tuple[str, str], bytes] = OrderedDict()
        self._bytes = 0
        self._lock = threading.Lock()

    def jpeg(self, path: str, sha256: str, size: str) -> bytes:
        """The image seen at `path` with this content; an `ImageError` without any path in it."""
        with self._lock:
            found = self._kept.get((sha256, size))
            if found is not None:
                self._kept.move_to_end((sha256, size))
                return found
        made = self._make(path, sha256, SIDES[size])
        with self._lock:
            if (sha256, size) not in self._kept:
                self._kept[sha256, size] = made
                self._bytes += len(made)
            while self._bytes > self.keep_bytes:
                self._bytes -= len(self._kept.popitem(last=False)[1])
        return made

    def _make(self, path: str, sha256: str, side: int) -> bytes:
        contents = (_read(place) for place in self._places(path))
        same = (c for c in contents if c and hashlib.sha256(c).hexdigest() == sha256)
        content = next(same, None)
        if content is None:
            raise ImageError("the image is gone or has changed since its features were extracted")
        try:
            image = open_image(Upload("the image", content), draft=side)
        except ImageError:
            raise ImageError("the image cannot be decoded") from None
        image.thumbnail((side, side))
        small = io.BytesIO()
        image.save(small, "JPEG", quality=QUALITY)
        return small.getvalue()

    def _places(self, path: str) -> Iterator[Openable]:
        """Where the image may be, the likeliest first."""
        if is_url(path):
            yield located(self.folder, path)
            return
        for start in (Path(), self.folder, *self.folder.parents):
            place = start / path
            yield place
            yield from _in_tar(place)
            if Path(path).is_absolute():
                return


def _read(place: Openable) -> bytes | None:
    """The bytes of a file; never those of a pipe, which may not end, or of something huge.

    A file in /proc says that it is empty and may not end either.
    """
    try:
        if isinstance(place, Path) and not (
            place.is_file() and 0 < place.stat().st_size <= MAX_FILE
        ):
            return None
        with place.open("rb") as file:
            return file.read(MAX_FILE)
    except (OSError, ValueError, MissingDependencyError):
        return None  # no permission, a name too long or with a zero in it, no such server


def _in_tar(place: Path) -> Iterator[Item]:
    """The member of a tar that is meant by `photos.tar/a.jpg`."""
    for parent in place.parents:
        if is_tar(parent) and parent.is_file():
            item = _members(parent).get(str(place))
            if item is not None:
                yield item


@lru_cache(maxsize=16)
def _members(tar: Path) -> dict[str, Item]:
    try:
        return {str(item): item for item in read_tar(tar)}
    except DatasetError:
        return {}

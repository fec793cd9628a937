"""Stage 1, images: the file that a row of a store is of, found from any folder.

Comes in: the folder of a store, the path where an image was seen, and the hash of its content. Goes
out: the bytes of that very content. A relative path started where `deepfish extract` ran, which
often is the folder above the store, and need not be where a command runs now.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path

from deepfishing.errors import DatasetError, MissingDependencyError
from deepfishing.images.inside import holds_images, read_inside
from deepfishing.images.item import Item, located
from deepfishing.images.preprocess import Openable
from deepfishing.images.remote import is_url

MAX_FILE = 1 << 28  # bytes; a larger file is not read


def find_again(folder: Path, path: str, sha256: str) -> bytes | None:
    """The content with this hash, seen at `path` when the store in `folder` was made, or None.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as work:
    ...     _ = Path(work, "a.jpg").write_bytes(b"pixels")
    ...     hashed = hashlib.sha256(b"pixels").hexdigest()
    ...     found = [find_again(Path(work, "store"), "a.jpg", digits) for digits in (hashed, "0")]
    >>> found
    [b'pixels', None]
    """
    found = find_place(folder, path, sha256)
    return None if found is None else found[1]


def find_place(folder: Path, path: str, sha256: str) -> tuple[Openable, bytes] | None:
    """The same with the place: a Path, or what a member of a tar or a file behind a URL is."""
    for place in _places(folder.absolute(), path):
        content = _read(place)
        if content and hashlib.sha256(content).hexdigest() == sha256:
            return place, content
    return None


def _places(folder: Path, path: str) -> Iterator[Openable]:
    """Where the image may be, the likeliest first."""
    if is_url(path):
        yield located(folder, path)
        return
    for start in (Path(), folder, *folder.parents):
        place = start / path
        yield place
        for parent in place.parents:  # `photos.tar/a.jpg` is a member, `clip.mp4/t=3` a frame
            if holds_images(parent) and parent.is_file() and str(place) in _inside(parent):
                yield _inside(parent)[str(place)]
        if Path(path).is_absolute():
            return


@lru_cache(maxsize=16)
def _inside(holder: Path) -> dict[str, Item]:
    try:
        return {str(item): item for item in read_inside(holder, every=0)}
    except (DatasetError, MissingDependencyError):
        return {}


def _read(place: Openable) -> bytes | None:
    """The bytes of a file, unless it may never end, as a pipe or a file in /proc, or is huge."""
    try:
        if isinstance(place, Path) and not (
            place.is_file() and 0 < place.stat().st_size <= MAX_FILE
        ):
            return None
        with place.open("rb") as file:
            return file.read(MAX_FILE)
    except (OSError, ValueError, MissingDependencyError):
        return None  # no permission, a name too long or with a zero in it, no such server

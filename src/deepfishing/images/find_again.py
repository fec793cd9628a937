"""Stage 1, images: the file that a row of a store is of, found from any folder.

Comes in: the folder of a store, the path where an image was seen, and the hash of its content. Goes
out: the bytes of that very content. A relative path started where `deepfish extract` ran, which
often is the folder above the store, and need not be where a command runs now. A file that has
changed, or another one that lies in its place, is not taken for it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path

from deepfishing.errors import DatasetError, MissingDependencyError
from deepfishing.images.item import Item, located
from deepfishing.images.preprocess import Openable
from deepfishing.images.remote import is_url
from deepfishing.images.tar import is_tar, read_tar
from deepfishing.images.video import is_video, read_video

MAX_FILE = 1 << 28  # bytes; a larger file is not read


def find_again(folder: Path, path: str, sha256: str) -> bytes | None:
    """The content with this hash, seen at `path` when the store in `folder` was made, or None.

    Examples
    --------
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
    found = ((place, _read(place)) for place in _places(folder.absolute(), path))
    same = ((at, c) for at, c in found if c and hashlib.sha256(c).hexdigest() == sha256)
    return next(same, None)


def _places(folder: Path, path: str) -> Iterator[Openable]:
    """Where the image may be, the likeliest first."""
    if is_url(path):
        yield located(folder, path)
        return
    for start in (Path(), folder, *folder.parents):
        place = start / path
        yield place
        yield from _inside(place)
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


def _inside(place: Path) -> Iterator[Item]:
    """What is meant by `photos.tar/a.jpg`, a member of a tar, or `clip.mp4/t=3`, a frame."""
    for parent in place.parents:
        if (is_tar(parent) or is_video(parent)) and parent.is_file():
            item = _members(parent).get(str(place))
            if item is not None:
                yield item


@lru_cache(maxsize=16)
def _members(holder: Path) -> dict[str, Item]:
    try:
        found = read_tar(holder) if is_tar(holder) else read_video(holder, every=0)
        return {str(item): item for item in found}
    except (DatasetError, MissingDependencyError):
        return {}

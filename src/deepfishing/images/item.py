"""One image of a source before it is read: its id, its labels, and its bytes on demand.

It may be a file, a member of a tar, a frame of a video, or behind a URL. URLs (`s3://`, `gs://`,
`http://`, `file://`) are read through fsspec; listing a folder also gives size and version of its
files, so that no further request is needed to see whether one has changed.
"""

from __future__ import annotations

import glob
import hashlib
import io
import os
import re
import stat
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

from deepfishing.errors import (
    DatasetError,
    DeepFishingError,
    MissingDependencyError,
    need,
    one_line,
    pip_install,
    reraise_as,
)
from deepfishing.images.frames import frame_bytes
from deepfishing.util.files import SEPARATOR

# When the content changed last: ctime, for tools set mtime back after they have changed a file. On
# Windows ctime is when a file was made, so that only mtime is left.
STAMP = "st_mtime_ns" if os.name == "nt" else "st_ctime_ns"
# a member is read whole, so a larger one is refused: no image is 1 GB
MAX_MEMBER = 1 << 30

_URL = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+://")

# keys that differ between two contents of a file, best first; every implementation has others
_VERSION = ("ETag", "etag", "md5Hash", "checksum", "generation")
_TIME = ("mtime", "LastModified", "last_modified", "updated", "modified", "created")

_OF_EXTRA = ("aiohttp", "requests")  # what http:// needs
# named unlike their modules
_PACKAGES = {"smbclient": "smbprotocol", "libarchive": "libarchive-c"}


@dataclass(frozen=True)
class Member:
    """Place of an image in an uncompressed tar."""

    name: str
    offset: int
    size: int


@dataclass(frozen=True)
class Frame:
    """One frame of a video; `pts` is its time in the file's own units."""

    name: str
    pts: int


@dataclass(frozen=True)
class ImageBytes:
    """Bytes of an image with a name for messages; opens as a file does."""

    name: str
    content: bytes

    def __str__(self) -> str:
        return self.name

    def open(self, mode: str = "rb") -> io.BytesIO:
        """Open the bytes."""
        return io.BytesIO(self.content)

    def signature(self) -> tuple[int, int]:
        """Size and hash: other bytes of the same name are another content."""
        return len(self.content), int(hashlib.sha256(self.content).hexdigest()[:15], 16)


@dataclass(frozen=True)
class RemoteFile:
    """A file behind a URL; size and stamp as in the listing, -1 if they are not known yet."""

    url: str
    size: int = -1
    stamp: int = -1

    def __str__(self) -> str:
        return self.url

    def open(self, mode: str = "rb") -> io.BytesIO:
        """Return the bytes, by one request."""
        with _file_system(self.url) as (system, path):
            return io.BytesIO(system.cat_file(path))

    def signature(self) -> tuple[int, int]:
        """Size, and a number made of the entity tag, the checksum or the time of change."""
        if self.size >= 0:
            return self.size, self.stamp
        with _file_system(self.url) as (system, path):
            return _signature(system.info(path))


@dataclass(frozen=True)
class Item:
    """An image that may be opened later, as often as needed and from any thread.

    Its id is unique in its source, and the same whenever the source is read again. `member` is its
    place in the tar or the video that `path` then is; labels are None where the source has none.
    """

    id: str
    path: Path | RemoteFile | ImageBytes
    labels: tuple[str, ...] | None = None
    member: Member | Frame | None = None

    def __str__(self) -> str:
        path = as_text(str(self.path))
        if self.member:
            return f"{path}/{self.member.name}"
        return path

    def open(self, mode: str = "rb") -> io.BufferedReader | io.BytesIO:
        """Open the image."""
        if not isinstance(self.path, Path):
            return self.path.open("rb")
        _stat(self.path)
        if self.member is None:
            return self.path.open("rb")
        if isinstance(self.member, Frame):
            return io.BytesIO(frame_bytes(self.path, self.member.pts))
        if self.member.size > MAX_MEMBER:
            raise OSError(f"{self.member.size:,} bytes, more than {MAX_MEMBER:,}")
        with self.path.open("rb") as tar:
            tar.seek(self.member.offset)
            return io.BytesIO(tar.read(self.member.size))

    def signature(self) -> tuple[int, int]:
        """Return size and stamp (a time of change, or a version); another content has others."""
        if not isinstance(self.path, Path):
            return self.path.signature()
        status = _stat(self.path)
        return getattr(self.member, "size", status.st_size), getattr(status, STAMP)

    def sha256(self) -> str:
        """Return the SHA-256 of its content, 64 hex digits."""
        with self.open() as file:
            return hashlib.file_digest(file, "sha256").hexdigest()


def _stat(path: Path) -> os.stat_result:
    """Return the status of a file; refuse a pipe or a device, which may never end."""
    status = path.stat()
    if not stat.S_ISREG(status.st_mode):
        raise OSError("not a file")
    return status


def located(folder: Path | str, name: str) -> Path | RemoteFile:
    """Return the path or URL of a name in a list, relative to a folder or the start of a URL."""
    if is_url(name):
        return RemoteFile(name)
    if isinstance(folder, str):
        return RemoteFile(folder + name)
    return folder / name


def as_labels(value: Any, *, several: bool = False) -> tuple[str, ...] | None:
    """Return the labels in a cell or in JSON: a list, one, or `several` with `;` between them."""
    if value is None or value == "":
        return None
    if isinstance(value, list):
        return tuple(str(label) for label in value)
    parts = [str(value)]
    if several:
        parts = str(value).split(SEPARATOR)
    return tuple(part.strip() for part in parts if part.strip())


def item_at(
    folder: Path | str, name: str, id_: str, labels: tuple[str, ...] | None = None
) -> Item:
    """Return the item of a name in a list; a path of Windows is converted if there is no file."""
    path = located(folder, name)
    if "\\" in name and isinstance(path, Path) and not path.exists():
        slashes = name.replace("\\", "/")
        path = located(folder, slashes)
        if id_ == name:
            id_ = slashes
    return Item(id_, path, labels)


def as_text(name: str) -> str:
    """A file's name as UTF-8, for stores, messages and pages; other bytes are escaped."""
    return name.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")


def is_url(name: str) -> bool:
    """Whether a name has a protocol, as `s3://bucket/photos` has."""
    return bool(_URL.match(name))


def list_files(url: str) -> dict[str, RemoteFile] | None:
    """Return the files of a folder or a pattern by their path below it; None for a file."""
    cannot = reraise_as(DatasetError, f"images cannot be listed: {url}", of=OSError)
    with cannot, _file_system(url) as (system, path):
        if glob.has_magic(url):
            parts = path.split("/")
            fixed = next(n for n, part in enumerate(parts) if glob.has_magic(part))
            folder = "/".join(parts[:fixed])
            listing = system.glob(path, detail=True)
        elif system.isdir(path):
            folder = path
            listing = system.find(path, detail=True)
        elif system.exists(path):
            return None
        else:
            raise DatasetError(f"images must exist, got {url}, which does not exist")
    files = {}
    for name, info in listing.items():
        below = name.removeprefix(folder).lstrip("/")
        is_hidden = any(part.startswith(".") for part in PurePosixPath(below).parts)
        if info.get("type") != "directory" and not is_hidden:
            files[below] = RemoteFile(system.unstrip_protocol(name), *_signature(info))
    return dict(sorted(files.items()))


@contextmanager
def _file_system(url: str) -> Iterator[tuple[Any, str]]:
    """Yield fsspec's file system for a URL, and the path in it.

    Errors of fsspec and client libraries become OSError, which every reader of images expects.
    """
    fsspec = need("fsspec.core", "remote")
    if "::" in url:
        raise DatasetError(
            f"a URL must have one protocol, got {url}; unpack the archive first"
        )
    try:
        system, path = fsspec.url_to_fs(url)
    except ImportError as error:
        name = str(getattr(error.__cause__, "name", None) or "fsspec")
        module = name.partition(".")[0]
        command = pip_install(_PACKAGES.get(module, module))
        if module in _OF_EXTRA:
            command = pip_install(extra="remote")
        raise MissingDependencyError(
            f"{url} needs another package; run `{command}`"
        ) from None
    except Exception as error:
        # unknown, or it lacks settings, or fsspec fails on it
        raise DatasetError(f"URL cannot be used: {url} ({one_line(error)})") from None
    try:
        yield system, str(path)
    except (OSError, DeepFishingError):
        raise
    except Exception as error:
        raise OSError(one_line(error)) from None


def _signature(info: Mapping[str, Any]) -> tuple[int, int]:
    """Return size and stamp; a file without a version and a time is assumed not to change."""
    version = ""
    for key in (*_VERSION, *_TIME):
        if info.get(key) is not None:
            version = str(info[key])
            break
    # fits into 63 bits
    stamp = int(hashlib.sha256(version.encode()).hexdigest()[:15], 16)
    return int(info.get("size") or 0), stamp

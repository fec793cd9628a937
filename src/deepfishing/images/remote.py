"""Stage 1, images: files behind a URL, read through fsspec (`s3://`, `gs://`, `http://`, `file://`).

Comes in: a URL of a folder, a pattern or a file. Goes out: files that can be opened from any thread
and sent to another process. Their listing brings size and version along, so that no file has to be
asked again whether it has changed.
"""

from __future__ import annotations

import glob
import hashlib
import io
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Any

from deepfishing.errors import (
    DatasetError,
    DeepFishingError,
    MissingDependencyError,
    need,
    one_line,
    pip_install,
)

_URL = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+://")

# what tells two contents of a file apart, best first; every implementation has its own words
_VERSION = ("ETag", "etag", "md5Hash", "checksum", "generation")
_TIME = ("mtime", "LastModified", "last_modified", "updated", "modified", "created")

_OF_EXTRA = ("aiohttp", "requests")  # what http:// needs
_PACKAGES = {"smbclient": "smbprotocol", "libarchive": "libarchive-c"}  # named unlike their modules


@dataclass(frozen=True)
class RemoteFile:
    """A file behind a URL; size and stamp as the listing had them, -1 if nobody has asked yet."""

    url: str
    size: int = -1
    stamp: int = -1

    def __str__(self) -> str:
        return self.url

    def open(self, mode: str = "rb") -> io.BytesIO:
        """Its bytes: an image is wanted whole, so one request brings it."""
        system, path = _file_system(self.url)
        with _os_errors():
            return io.BytesIO(system.cat_file(path))

    def signature(self) -> tuple[int, int]:
        """Size, and a number made of the entity tag, the checksum or the time of change."""
        if self.size >= 0:
            return self.size, self.stamp
        system, path = _file_system(self.url)
        with _os_errors():
            return _signature(system.info(path))


def is_url(name: str) -> bool:
    """Whether a name has a protocol.

    >>> is_url("s3://bucket/photos"), is_url("photos/a.jpg")
    (True, False)
    """
    return bool(_URL.match(name))


def list_files(url: str) -> dict[str, RemoteFile] | None:
    """The files of a folder or a pattern by their path below it, in order; None for a file."""
    system, path = _file_system(url)
    try:
        with _os_errors():
            if glob.has_magic(url):
                parts = path.split("/")
                fixed = next(n for n, part in enumerate(parts) if glob.has_magic(part))
                folder, found = "/".join(parts[:fixed]), system.glob(path, detail=True)
            elif system.isdir(path):
                folder, found = path, system.find(path, detail=True)
            elif system.exists(path):
                return None
            else:
                raise DatasetError(f"images must exist, got {url}, which does not exist")
    except OSError as error:
        raise DatasetError(f"images cannot be listed: {url} ({one_line(error)})") from None
    files = {}
    for name, info in found.items():
        below = name.removeprefix(folder).lstrip("/")
        hidden = any(part.startswith(".") for part in PurePosixPath(below).parts)
        if info.get("type") != "directory" and not hidden:
            files[below] = RemoteFile(system.unstrip_protocol(name), *_signature(info))
    return dict(sorted(files.items()))


def _file_system(url: str) -> tuple[Any, str]:
    """What reads a URL, and the path that it knows; fsspec makes each one once."""
    fsspec = need("fsspec.core", "remote")
    if "::" in url:
        raise DatasetError(f"a URL must have one protocol, got {url}; unpack the archive first")
    try:
        system, path = fsspec.url_to_fs(url)
    except ImportError as error:
        module = str(getattr(error.__cause__, "name", None) or "fsspec").partition(".")[0]
        package = _PACKAGES.get(module, module)
        run = pip_install(extra="remote") if module in _OF_EXTRA else pip_install(package)
        raise MissingDependencyError(f"{url} needs another package; run `{run}`") from None
    except Exception as error:  # unknown, or it lacks settings, or fsspec stumbles over it
        raise DatasetError(f"URL cannot be used: {url} ({one_line(error)})") from None
    return system, str(path)


@contextmanager
def _os_errors() -> Iterator[None]:
    """Errors of fsspec and client libraries as OSError, which every reader of images expects."""
    try:
        yield
    except (OSError, DeepFishingError):
        raise
    except Exception as error:
        raise OSError(one_line(error)) from None


def _signature(info: Mapping[str, Any]) -> tuple[int, int]:
    """Size and stamp; a file that tells neither is taken not to change."""
    told = next((str(info[key]) for key in (*_VERSION, *_TIME) if info.get(key) is not None), "")
    stamp = int(hashlib.sha256(told.encode()).hexdigest()[:15], 16)  # fits into 63 bits
    return int(info.get("size") or 0), stamp

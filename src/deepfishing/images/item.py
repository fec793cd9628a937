"""Stage 1, images: one image of a source, before anything of it is read.

Comes in: what a source says of it. Goes out: its id, its labels, and its bytes when they are
asked for, whether it is a file, a member of a tar, a frame of a video or behind a URL.
"""

from __future__ import annotations

import hashlib
import io
import stat
from dataclasses import dataclass
from pathlib import Path

from deepfishing.images.remote import RemoteFile, is_url

MAX_MEMBER = 1 << 30  # a member is read whole, so a larger one is refused: no image is 1 GB


@dataclass(frozen=True)
class Member:
    """Where an image lies in an uncompressed tar."""

    name: str
    offset: int
    size: int


@dataclass(frozen=True)
class Frame:
    """Which frame of a video an image is; `pts` is its place in the file's own units."""

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
        """The bytes."""
        return io.BytesIO(self.content)

    def signature(self) -> tuple[int, int]:
        """Size and hash: other bytes of the same name are another content."""
        return len(self.content), int(hashlib.sha256(self.content).hexdigest()[:15], 16)


@dataclass(frozen=True)
class Item:
    """An image that may be opened later, as often as needed and from any thread.

    Its id is unique in its source, and the same whenever the source is read again. `member` is its
    place in the tar or the video that `path` then is; labels are None where the source has none.

    >>> item = Item("photos.tar/a.jpg", Path("photos.tar"), member=Member("a.jpg", 512, 9))
    >>> str(item)
    'photos.tar/a.jpg'
    """

    id: str
    path: Path | RemoteFile | ImageBytes
    labels: tuple[str, ...] | None = None
    member: Member | Frame | None = None

    def __str__(self) -> str:
        path = as_text(str(self.path))
        return f"{path}/{self.member.name}" if self.member else path

    def open(self, mode: str = "rb") -> io.BufferedReader | io.BytesIO:
        """Its bytes."""
        if self.member is None or not isinstance(self.path, Path):
            return self.path.open("rb")
        if isinstance(self.member, Frame):
            from deepfishing.images.inside import frame_bytes  # which makes items itself

            return io.BytesIO(frame_bytes(self.path, self.member.pts))
        if self.member.size > MAX_MEMBER:
            raise OSError(f"{self.member.size:,} bytes, more than {MAX_MEMBER:,}")
        with self.path.open("rb") as tar:
            tar.seek(self.member.offset)
            return io.BytesIO(tar.read(self.member.size))

    def signature(self) -> tuple[int, int]:
        """Size and stamp, a time of change or a version: while they stay, so does the content."""
        if not isinstance(self.path, Path):
            return self.path.signature()
        found = self.path.stat()
        if not stat.S_ISREG(found.st_mode):  # a pipe or a device may never end
            raise OSError("not a file")
        # ctime, not mtime: tools set that back after they have changed a file, and nobody sets this
        return getattr(self.member, "size", found.st_size), found.st_ctime_ns

    def sha256(self) -> str:
        """Hash of its content, 64 hex digits."""
        with self.open() as file:
            return hashlib.file_digest(file, "sha256").hexdigest()


def located(folder: Path | str, name: str) -> Path | RemoteFile:
    """What a list in a folder, or below the start of a URL, means by a name.

    >>> str(located(Path("lists"), "a.jpg")), str(located(Path("lists"), "s3://bucket/a.jpg"))
    ('lists/a.jpg', 's3://bucket/a.jpg')
    """
    if is_url(name):
        return RemoteFile(name)
    return RemoteFile(folder + name) if isinstance(folder, str) else folder / name


def as_text(name: str) -> str:
    r"""A file's name as UTF-8, for stores, messages and pages; other bytes are escaped.

    >>> as_text("café.jpg"), as_text("caf\udce9.jpg")
    ('café.jpg', 'caf\\xe9.jpg')
    """
    return name.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")

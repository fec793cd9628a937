"""Stage 1, images: the folder of a data set, whose files are untrusted.

Comes in: a folder and names in it. Goes out: names, lines and bytes; whatever is wrong with them is
a `DatasetError` that names the file, the line and what stands there.
"""

from __future__ import annotations

import codecs
import os
from collections.abc import Iterator, Sequence
from pathlib import Path

from deepfishing.errors import DatasetError
from deepfishing.files import replacing


def is_plain_name(name: str) -> bool:
    """Whether a name from an untrusted file can be a file name without leaving its folder.

    >>> is_plain_name("2008_000002"), is_plain_name("../../etc/passwd")
    (True, False)
    """
    return name not in ("", ".", "..") and not any(c in name for c in "/\\\0")


def is_folder(path: Path) -> bool:
    """Whether a folder exists; also False where that cannot be found out."""
    return os.path.isdir(path)  # noqa: PTH112  # which never raises, whatever the name


def find_root(
    root: Path,
    marker: str,
    inside: Sequence[str],
    hint: str = "give the folder that its archives were unpacked into",
) -> Path:
    """The folder that has a file of the data set: the one given, or one of those inside it."""
    places = [root, *(root / name for name in inside)]
    for place in places:
        if os.path.exists(place / marker):  # noqa: PTH110  # which never raises
            return place
    looked = ", ".join(str(place / marker) for place in places)
    raise DatasetError(f"the data set was not found in {root}: none of {looked} exists; {hint}")


def names_in(folder: Path) -> list[str]:
    """All names in a folder: one listing instead of one question per file."""
    try:
        return [path.name for path in folder.iterdir()]
    except OSError as error:
        raise DatasetError(
            f"folder {folder} of the data set cannot be read: {error.strerror}; the data set is "
            "not complete, get it again"
        ) from None


def require_images(root: Path, ids: Sequence[str]) -> None:
    """Refuse a data set that lacks images; an id is a path below `root`."""
    folders = {id_.rpartition("/")[0] for id_ in ids}
    found = {f"{folder}/{name}" for folder in folders for name in names_in(root / folder)}
    missing = [id_ for id_ in ids if id_ not in found]
    if missing:
        raise DatasetError(
            f"every image of a list must have a file, got {len(missing)} of {len(ids)} without, "
            f"first {root / missing[0]}; the data set is not complete, get it again"
        )


def read_bytes(path: Path, most: int = -1) -> bytes:
    """The content of a file, or its first `most` bytes."""
    try:
        with path.open("rb") as file:
            return file.read(most)
    except OSError as error:
        raise DatasetError(f"{path} cannot be read: {error.strerror}; get it again") from None


def read_lines(path: Path) -> Iterator[tuple[str, str]]:
    """Each line of a text that is not blank, after its place in words, for errors."""
    raw = read_bytes(path).removeprefix(codecs.BOM_UTF8)
    for number, line in enumerate(raw.splitlines(), start=1):
        try:
            text = line.decode("utf-8")
        except UnicodeDecodeError:
            raise DatasetError(
                f"a list must be UTF-8, got {line[:60]!r} in {path}, line {number}"
            ) from None
        if text.strip():
            yield f"{text[:60]!r} in {path}, line {number}", text.strip()


def write_once(path: Path, content: bytes) -> Path:
    """Write a picture of a data set, unless it exists; one of another content is refused."""
    try:
        if not path.exists():
            path.parent.mkdir(parents=True, exist_ok=True)
            with replacing(path) as partial:
                partial.write_bytes(content)
        elif path.read_bytes() != content:
            raise DatasetError(
                f"{path} must be the picture of the data set, got another content; delete that "
                "file or choose another folder"
            )
    except OSError as error:
        raise DatasetError(f"{path} cannot be written: {error.strerror}") from None
    return path

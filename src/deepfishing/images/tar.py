"""Stage 1, images: images in a tar, as WebDataset lays them out.

Comes in: an uncompressed tar with `key.jpg` and, beside it, `key.cls` (a label) or `key.json` (an
object with `label` or `labels`). Goes out: items. Nothing is unpacked and no name in a tar is ever
used as a path; links, devices and sparse files are left out.
"""

from __future__ import annotations

import json
import tarfile
from pathlib import Path, PurePosixPath

from deepfishing.errors import DatasetError, one_line
from deepfishing.images.formats import EXTENSIONS
from deepfishing.images.item import Item, Member

COMPRESSED = (".tar.gz", ".tgz", ".tar.bz2", ".tar.xz", ".tar.zst")
MAX_LABEL_BYTES = 1 << 20

# what tarfile raises for damaged or hostile headers
_DAMAGED = (
    *(tarfile.TarError, OSError, EOFError, ValueError, ArithmeticError, LookupError),
    MemoryError,  # a header that claims to be huge
)


def is_tar(path: Path) -> bool:
    """Whether a name is that of a tar, compressed or not."""
    return path.name.lower().endswith((".tar", *COMPRESSED))


def read_tar(path: Path) -> list[Item]:
    """The images of a tar in its order; an id is the tar's name and the member's.

    Examples
    --------
    >>> read_tar(Path("photos.tar.gz"))
    Traceback (most recent call last):
    deepfishing.errors.DatasetError: a tar must not be compressed, for its images are read in any
        order, got photos.tar.gz; decompress it first
    """
    if path.name.lower().endswith(COMPRESSED):
        raise DatasetError(
            "a tar must not be compressed, for its images are read in any order, "
            f"got {path}; decompress it first"
        )
    images: dict[str, Member] = {}
    labels: dict[str, tuple[str, ...] | None] = {}
    try:
        with tarfile.open(path, mode="r:", errors="strict") as tar:
            for info in tar:
                name = PurePosixPath(info.name)
                suffix = name.suffix.lower()
                if info.size < 0:  # tarfile would go backwards, for ever
                    raise tarfile.ReadError(f"{info.name!r} has a size of {info.size}")
                if not info.isreg() or info.issparse() or name.name.startswith("."):
                    continue
                if suffix in EXTENSIONS:
                    # a second member of a name replaces the first, as when it is unpacked
                    images[info.name] = Member(info.name, info.offset_data, info.size)
                elif suffix in (".json", ".cls") and info.size <= MAX_LABEL_BYTES:
                    file = tar.extractfile(info)  # reads; does not extract
                    labels[_key(info.name)] = _labels(info.name, file.read() if file else b"")
    except _DAMAGED as error:
        raise DatasetError(
            f"tar cannot be read: {path} ({one_line(error)}); get it again"
        ) from None
    if not images:
        raise DatasetError(f"a tar of images must hold one, got none in {path}")
    return [
        Item(f"{path.name}/{name}", path, labels.get(_key(name)), member)
        for name, member in images.items()
    ]


def _key(name: str) -> str:
    """What the members of one sample share: all before the first dot of the file's name."""
    path = PurePosixPath(name)
    return str(path.with_name(path.name.partition(".")[0] or path.name))


def _labels(name: str, content: bytes) -> tuple[str, ...] | None:
    """Labels of a sample; a JSON file that says nothing of labels is none of our business."""
    try:
        text = content.decode("utf-8")
        if name.lower().endswith(".cls"):
            return (text.strip(),) if text.strip() else None
        facts = json.loads(text)
    except (ValueError, RecursionError):
        raise tarfile.ReadError(f"labels must be UTF-8 text or JSON, got {name!r}") from None
    found = facts.get("labels", facts.get("label")) if isinstance(facts, dict) else None
    if found is None:
        return None
    return tuple(str(label) for label in (found if isinstance(found, list) else [found]))

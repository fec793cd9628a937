"""Images inside another file: members of a tar, frames of a video.

A tar is uncompressed and has the layout of WebDataset, `key.jpg` and beside it `key.cls` (a label)
or `key.json` (an object with `label` or `labels`), or a folder per class. Videos need the extra
`video`. Nothing is unpacked, and no name in a tar is ever used as a path.
"""

from __future__ import annotations

import json
import math
import tarfile
from pathlib import Path, PurePath, PurePosixPath

from deepfishing.errors import DatasetError, OptionError, need, reraise_as
from deepfishing.images.folder import folder_classes
from deepfishing.images.item import Frame, Item, Member, as_labels
from deepfishing.images.preprocess import EXTENSIONS

COMPRESSED = (".tar.gz", ".tgz", ".tar.bz2", ".tar.xz", ".tar.zst")
VIDEOS = (".mp4", ".mov", ".m4v", ".mkv", ".webm", ".avi", ".mpg", ".mpeg")
MAX_LABEL_BYTES = 1 << 20


def holds_images(path: PurePath) -> bool:
    """Whether a name is that of a tar, compressed or not, or of a video."""
    return path.name.lower().endswith((".tar", *COMPRESSED, *VIDEOS))


def read_inside(path: Path, every: float = 1.0) -> list[Item]:
    """Return the images inside a tar or a video; an id is the file's name and the image's."""
    if path.suffix.lower() in VIDEOS:
        return read_video(path, every)
    return read_tar(path)


def read_tar(path: Path) -> list[Item]:
    """Return the images of a tar in its order."""
    if path.name.lower().endswith(COMPRESSED):
        raise DatasetError(
            "a tar must not be compressed, for its images are read in any order, "
            f"got {path}; unpack it and give the folder"
        )
    images: dict[str, Member] = {}
    labels: dict[str, tuple[str, ...] | None] = {}
    # damaged or hostile headers make tarfile raise almost anything
    damaged = reraise_as(DatasetError, f"tar cannot be read: {path}", "; get it again")
    with damaged, tarfile.open(path, mode="r:", errors="strict") as tar:
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
                content = b""
                if file is not None:
                    content = file.read()
                labels[_key(info.name)] = _labels(info.name, content)
    if not images:
        raise DatasetError(f"a tar of images must hold one, got none in {path}")
    classes = _class_folders(list(images))
    items = []
    for member, class_name in zip(images.values(), classes, strict=True):
        of_image: tuple[str, ...] | None = None
        if labels:
            of_image = labels.get(_key(member.name))
        elif class_name is not None:
            of_image = (class_name,)
        items.append(Item(f"{path.name}/{member.name}", path, of_image, member))
    return items


def _class_folders(names: list[str]) -> list[str | None]:
    """Return the class folder of each member; a single folder around all of them is none.

    >>> _class_folders(["./photos/cat/1.jpg", "./photos/dog/2.jpg"])
    ['cat', 'dog']
    """
    paths = [PurePosixPath(name).parts for name in names]
    while min(map(len, paths)) > 2:
        outermost = {path[0] for path in paths}
        if len(outermost) > 1:
            break
        paths = [path[1:] for path in paths]
    return folder_classes(["/".join(path) for path in paths])


def _key(name: str) -> str:
    """Return the key of a sample: everything before the first dot of the file's name."""
    path = PurePosixPath(name)
    return str(path.with_name(path.name.partition(".")[0] or path.name))


def _labels(name: str, content: bytes) -> tuple[str, ...] | None:
    """Return the labels of a sample; None if a JSON file has none."""
    try:
        text = content.decode("utf-8")
        if name.lower().endswith(".cls"):
            return as_labels(text.strip())
        facts = json.loads(text)
    except (ValueError, RecursionError):
        raise tarfile.ReadError(
            f"labels must be UTF-8 text or JSON, got {name!r}"
        ) from None
    if not isinstance(facts, dict):
        return None
    return as_labels(facts.get("labels", facts.get("label")))


def read_video(path: Path, every: float) -> list[Item]:
    """Yield one frame per `every` seconds, or all for 0; names are the times, `t=12.5`."""
    if not every >= 0:
        raise OptionError(
            f"every must be a number of seconds, 0 for all frames, got {every}"
        )
    av = need("av", "video")
    with (
        reraise_as(DatasetError, f"video cannot be read: {path}"),
        av.open(str(path)) as file,
    ):
        stream = file.streams.video[0]
        second = 1 / float(stream.time_base)
        times = sorted({packet.pts for packet in file.demux(stream)} - {None})
    items = []
    next_time = 0.0
    for pts in times:
        time = (pts - times[0]) / second
        if time + 1e-6 < next_time:
            continue
        name = f"t={time:.3f}".rstrip("0").rstrip(".")
        items.append(Item(f"{path.name}/{name}", path, member=Frame(name, pts)))
        if every:
            next_time = (math.floor(time / every + 1e-6) + 1) * every
    if not items:
        raise DatasetError(f"a video must have frames, got none in {path}")
    return items

"""List of the images of a source, with stable ids, and the way back to their bytes.

A source is a folder, a data set in VOC layout, an image, a pattern, a list, a table, a tar, a
video, `-` for a list on standard input, or the URL of a folder, a pattern, a list or an image. The
order of the images does not depend on the machine. `find_again` reads the bytes of a row of a store
from any folder: its relative path began where `deepfish extract` ran, often the folder above the
store.
"""

from __future__ import annotations

import codecs
import contextlib
import glob
import hashlib
import os
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from functools import lru_cache
from pathlib import Path, PurePosixPath

from deepfishing.errors import (
    DatasetError,
    MissingDependencyError,
    did_you_mean,
    reraise_as,
)
from deepfishing.images.folder import (
    folder_classes,
    image_ids,
    is_folder,
    passed_over,
    require_utf8,
)
from deepfishing.images.inside import holds_images, read_inside
from deepfishing.images.item import (
    Item,
    RemoteFile,
    as_text,
    is_url,
    item_at,
    list_files,
    located,
)
from deepfishing.images.preprocess import EXTENSIONS, Openable
from deepfishing.images.tables import TABLES, read_table
from deepfishing.images.voc import labels_by_id, voc_layout

STDIN = "-"
ARCHIVES = (".zip", ".7z", ".rar", ".gz", ".xz", ".bz2", ".zst")
MAX_FILE = 1 << 28  # bytes; a larger file is not read again


def find_images(
    source: str | Path, *, every: float = 1.0, albums: bool = False
) -> list[Item]:
    """Return the images of a source, each id once.

    Parameters
    ----------
    source : path, pattern, URL or "-"
        a folder : all images in it and below, by their extension, without hidden ones; links are
        followed; an id is the path below it, the label the sub-folder (`cat` in `train/cat`)
        a folder in VOC layout, or a VOCdevkit with one year : ids and labels of the data set
        a pattern such as `photos/**/*.jpg` : ids are paths below the folder before the first
        wildcard; tars and videos that match give their images
        a `.txt` list, or `-` for standard input : a path per line, which is the id, relative to the
        list's folder
        a table, `.csv`, `.tsv` or `.parquet` : see `tables`
        a `.tar`, or a video such as `.mp4` : see `inside`
        any other file : one image; its name
        a URL such as `s3://bucket/photos` : as the folder, pattern, list or image that it names,
        read through fsspec; lists may have URLs, too
    every : float
        Seconds between the frames of a video that are taken; 0 for all.
    albums : bool
        Whether folders are albums, not classes, so that their names are no labels.

    Examples
    --------
    >>> find_images("no/such/folder")
    Traceback (most recent call last):
    deepfishing.errors.DatasetError: images must be a folder, an image, a pattern, a .txt list, a
        .csv, .tsv or .parquet table, a .tar, a video or -, got no/such/folder, which does not exist
    """
    by_id: dict[str, Item] = {}
    for item in _find(str(source), every, albums):
        first = by_id.setdefault(item.id, item)
        if first is not item and first != item:
            raise DatasetError(
                f"ids of images must be unique, got {item.id!r} for {first} and {item} in {source}"
            )
    require_utf8(by_id, source)
    if not by_id:
        raise DatasetError(f"a list must name at least one image, got none in {source}")
    return list(by_id.values())


def find_all_images(sources: Sequence[str | Path], *, every: float = 1.0) -> list[Item]:
    """Return the images of several sources; ids are then paths, so that they differ.

    An image that is found twice is given once.
    """
    if len(sources) == 1:
        return find_images(sources[0], every=every)
    by_path: dict[str, Item] = {}
    for source in sources:
        for item in find_images(source, every=every):
            by_path.setdefault(str(item), replace(item, id=as_text(str(item))))
    return list(by_path.values())


def passed_over_in(source: str | Path) -> Counter[str]:
    """Count the files of a folder that are not images, by their extension.

    Only a folder is searched for images. A store and a folder in VOC layout have other files, too.
    """
    path = Path(source)
    if not is_photo_folder(source) or (path / "store.json").is_file():
        return Counter()
    return passed_over(path)


def is_photo_folder(source: str | Path) -> bool:
    """Whether a source is a folder of files, whose labels are the names of its folders."""
    path = Path(source)
    return not is_url(str(source)) and is_folder(path) and voc_layout(path) is None


def _find(source: str, every: float, albums: bool) -> list[Item]:
    if source == STDIN:
        return _in_list(None, Path())
    if is_url(source):
        return _at_url(source, every, albums)
    path = Path(source)
    if is_folder(path):
        layout = voc_layout(path)
        if layout is not None:
            return _in_voc_layout(layout)
        names = image_ids(path, path)
        unlabelled = (Item(as_text(name), path / name) for name in names)
        return _in_class_folders(unlabelled, albums)
    if _is_file(path):
        return _in_file(path, path.name, every)
    if glob.has_magic(source):
        return _matching(source, every, albums)
    raise DatasetError(
        "images must be a folder, an image, a pattern, a .txt list, a .csv, .tsv or .parquet "
        f"table, a .tar, a video or -, got {path}, which {_problem(path)}"
    )


def _in_voc_layout(layout: Path) -> list[Item]:
    """Return the images of a data set in VOC layout, with its ids and labels."""
    pictures = layout / "JPEGImages"
    labels = labels_by_id(layout)
    items = []
    for name in image_ids(pictures, pictures):
        id_ = Path(name).with_suffix("").as_posix()
        items.append(Item(as_text(id_), pictures / name, labels.get(id_)))
    return items


def _is_file(path: Path) -> bool:
    return os.path.isfile(path)  # noqa: PTH113  # which never raises, whatever the name


def _problem(path: Path) -> str:
    """Return why a path is neither a file nor a folder, with a similar name beside it."""
    beside: list[str] = []
    try:
        beside += [entry.name for entry in path.parent.iterdir()]
        path.stat()
    except PermissionError as error:
        return f"cannot be read ({error.strerror})"
    except (OSError, ValueError):
        pass
    return f"does not exist{did_you_mean(path.name, beside)}"


def _in_file(file: Path | RemoteFile, name: str, every: float) -> list[Item]:
    """Return the images that a file holds or lists, or else the file itself."""
    ending = PurePosixPath(name).suffix.lower()
    if ending in TABLES or holds_images(PurePosixPath(name)):
        if isinstance(file, RemoteFile):
            raise DatasetError(
                f"a table, tar or video must be a local file, got {file}; download it first"
            )
        if ending in TABLES:
            return read_table(file)
        return read_inside(file, every)
    if ending in ARCHIVES:
        raise DatasetError(
            f"of archives only a .tar is read, got {file}; unpack it, give the folder"
        )
    if ending != ".txt":
        return [Item(as_text(name), file)]
    if isinstance(file, Path):
        return _in_list(file, file.parent)
    return _in_list(file, file.url.removesuffix(name))


def _in_list(file: Path | RemoteFile | None, folder: Path | str) -> list[Item]:
    """Return the images of a list, by default on standard input."""
    source = file or "standard input"
    broken = (OSError, UnicodeDecodeError)
    with reraise_as(
        DatasetError, f"list of images cannot be read: {source}", of=broken
    ):
        if file is None:
            raw = sys.stdin.buffer.read()
        else:
            with file.open("rb") as opened:
                raw = opened.read()
        raw = raw.removeprefix(codecs.BOM_UTF8)
        # Bytes are split, since text would also be split at signs that a name may have, such as
        # U+2028. `find -print0` separates names, which may have line breaks, by zero bytes.
        if b"\0" in raw:
            lines = raw.split(b"\0")
        else:
            lines = [line.strip() for line in raw.splitlines()]
        names = [line.decode("utf-8") for line in lines]
    return [item_at(folder, name, name) for name in names if name]


def _at_url(url: str, every: float, albums: bool) -> list[Item]:
    files = list_files(url)
    if files is None:
        return _in_file(RemoteFile(url), PurePosixPath(url).name, every)
    if not glob.has_magic(url):
        for name in list(files):
            if PurePosixPath(name).suffix.lower() not in EXTENSIONS:
                del files[name]
    if not files:
        raise DatasetError(f"a folder or pattern must hold an image, got none in {url}")
    unlabelled = (Item(name, file) for name, file in files.items())
    return _in_class_folders(unlabelled, albums)


def _matching(pattern: str, every: float, albums: bool) -> list[Item]:
    parts = Path(pattern).parts
    fixed = next(n for n, part in enumerate(parts) if glob.has_magic(part))
    folder = Path(*parts[:fixed])
    broken = (ValueError, OSError)
    with reraise_as(DatasetError, f"pattern cannot be used: {pattern}", of=broken):
        paths = sorted(folder.glob("/".join(parts[fixed:])))
    files = {}
    for path in paths:
        name = path.relative_to(folder)
        is_hidden = any(part.startswith(".") for part in name.parts)
        if not is_hidden and _is_file(path):
            files[name.as_posix()] = path
    if not files:
        raise DatasetError(f"a pattern must match a file, got none for {pattern}")
    if not any(map(holds_images, files.values())):
        unlabelled = (Item(as_text(name), path) for name, path in files.items())
        return _in_class_folders(unlabelled, albums)
    items: list[Item] = []
    for id_, path in files.items():
        if holds_images(path):
            items += read_inside(path, every)
        else:
            items.append(Item(as_text(id_), path))
    return items


def _in_class_folders(items: Iterable[Item], albums: bool) -> list[Item]:
    """Return the items with the names of their folders as labels, unless they are albums.

    A single folder cannot separate classes: it is an album.
    """
    unlabelled = list(items)
    classes = folder_classes([item.id for item in unlabelled])
    if albums or len(set(classes) - {None}) < 2:
        return unlabelled
    labelled = []
    for item, name in zip(unlabelled, classes, strict=True):
        if name is not None:
            item = replace(item, labels=(name,))
        labelled.append(item)
    return labelled


def find_again(
    folder: Path, path: str, sha256: str
) -> tuple[Openable, bytes] | tuple[None, None]:
    """Return file and content of an image by its hash and its path when the store was made."""
    for place in _places(folder.absolute(), path):
        with contextlib.suppress(OSError, ValueError, MissingDependencyError):
            # no permission, a name too long or with a zero in it, no such server
            if isinstance(place, Path) and not _is_small_file(place):
                continue
            with place.open("rb") as file:
                content = file.read(MAX_FILE)
            if content and hashlib.sha256(content).hexdigest() == sha256:
                return place, content
    return None, None


def _is_small_file(path: Path) -> bool:
    """Whether it is a file to read: not huge, and not one that may never end, such as a pipe."""
    return path.is_file() and 0 < path.stat().st_size <= MAX_FILE


def _places(folder: Path, path: str) -> Iterator[Openable]:
    """Yield the possible places of an image, the likeliest first."""
    if is_url(path):
        yield located(folder, path)
        return
    for start in (Path(), folder, *folder.parents):
        place = start / path
        yield place
        for parent in place.parents:
            # `photos.tar/a.jpg` is a member, `clip.mp4/t=3` a frame
            if holds_images(parent) and parent.is_file():
                item = _inside(parent).get(str(place))
                if item is not None:
                    yield item
        if Path(path).is_absolute():
            return


@lru_cache(maxsize=16)
def _inside(container: Path) -> dict[str, Item]:
    """Return the images inside a tar or a video by their paths; none if it cannot be read."""
    try:
        return {str(item): item for item in read_inside(container, every=0)}
    except (DatasetError, MissingDependencyError):
        return {}

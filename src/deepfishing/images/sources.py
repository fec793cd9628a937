"""Stage 1, images: from what a user points at to a list of images with stable ids.

Comes in: a folder, a data set in VOC layout, an image, a pattern, a list, a table, a tar, `-` for a
list on standard input, or the URL of a folder, a pattern, a list or an image. Goes out: items, in
an order that does not depend on the machine.
"""

from __future__ import annotations

import glob
import sys
from collections import Counter
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path, PurePosixPath

from deepfishing.errors import DatasetError, did_you_mean
from deepfishing.images import voc
from deepfishing.images.dataset import is_folder
from deepfishing.images.folder import folder_classes, image_ids, passed_over
from deepfishing.images.formats import EXTENSIONS
from deepfishing.images.item import Item, as_text, located
from deepfishing.images.remote import RemoteFile, is_url, list_files
from deepfishing.images.tables import TABLES, read_table
from deepfishing.images.tar import is_tar, read_tar
from deepfishing.images.video import is_video, read_video

STDIN = "-"


def find_images(source: str | Path, *, every: float = 1.0) -> list[Item]:
    """The images that `source` stands for, each id once.

    Parameters
    ----------
    source : path, pattern or "-"
        What it is decides what an id is:

        a folder : searched with all its sub-folders for files with an image's extension, hidden
        ones left out and links to folders not followed; the id is the path below the folder, where
        bytes that are not UTF-8 are escaped. An image in a sub-folder has its name as a label; in
        `train/cat` and `test/cat` that is `cat`.
        a folder in VOC layout, or a VOCdevkit with one year : the ids of the data set, with their
        labels (classes that are present and not difficult).
        a pattern such as `photos/**/*.jpg` : the path below the folder before the first wildcard;
        tars that match give their images.
        a `.txt` list, one path a line : the line; paths are relative to the list's folder.
        `-` : the same from standard input, relative to the current folder.
        `.csv`, `.tsv`, `.parquet` : see `tables`.
        `.tar` : see `tar`.
        `.mp4`, `.mov`, `.mkv`... : frames of a video, see `video`.
        any other file : one image; its name.
        a URL such as `s3://bucket/photos` : as the folder, pattern, list or image that it names,
        read through fsspec. Lists may have URLs, too.
    every : float
        Of a video the first frame of every so many seconds; 0 for all.

    Examples
    --------
    >>> find_images("no/such/folder")
    Traceback (most recent call last):
    deepfishing.errors.DatasetError: images must be a folder, an image, a pattern, a .txt list, a
        .csv, .tsv or .parquet table, a .tar, a video or -, got no/such/folder, which does not exist
    """
    items = _find(str(source), every)
    by_id: dict[str, Item] = {}
    for item in items:
        known = by_id.setdefault(item.id, item)
        if known is not item and known != item:
            raise DatasetError(
                f"ids of images must be unique, got {item.id!r} for {known} and {item} in {source}"
            )
    try:
        "\n".join(by_id).encode()
    except UnicodeEncodeError as error:  # stores and pages have ids as UTF-8
        near = error.object[max(error.start - 30, 0) : error.end]
        raise DatasetError(f"file names must be UTF-8, got ...{near!r} in {source}") from None
    if not by_id:
        raise DatasetError(f"a list must name at least one image, got none in {source}")
    return list(by_id.values())


def passed_over_in(source: str | Path) -> Counter[str]:
    """How many files that are no images a folder of images holds, by how they end.

    Only a folder is searched for images. A store, or one in VOC layout, has files of its own.
    """
    path = Path(source)
    searched = not is_url(str(source)) and is_folder(path) and voc_layout(path) is None
    searched = searched and not (path / "store.json").is_file()
    return passed_over(path) if searched else Counter()


def _find(source: str, every: float) -> list[Item]:
    if source == STDIN:
        return _listed(sys.stdin.buffer.read(), Path(), "standard input")
    if is_url(source):
        return _behind(source)
    path = Path(source)
    if is_folder(path):
        layout = voc_layout(path)
        if layout is not None:
            return _voc_items(layout)
        return _in_class_folders(Item(as_text(name), path / name) for name in image_ids(path, path))
    if not _is_file(path):
        if glob.has_magic(source):
            return _matching(source, every)
        raise DatasetError(
            "images must be a folder, an image, a pattern, a .txt list, a .csv, .tsv or .parquet "
            f"table, a .tar, a video or -, got {path}, which {_problem(path)}"
        )
    return _in_file(path, path.name, every)


def _in_file(path: Path, id_: str, every: float) -> list[Item]:
    if is_tar(path) or is_video(path):
        return read_tar(path) if is_tar(path) else read_video(path, every)
    if path.suffix.lower() in TABLES:
        return read_table(path)
    if path.suffix.lower() != ".txt":
        return [Item(as_text(id_), path)]
    try:
        return _listed(path.read_bytes(), path.parent, str(path))
    except OSError as error:
        raise DatasetError(f"list of images cannot be read: {path} ({error.strerror})") from None


def _problem(path: Path) -> str:
    """Why a path is neither a file nor a folder, and which of its neighbours may be meant."""
    try:
        path.stat()
    except PermissionError as error:
        return f"cannot be read ({error.strerror})"
    except (OSError, ValueError):
        pass
    try:
        beside = [entry.name for entry in path.parent.iterdir()]
    except (OSError, ValueError):
        beside = []
    return f"does not exist{did_you_mean(path.name, beside)}"


def _is_file(path: Path) -> bool:
    try:
        return path.is_file()
    except (OSError, ValueError):  # a name too long, or with a zero byte
        return False


def _listed(content: bytes, folder: Path, source: str) -> list[Item]:
    try:
        lines = content.decode("utf-8-sig").splitlines()
    except UnicodeDecodeError as error:
        raise DatasetError(f"list of images cannot be read: {source} ({error})") from None
    return [Item(name, located(folder, name)) for name in map(str.strip, lines) if name]


def _behind(url: str) -> list[Item]:
    files = list_files(url)
    if files is None:
        return _in_remote_file(RemoteFile(url), PurePosixPath(url))
    if not glob.has_magic(url):
        files = {n: file for n, file in files.items() if _suffix(n) in EXTENSIONS}
    if not files:
        raise DatasetError(f"a folder or pattern must hold an image, got none in {url}")
    return _in_class_folders(Item(name, file) for name, file in files.items())


def _in_remote_file(file: RemoteFile, path: PurePosixPath) -> list[Item]:
    if path.suffix.lower() in (*TABLES, ".tar"):
        raise DatasetError(f"a table or tar must be a local file, got {file}; download it first")
    if path.suffix.lower() != ".txt":
        return [Item(path.name, file)]
    try:
        items = _listed(file.open().read(), Path(), str(file))
    except OSError as error:
        raise DatasetError(f"list of images cannot be read: {file} ({error})") from None
    near = str(file).removesuffix(path.name)  # names are relative to the list's folder
    return [
        item if isinstance(item.path, RemoteFile) else Item(item.id, RemoteFile(near + item.id))
        for item in items
    ]


def _suffix(name: str) -> str:
    return PurePosixPath(name).suffix.lower()


def _matching(pattern: str, every: float) -> list[Item]:
    parts = Path(pattern).parts
    fixed = next(n for n, part in enumerate(parts) if glob.has_magic(part))
    folder = Path(*parts[:fixed])
    try:
        found = sorted(folder.glob("/".join(parts[fixed:])))
    except (ValueError, OSError) as error:
        raise DatasetError(f"pattern cannot be used: {pattern} ({error})") from None
    files = [path for path in found if _is_file(path) and not _is_hidden(path, folder)]
    if not files:
        raise DatasetError(f"a pattern must match a file, got none for {pattern}")
    items: list[Item] = []
    holders = [path for path in files if is_tar(path) or is_video(path)]
    for path in files:
        name = path.relative_to(folder).as_posix()
        items += _in_file(path, name, every) if path in holders else [Item(as_text(name), path)]
    return items if holders else _in_class_folders(items)


def _in_class_folders(items: Iterable[Item]) -> list[Item]:
    """The same with the names of their folders as labels."""
    found = list(items)
    classes = folder_classes([item.id for item in found])
    return [
        item if name is None else replace(item, labels=(name,))
        for item, name in zip(found, classes, strict=True)
    ]


def _is_hidden(path: Path, folder: Path) -> bool:
    return any(part.startswith(".") for part in path.relative_to(folder).parts)


def voc_layout(folder: Path) -> Path | None:
    """The folder in VOC layout that a folder is or holds, if any."""

    def fits(place: Path) -> bool:
        return is_folder(place / "JPEGImages") and is_folder(place / "ImageSets" / "Main")

    if fits(folder):
        return folder
    found = sorted(p for year in ("VOC20*", "VOCdevkit/VOC20*") for p in folder.glob(year))
    found = [place for place in found if fits(place)]
    if len(found) > 1:
        raise DatasetError(
            f"images must be one data set, got {len(found)} in {folder}; give one of them: "
            f"{', '.join(map(str, found))}"
        )
    return found[0] if found else None


def _voc_items(folder: Path) -> list[Item]:
    pictures = folder / "JPEGImages"
    names = image_ids(pictures, pictures)
    labels = _voc_labels(folder)
    ids = [Path(name).with_suffix("").as_posix() for name in names]
    return [Item(as_text(i), pictures / n, labels.get(i)) for i, n in zip(ids, names, strict=True)]


def _voc_labels(folder: Path) -> dict[str, tuple[str, ...]]:
    """Classes of each image that is in a labelled split; difficult ones are not counted."""
    found: dict[str, tuple[str, ...]] = {}
    splits = voc.split_names(folder, "")
    for split in sorted(splits, key=lambda name: (name != "trainval", name)):
        ids = voc.read_split(folder, split)
        if found.keys() >= set(ids):
            continue  # train and val, once trainval is known
        classes = _voc_classes(folder, split, ids)
        labels = voc.read_labels(folder, split, ids, classes) if classes else None
        if labels is not None:
            present = ([c for c, y in zip(classes, row, strict=True) if y == 1] for row in labels)
            found.update(zip(ids, map(tuple, present), strict=True))
    return found


def _voc_classes(folder: Path, split: str, ids: Iterable[str]) -> tuple[str, ...]:
    try:
        return voc.find_classes(folder, split, tuple(ids))
    except DatasetError:
        return ()  # a split without labels, such as VOC2012's test

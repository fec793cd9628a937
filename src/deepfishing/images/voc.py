"""Stage 1, images: read PASCAL VOC, and any data set in its layout.

Comes in: a folder with `JPEGImages/<id>.jpg`, `ImageSets/Main/<split>.txt` (one id a line)
and the labels, either as class lists `ImageSets/Main/<class>_<split>.txt` ("000005 -1") or as
`Annotations/<id>.xml`. Goes out: a `Dataset`. The files are untrusted: whatever is wrong in
them is a `DatasetError` that names the file, the line and what stands there.
"""

from __future__ import annotations

import codecs
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from defusedxml.ElementTree import ParseError, fromstring

from deepfishing.errors import DatasetError, OptionError, did_you_mean, one_line
from deepfishing.images.dataset import Dataset, Split, is_folder, is_plain_name
from deepfishing.metrics import official_ap

CLASSES = (
    *("aeroplane", "bicycle", "bird", "boat", "bottle", "bus", "car", "cat", "chair", "cow"),
    *("diningtable", "dog", "horse", "motorbike", "person", "pottedplant", "sheep", "sofa"),
    *("train", "tvmonitor"),
)

Labels = np.ndarray[Any, np.dtype[np.int8]]

_VALUES = {"1": 1, "+1": 1, "0": 0, "-1": -1}


def read_voc(
    root: str | Path, year: int = 2007, train: str = "trainval", test: str = "test"
) -> Dataset:
    """Read PASCAL VOC of a year, with its 20 classes in the official order.

    Parameters
    ----------
    root : path
        The VOCdevkit folder, its `VOC<year>` folder, or the folder above VOCdevkit.
    year : int
        2007 to 2012: the years that share the 20 classes.
    train, test : str
        Names of splits. The test split may be without labels (VOC2012), the train split not.

    Returns
    -------
    dataset : Dataset
        Named "voc<year>".
    """
    if year not in range(2007, 2013):
        raise OptionError(f"year of PASCAL VOC must be 2007 to 2012, got {year!r}")
    folder = _find(Path(root), f"VOC{year}")
    return read_voc_layout(folder, f"voc{year}", CLASSES, train, test)


def read_voc_layout(
    folder: str | Path,
    name: str,
    classes: Sequence[str] | None = None,
    train: str = "trainval",
    test: str = "test",
) -> Dataset:
    """Read any data set in VOC layout.

    Labels come from the class lists. Where a split has none of them they come from the
    annotations: 1 if an image has an object of the class that is not difficult, 0 if it has
    only difficult ones, -1 otherwise. A test split without class lists, of which some image
    has no annotation, is returned without labels.

    Parameters
    ----------
    folder : path
        Holds JPEGImages and ImageSets/Main.
    name : str
        Name of the data set, which also says its definition of AP (`metrics.official_ap`).
    classes : sequence of str, optional
        By default those of the train split's class lists, or else of its annotations, sorted.
    train, test : str
        Names of splits.
    """
    folder = Path(folder)
    images = set(_names(folder / "JPEGImages"))
    train_ids = read_split(folder, train)
    test_ids = read_split(folder, test)
    found = tuple(classes) if classes is not None else find_classes(folder, train, train_ids)
    train_labels = read_labels(folder, train, train_ids, found)
    if train_labels is None:
        raise DatasetError(
            f"no labels for split {train}: expected class lists such as "
            f"{_list_path(folder, f'{found[0]}_{train}')}, or {folder / 'Annotations'} with "
            "one XML file per image"
        )
    test_labels = read_labels(folder, test, test_ids, found)
    return Dataset(
        name=name,
        classes=found,
        train=_split(folder, train, train_ids, images, train_labels),
        test=_split(folder, test, test_ids, images, test_labels),
        official_ap=official_ap(name),
    )


def _find(root: Path, voc: str) -> Path:
    """The folder of one year, from any of the three folders that users give."""
    places = [root / voc, root / "VOCdevkit" / voc]
    given = root.resolve().name
    if given == voc or not given.upper().startswith("VOC20"):  # not another year's folder
        places.insert(0, root)
    for place in places:
        if is_folder(place / "ImageSets" / "Main"):
            return place
    looked = ", ".join(str(place / "ImageSets" / "Main") for place in places)
    raise DatasetError(
        f"{voc} not found from {root}: looked for {looked}; give the VOCdevkit folder"
    )


def _names(folder: Path) -> list[str]:
    """All names in a folder: one listing instead of one question per file."""
    try:
        return [path.name for path in folder.iterdir()]
    except OSError as error:
        raise DatasetError(
            f"folder {folder} of the data set cannot be read: {error.strerror}; "
            "a data set in VOC layout has JPEGImages and ImageSets/Main"
        ) from None


def _list_path(folder: Path, stem: str) -> Path:
    return folder / "ImageSets" / "Main" / f"{stem}.txt"


def _stems(folder: Path) -> list[str]:
    """Names of all lists, splits and classes alike."""
    names = _names(folder / "ImageSets" / "Main")
    return sorted(name.removesuffix(".txt") for name in names if name.endswith(".txt"))


def split_names(folder: Path, wanted: str) -> list[str]:
    """Names of the splits: lists whose name is not `<class>_<a list, or the wanted one>`.

    So `train.txt` is a split, and `train_train.txt` is the class `train` in it.
    """
    stems = _stems(folder)
    lists = {*stems, wanted}

    def is_class_list(stem: str) -> bool:
        cuts = (place for place, letter in enumerate(stem) if letter == "_")
        return any(stem[cut + 1 :] in lists for cut in cuts)

    return [stem for stem in stems if not is_class_list(stem)]


def _lines(path: Path) -> Iterator[tuple[str, list[str]]]:
    """Place ("file:line: content", for errors) and fields of each line that is not blank."""
    try:
        raw = path.read_bytes().removeprefix(codecs.BOM_UTF8)
    except OSError as error:
        raise DatasetError(f"list {path} cannot be read: {error.strerror}") from None
    for number, line in enumerate(raw.splitlines(), start=1):
        try:
            text = line.decode("utf-8")
        except UnicodeDecodeError:
            raise DatasetError(
                f"a list must be UTF-8, got {line[:60]!r} in {path}, line {number}"
            ) from None
        fields = text.split()
        if fields:
            yield f"{text[:60]!r} in {path}, line {number}", fields


def read_split(folder: Path, split: str) -> tuple[str, ...]:
    """Image ids of a split, as its list names them."""
    splits = split_names(folder, split)
    if split not in splits:
        raise DatasetError(
            f"split must be one of {splits}, got {split!r}: no {_list_path(folder, split)}"
            + did_you_mean(split, splits)
        )
    path = _list_path(folder, split)
    ids: dict[str, None] = {}
    for place, fields in _lines(path):
        image_id = fields[0]
        if len(fields) != 1:
            raise DatasetError(f"a line of a split must be one image id, got {place}")
        if not is_plain_name(image_id):
            raise DatasetError(f"an image id must be a plain file name, got {place}")
        if image_id in ids:
            raise DatasetError(f"image ids must be unique, got a second {place}")
        ids[image_id] = None
    if not ids:
        raise DatasetError(f"a split must list at least one image, got none in {path}")
    return tuple(ids)


def _split(
    folder: Path, name: str, ids: tuple[str, ...], images: set[str], labels: Labels | None
) -> Split:
    missing = [image_id for image_id in ids if f"{image_id}.jpg" not in images]
    if missing:
        raise DatasetError(
            f"every id of split {name} must have an image, got {len(missing)} of {len(ids)} "
            f"without, first {folder / 'JPEGImages' / (missing[0] + '.jpg')}; "
            "the data set is not complete, get it again"
        )
    paths = tuple(folder / "JPEGImages" / f"{image_id}.jpg" for image_id in ids)
    return Split(name, ids, paths, labels)


def find_classes(folder: Path, split: str, ids: tuple[str, ...]) -> tuple[str, ...]:
    """Classes of a split's class lists, else of its annotations."""
    ending = f"_{split}"
    found = [stem.removesuffix(ending) for stem in _stems(folder) if stem.endswith(ending)]
    if not found and _has_annotations(folder, ids):
        found = sorted({name for i in ids for name, _ in _objects(folder, i)})
    if not found:
        raise DatasetError(
            f"no classes for split {split}: expected class lists such as "
            f"{_list_path(folder, '<class>' + ending)}, or objects in {folder / 'Annotations'}"
        )
    return tuple(found)


def read_labels(
    folder: Path, split: str, ids: tuple[str, ...], classes: tuple[str, ...]
) -> Labels | None:
    """Labels (n, n_classes) from the class lists, else the annotations, else None."""
    stems = set(_stems(folder))
    missing = [c for c in classes if f"{c}_{split}" not in stems]
    if not missing:
        columns = [_read_class(_list_path(folder, f"{c}_{split}"), ids) for c in classes]
        return np.stack(columns, axis=1)
    if len(missing) < len(classes):
        raise DatasetError(
            f"every class must have a list for split {split}, got {len(missing)} of "
            f"{len(classes)} without, first {_list_path(folder, f'{missing[0]}_{split}')}"
        )
    return _read_annotations(folder, ids, classes) if _has_annotations(folder, ids) else None


def _read_class(path: Path, ids: tuple[str, ...]) -> Labels:
    rows = {image_id: row for row, image_id in enumerate(ids)}
    unset = 2
    labels = np.full(len(ids), unset, dtype=np.int8)
    for place, fields in _lines(path):
        if len(fields) != 2 or fields[1] not in _VALUES:
            raise DatasetError(f"a line must be an image id and 1, -1 or 0, got {place}")
        row = rows.get(fields[0])
        if row is None:
            raise DatasetError(f"a class list must only have ids of its split, got {place}")
        if labels[row] != unset:
            raise DatasetError(f"an image must have one line in a class list, got a second {place}")
        labels[row] = _VALUES[fields[1]]
    missing = np.flatnonzero(labels == unset)
    if len(missing):
        raise DatasetError(
            f"a class list must have a line for every id of its split, got {len(missing)} of "
            f"{len(ids)} without, first {ids[missing[0]]!r}, in {path}"
        )
    return labels


def _has_annotations(folder: Path, ids: tuple[str, ...]) -> bool:
    """Whether every image has its XML file."""
    annotations = folder / "Annotations"
    if not is_folder(annotations):
        return False
    return {f"{image_id}.xml" for image_id in ids} <= set(_names(annotations))


def _read_annotations(folder: Path, ids: tuple[str, ...], classes: tuple[str, ...]) -> Labels:
    columns = {c: column for column, c in enumerate(classes)}
    labels = np.full((len(ids), len(classes)), -1, dtype=np.int8)
    for row, image_id in enumerate(ids):
        for name, difficult in _objects(folder, image_id):
            if name not in columns:
                raise DatasetError(
                    f"an object must be one of {', '.join(classes)}, got {name!r} in "
                    f"{folder / 'Annotations' / image_id}.xml{did_you_mean(name, classes)}"
                )
            column = columns[name]
            labels[row, column] = max(labels[row, column], 0 if difficult else 1)
    return labels


def _objects(folder: Path, image_id: str) -> list[tuple[str, bool]]:
    """Class and difficulty of each object of an image, from its annotation."""
    path = folder / "Annotations" / f"{image_id}.xml"
    try:
        root = fromstring(path.read_bytes())
    except OSError as error:
        raise DatasetError(f"annotation {path} cannot be read: {error.strerror}") from None
    except (ParseError, ValueError, LookupError) as error:
        # damaged XML; forbidden XML (entity bombs) and odd encodings are ValueError, LookupError
        raise DatasetError(
            f"annotation must be plain XML, got {path} ({one_line(error)})"
        ) from None
    objects = []
    for node in root.iterfind("object"):
        name = (node.findtext("name") or "").strip()
        difficult = (node.findtext("difficult") or "0").strip()
        if not name or difficult not in ("0", "1"):
            raise DatasetError(
                "an object must have a name and difficult 0 or 1, "
                f"got {name!r} and {difficult!r} in {path}"
            )
        objects.append((name, difficult == "1"))
    return objects

"""PASCAL VOC and other data sets in its layout.

A folder has `JPEGImages/<id>.jpg`, `ImageSets/Main/<split>.txt` (one id per line) and the labels,
either as class lists `ImageSets/Main/<class>_<split>.txt` ("000005 -1") or as
`Annotations/<id>.xml`. For test splits without public labels the files for the evaluation server
are written.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from defusedxml.ElementTree import fromstring

from deepfishing.core.metrics import official_ap
from deepfishing.errors import (
    DatasetError,
    FeatureError,
    OptionError,
    check_choice,
    did_you_mean,
    reraise_as,
)
from deepfishing.images.dataset import Dataset, Split, is_plain_name
from deepfishing.images.folder import (
    is_folder,
    names_in,
    read_bytes,
    read_lines,
    require_images,
)
from deepfishing.util.files import replacing

CLASSES = (
    *(
        "aeroplane",
        "bicycle",
        "bird",
        "boat",
        "bottle",
        "bus",
        "car",
        "cat",
        "chair",
        "cow",
    ),
    *(
        "diningtable",
        "dog",
        "horse",
        "motorbike",
        "person",
        "pottedplant",
        "sheep",
        "sofa",
    ),
    *("train", "tvmonitor"),
)

# trained on the data set's own images only, or with other data, such as ImageNet for the network
COMPETITIONS = ("comp1", "comp2")

Labels = np.ndarray[Any, np.dtype[np.int8]]

_VALUES = {"1": 1, "+1": 1, "0": 0, "-1": -1}


# Ids of a split, its classes, and labels (n, C) of 1, -1 and 0, or None where it has none.
LabelledSplit = tuple[tuple[str, ...], tuple[str, ...], Labels | None]


def read_voc(
    root: str | Path, year: int = 2007, train: str = "trainval", test: str = "test"
) -> Dataset:
    """Read PASCAL VOC of a year, with its 20 classes in the official order, named "voc<year>".

    Parameters
    ----------
    root : path
        The VOCdevkit folder, its `VOC<year>` folder, or the folder above VOCdevkit.
    year : int
        2007 to 2012: the years that share the 20 classes.
    train, test : str
        Names of splits. The test split may be without labels (VOC2012), the train split not.
    """
    if year not in range(2007, 2013):
        raise OptionError(f"year of PASCAL VOC must be 2007 to 2012, got {year!r}")
    root, voc = Path(root), f"VOC{year}"
    places = [root / voc, root / "VOCdevkit" / voc]
    given = root.resolve().name
    if given == voc or not given.upper().startswith("VOC20"):
        # not another year's folder
        places.insert(0, root)
    for place in places:
        if is_folder(place / "ImageSets" / "Main"):
            return read_voc_layout(place, voc.lower(), CLASSES, train, test)
    looked = ", ".join(str(place / "ImageSets" / "Main") for place in places)
    raise DatasetError(
        f"{voc} not found from {root}: looked for {looked}; give the VOCdevkit folder"
    )


def read_voc_layout(
    folder: str | Path,
    name: str,
    classes: Sequence[str] | None = None,
    train: str = "trainval",
    test: str = "test",
) -> Dataset:
    """Read any data set in VOC layout; its definition of AP follows from its name."""
    folder = Path(folder)
    splits = []
    for split in (train, test):
        ids, classes, labels = read_split(
            folder, split, classes, must_be_labelled=split == train
        )
        require_images(folder, [f"JPEGImages/{id_}.jpg" for id_ in ids])
        paths = tuple(folder / "JPEGImages" / f"{id_}.jpg" for id_ in ids)
        splits.append(Split(split, ids, paths, labels))
    return Dataset(name, tuple(classes or ()), splits[0], splits[1], official_ap(name))


def voc_layout(folder: Path) -> Path | None:
    """Return the folder in VOC layout that a folder is or holds, if any."""

    def fits(place: Path) -> bool:
        return is_folder(place / "JPEGImages") and is_folder(
            place / "ImageSets" / "Main"
        )

    if fits(folder):
        return folder
    years = sorted([*folder.glob("VOC20*"), *folder.glob("VOCdevkit/VOC20*")])
    layouts = [place for place in years if fits(place)]
    if len(layouts) > 1:
        raise DatasetError(
            f"images must be one data set, got {len(layouts)} in {folder}; give one of them: "
            f"{', '.join(map(str, layouts))}"
        )
    if not layouts:
        return None
    return layouts[0]


def labels_by_id(folder: Path) -> dict[str, tuple[str, ...]]:
    """Return the classes of each image in a labelled split; difficult ones are not counted."""
    labels_of: dict[str, tuple[str, ...]] = {}
    for split in sorted(
        split_names(folder), key=lambda name: (name != "trainval", name)
    ):
        ids = _read_ids(folder, split)
        if labels_of.keys() >= set(ids):
            continue  # train and val, after trainval
        _, classes, labels = read_split(folder, split)
        if labels is not None:
            for id_, row in zip(ids, labels, strict=True):
                labels_of[id_] = tuple(np.array(classes)[row == 1].tolist())
    return labels_of


def split_names(folder: Path, wanted: str = "") -> list[str]:
    """Names of the splits: lists whose name is not `<class>_<a list, or the wanted one>`.

    So `train.txt` is a split, and `train_train.txt` is the class `train` in it.
    """
    stems = _list_names(folder)
    endings = tuple(f"_{name}" for name in (*stems, wanted))
    return [stem for stem in stems if not stem.endswith(endings)]


def read_split(
    folder: Path,
    split: str,
    classes: Sequence[str] | None = None,
    *,
    must_be_labelled: bool = False,
) -> LabelledSplit:
    """Read a split with its labels from the class lists, or else from the annotations.

    From annotations: 1 if an image has an object of the class that is not difficult, 0 if it has
    only difficult ones, -1 otherwise. A split without class lists, of which some image has no
    annotation, has no labels.
    """
    ids = _read_ids(folder, split)
    ending = f"_{split}"
    lists = []
    for stem in _list_names(folder):
        if stem.endswith(ending):
            lists.append(stem.removesuffix(ending))
    if classes is None:
        classes = lists
    wanted = tuple(classes)
    missing = [name for name in wanted if name not in lists]
    if wanted and not missing:
        files = [_list_path(folder, name + ending) for name in wanted]
        columns = [_read_class(file, ids) for file in files]
        return ids, wanted, np.stack(columns, axis=1)
    if len(missing) < len(wanted):
        raise DatasetError(
            f"every class must have a list for split {split}, got {len(missing)} of "
            f"{len(wanted)} without, first {_list_path(folder, missing[0] + ending)}"
        )
    objects = _read_annotations(folder, ids)
    if not wanted:
        wanted = tuple(sorted(set().union(*objects.values())))
    for path, presence in objects.items():
        for name in presence:
            check_choice(f"an object in {path}", name, wanted, DatasetError)
    if wanted and objects:
        labels = np.full((len(objects), len(wanted)), -1, dtype=np.int8)
        for row, presence in zip(labels, objects.values(), strict=True):
            row[:] = [presence.get(name, -1) for name in wanted]
        return ids, wanted, labels
    if must_be_labelled:
        example = _list_path(folder, (wanted or ("<class>",))[0] + ending)
        raise DatasetError(
            f"no labels for split {split}: expected class lists such as {example}, or objects in "
            f"{folder / 'Annotations'}, one XML file per image"
        )
    return ids, wanted, None


def _list_path(folder: Path, stem: str) -> Path:
    return folder / "ImageSets" / "Main" / f"{stem}.txt"


def _list_names(folder: Path) -> list[str]:
    """Names of all lists, splits and classes alike."""
    names = names_in(folder / "ImageSets" / "Main")
    return sorted(name.removesuffix(".txt") for name in names if name.endswith(".txt"))


def _read_ids(folder: Path, split: str) -> tuple[str, ...]:
    path, splits = _list_path(folder, split), split_names(folder, split)
    if split not in splits:
        raise DatasetError(
            f"split must be one of {splits}, got {split!r}: no {path}{did_you_mean(split, splits)}"
        )
    ids: dict[str, None] = {}
    for place, text in read_lines(path):
        if len(text.split()) != 1:
            raise DatasetError(f"a line of a split must be one image id, got {place}")
        if not is_plain_name(text):
            raise DatasetError(f"an image id must be a plain file name, got {place}")
        if text in ids:
            raise DatasetError(f"image ids must be unique, got a second {place}")
        ids[text] = None
    if not ids:
        raise DatasetError(f"a split must list at least one image, got none in {path}")
    return tuple(ids)


def _read_class(path: Path, ids: tuple[str, ...]) -> Labels:
    values_of: dict[str, int | None] = dict.fromkeys(ids)
    for place, text in read_lines(path):
        id_, *values = text.split()
        if len(values) != 1 or values[0] not in _VALUES:
            raise DatasetError(
                f"a line must be an image id and 1, -1 or 0, got {place}"
            )
        if id_ not in values_of:
            raise DatasetError(
                f"a class list must only have ids of its split, got {place}"
            )
        if values_of[id_] is not None:
            raise DatasetError(
                f"an image must have one line in a class list, got a second {place}"
            )
        values_of[id_] = _VALUES[values[0]]
    missing = [id_ for id_, value in values_of.items() if value is None]
    if missing:
        raise DatasetError(
            f"a class list must have a line for every id of its split, got {len(missing)} of "
            f"{len(ids)} without, first {missing[0]!r}, in {path}"
        )
    return np.array(list(values_of.values()), dtype=np.int8)


def _read_annotations(folder: Path, ids: tuple[str, ...]) -> dict[Path, dict[str, int]]:
    """Return the classes of each annotation, 0 if all difficult; {} if one is missing."""
    folder = folder / "Annotations"
    names = [f"{id_}.xml" for id_ in ids]
    if not is_folder(folder) or not set(names).issubset(names_in(folder)):
        return {}
    annotations: dict[Path, dict[str, int]] = {}
    for path in [folder / name for name in names]:
        with reraise_as(DatasetError, f"annotation must be plain XML, got {path}"):
            # damaged, forbidden (entity bombs), oddly encoded
            root = fromstring(read_bytes(path))
        presence: dict[str, int] = {}
        annotations[path] = presence
        for node in root.iterfind("object"):
            name = (node.findtext("name") or "").strip()
            difficult = (node.findtext("difficult") or "0").strip()
            if not name or difficult not in ("0", "1"):
                raise DatasetError(
                    "an object must have a name and difficult 0 or 1, "
                    f"got {name!r} and {difficult!r} in {path}"
                )
            presence[name] = max(presence.get(name, 0), 1 - int(difficult))
    return annotations


def write_submission(
    folder: str | Path,
    dataset: Dataset,
    scores: np.ndarray[Any, Any],
    competition: str = "comp1",
) -> tuple[Path, ...]:
    """Write `<folder>/results/VOC2012/Main/comp1_cls_test_aeroplane.txt` and so on.

    Scores have shape (n_test, n_classes); they are written in full precision, so that their order
    is kept. Pack `results` as tar.gz and upload it.
    """
    check_choice("competition", competition, COMPETITIONS)
    scores = np.asarray(scores)
    shape = (len(dataset.test), len(dataset.classes))
    if scores.shape != shape:
        raise FeatureError(
            f"scores must have shape {shape}, got {scores.shape}; no submission was written"
        )
    if not np.isfinite(scores).all():
        raise FeatureError(
            "scores must be finite, got NaN or infinity; no submission was written"
        )
    main = Path(folder) / "results" / dataset.name.upper() / "Main"
    names = [
        f"{competition}_cls_{dataset.test.name}_{name}.txt" for name in dataset.classes
    ]
    with reraise_as(
        DatasetError, f"submission cannot be written to {main}", of=OSError
    ):
        main.mkdir(parents=True, exist_ok=True)
        for name, column in zip(names, scores.T, strict=True):
            pairs = zip(dataset.test.ids, column.tolist(), strict=True)
            with replacing(main / name) as partial:
                lines = "".join(f"{image_id} {score!r}\n" for image_id, score in pairs)
                partial.write_text(lines, encoding="utf-8", newline="\n")
    return tuple(main / name for name in names)

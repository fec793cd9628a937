"""Stage 1, images: data sets without an official split, which is drawn here.

Comes in: the folder of caltech101 or eurosat as it is published, or the one above it, and a seed.
Goes out: a `Dataset` in which every image has exactly one class. Only names and seed decide who is
drawn, not the order of the files.
"""

from __future__ import annotations

from pathlib import Path

from deepfishing.errors import DatasetError
from deepfishing.images.dataset import Dataset
from deepfishing.images.folder import divide, read_classes, shuffled
from deepfishing.images.lists import find_root, labelled

TRAIN, TEST = 30, 50  # images of each kind of Caltech-101 to train, and at most to test
BACKGROUND = "BACKGROUND_Google"  # of Caltech-101: photographs of none of its kinds
SHARE = 0.2  # of each kind of EuroSAT that is tested, as its authors do


def read_caltech101(root: str | Path, seed: int = 0) -> Dataset:
    """Caltech-101: `101_ObjectCategories/<kind>/image_0001.jpg`, without BACKGROUND_Google."""
    root = find_root(Path(root), "101_ObjectCategories", "caltech-101", "caltech101")
    kinds = read_classes(root, root / "101_ObjectCategories")
    kinds.pop(BACKGROUND, None)
    for kind, ids in kinds.items():
        if len(ids) <= TRAIN:
            raise DatasetError(
                f"every kind must have more than {TRAIN} images, {TRAIN} to train and some to "
                f"test, got {len(ids)} in {root / '101_ObjectCategories' / kind}; the data set is "
                "not complete, get it again"
            )
    order = {kind: shuffled(ids, seed) for kind, ids in kinds.items()}
    train = {kind: ids[:TRAIN] for kind, ids in order.items()}
    test = {kind: ids[TRAIN : TRAIN + TEST] for kind, ids in order.items()}
    return labelled(root, "caltech101", train, test)


def read_eurosat(root: str | Path, seed: int = 0) -> Dataset:
    """EuroSAT in RGB: `2750/<kind>/<kind>_1.jpg`."""
    marker = "AnnualCrop"  # the first of its kinds
    root = find_root(Path(root), marker, "2750", "EuroSAT", "eurosat/2750", "EuroSAT_RGB")
    drawn = {kind: divide(ids, SHARE, seed) for kind, ids in read_classes(root, root).items()}
    alone = [kind for kind, (_, train) in drawn.items() if not train or not drawn[kind][0]]
    if alone:
        raise DatasetError(f"every kind must have two images, got one in {root / alone[0]}")
    train, test = ({kind: pair[side] for kind, pair in drawn.items()} for side in (1, 0))
    return labelled(root, "eurosat", train, test)

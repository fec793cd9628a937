"""The paper's printed numbers: mAP in percent, Table 1 left and the per-class Tables 2 and 3.

Keys are (data set, split, network). `TABLE_1` is in the order of `FEATURES`; `PER_CLASS` has x7 and
dW7, in the order of `CLASSES`. The paper does not state its definition of AP.
"""

from __future__ import annotations

from deepfishing.images.voc import CLASSES

FEATURES = [
    "x5",
    "x6",
    "x7",
    "y8",
    "x8",
    "x5;x6",
    "dW6",
    "x6;x7",
    "dW7",
    "x7;y8",
    "dW8",
]

TABLE_1: dict[tuple[str, str, str], str] = {
    (
        "voc2007",
        "test",
        "alexnet",
    ): "71.0 77.1 79.4 79.1 76.2 76.4 80.2 79.1 80.9 79.7 79.7",
    (
        "voc2007",
        "test",
        "vgg16",
    ): "86.7 89.3 89.4 88.3 86.0 89.2 89.3 89.5 90.0 89.2 88.2",
    (
        "voc2012",
        "val",
        "alexnet",
    ): "66.1 72.6 74.9 74.3 71.9 71.6 75.1 74.3 76.3 75.3 75.0",
    (
        "voc2012",
        "val",
        "vgg16",
    ): "81.4 84.4 84.6 84.1 81.3 84.0 84.6 84.6 85.2 84.6 83.4",
}

# Table 1 right and Table 3: the evaluation server's figures for VOC 2012 test.
TEST_2012: dict[tuple[str, str], float] = {
    ("alexnet", "x7"): 75.0,
    ("alexnet", "dW7"): 76.5,
    ("vgg16", "x7"): 85.0,
    ("vgg16", "dW7"): 85.3,
}

# The paper's network that a network here is compared with.
NETWORKS = {
    "alexnet-caffe": "alexnet",
    "alexnet-torchvision": "alexnet",
    "vgg16-caffe": "vgg16",
    "vgg16": "vgg16",
}

PER_CLASS: dict[tuple[str, str, str], dict[str, str]] = {
    ("voc2007", "test", "alexnet"): {
        "x7": "95.4 88.6 92.6 87.3 42.1 80.1 90.5 89.6 59.9 68.2 "
        "74.1 85.3 89.8 85.6 95.3 58.1 78.9 57.9 94.7 74.4",
        "dW7": "96.6 89.2 93.8 89.5 44.9 81.0 91.9 89.9 61.2 70.4 "
        "78.5 86.2 91.4 87.4 95.7 60.5 78.8 62.5 95.2 73.5",
    },
    ("voc2007", "test", "vgg16"): {
        "x7": "99.2 95.9 99.1 96.9 63.8 92.8 95.1 98.1 70.4 87.8 "
        "84.3 97.0 97.2 93.5 97.3 68.6 92.2 73.3 98.7 85.5",
        "dW7": "99.6 97.2 98.8 97.0 63.3 93.8 95.6 98.4 71.1 89.4 "
        "85.3 97.7 97.7 95.6 97.5 70.3 92.7 76.2 98.8 84.2",
    },
    ("voc2012", "val", "alexnet"): {
        "x7": "92.9 75.4 88.7 81.7 48.0 89.0 70.3 88.0 62.3 63.6 "
        "57.8 83.5 78.0 82.9 92.9 49.1 74.8 50.5 90.2 78.7",
        "dW7": "94.3 77.4 89.5 82.2 50.8 90.2 72.4 89.3 64.8 63.9 "
        "60.3 84.0 79.6 84.0 93.2 50.6 76.7 52.6 91.8 79.2",
    },
    ("voc2012", "test", "alexnet"): {
        "x7": "93.8 75.0 86.4 82.2 48.2 82.5 73.8 87.6 63.8 63.5 "
        "69.3 85.7 80.3 84.1 92.3 47.4 72.2 51.8 88.1 72.5",
        "dW7": "95.0 76.6 87.7 82.9 52.5 83.4 75.6 88.6 65.3 65.4 "
        "69.8 86.5 82.1 85.1 93.0 48.2 74.5 57.0 88.4 73.0",
    },
    ("voc2012", "val", "vgg16"): {
        "x7": "98.2 88.3 94.6 90.5 66.0 93.6 80.5 96.4 73.9 81.3 "
        "70.2 93.0 91.3 91.3 95.1 56.3 87.7 64.2 95.8 84.5",
        "dW7": "98.6 89.4 94.7 91.5 67.2 94.0 80.9 96.8 73.7 83.7 "
        "71.9 93.4 91.6 91.5 95.4 56.0 88.3 65.2 95.5 85.2",
    },
    ("voc2012", "test", "vgg16"): {
        "x7": "97.8 85.2 92.3 91.1 64.5 89.7 82.2 95.4 74.1 84.7 "
        "81.1 94.1 93.5 91.9 95.0 57.9 86.0 67.8 95.2 81.5",
        "dW7": "98.0 86.0 91.7 91.3 65.7 89.6 82.4 95.5 74.5 84.2 "
        "80.7 94.3 93.7 92.2 95.4 57.7 87.2 69.2 95.2 81.4",
    },
}


def printed_map(dataset: str, split: str, network: str, feature: str) -> float | None:
    """Return the mAP that the paper prints for this cell, if it has one."""
    column = (dataset, split, NETWORKS.get(network, ""))
    if column in TABLE_1:
        return dict(
            zip(FEATURES, map(float, TABLE_1[column].split()), strict=True)
        ).get(feature)
    return (
        TEST_2012.get((column[2], feature))
        if column[:2] == ("voc2012", "test")
        else None
    )


def printed_ap(
    dataset: str, split: str, network: str, feature: str
) -> dict[str, float]:
    """Return the per-class AP that the paper prints for this row; empty if there is none."""
    rows = PER_CLASS.get((dataset, split, NETWORKS.get(network, "")), {})
    if feature not in rows:
        return {}
    return dict(zip(CLASSES, map(float, rows[feature].split()), strict=True))

"""A tiny data set in VOC layout and a tiny network, so that an experiment takes a second."""

import numpy as np
import pytest
import torch
from PIL import Image

from deepfishing.images.preprocess import Preprocess
from deepfishing.images.voc import read_voc_layout
from deepfishing.networks.network import Network

CLASSES = ("red", "green")


@pytest.fixture
def network():
    torch.manual_seed(0)
    module = torch.nn.Sequential(
        torch.nn.Flatten(),
        torch.nn.Linear(48, 20),
        torch.nn.ReLU(),
        torch.nn.Linear(20, 6),
    )
    preprocess = Preprocess(4, 4, mean=(127.0,) * 3, std=(128.0,) * 3)
    return Network("tiny", module, {7: "1", 8: "3"}, preprocess, "none")


@pytest.fixture
def voc_tree(rng, tmp_path):
    """40 pictures; class red where the picture is reddish, and likewise green."""
    root = tmp_path / "tree"
    lists = root / "ImageSets" / "Main"
    lists.mkdir(parents=True)
    (root / "JPEGImages").mkdir()
    for split in ("trainval", "test"):
        labels = rng.random((20, 2)) < 0.5
        ids = [f"{split}{i:02d}" for i in range(20)]
        for image_id, (red, green) in zip(ids, labels, strict=True):
            pixels = rng.integers(0, 160, (12, 16, 3))
            pixels[:, :, 0] += 70 * red
            pixels[:, :, 1] += 70 * green
            Image.fromarray(pixels.astype(np.uint8)).save(
                root / "JPEGImages" / f"{image_id}.jpg", quality=95
            )
        (lists / f"{split}.txt").write_text("\n".join(ids) + "\n")
        for c, name in enumerate(CLASSES):
            lines = [
                f"{i} {1 if row[c] else -1}\n"
                for i, row in zip(ids, labels, strict=True)
            ]
            (lists / f"{name}_{split}.txt").write_text("".join(lines))
    return root


@pytest.fixture
def dataset(voc_tree):
    return read_voc_layout(voc_tree, "toy", CLASSES)

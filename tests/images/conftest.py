"""Small trees in exactly the published layout of each data set."""

import sys

import numpy as np
import pytest
from scipy.io import savemat


@pytest.fixture
def trees():
    """The functions below, one per data set, each with the folder that it fills."""
    return sys.modules[__name__]


def touch(path):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.touch()


def write(path, *lines):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(f"{line}\n" for line in lines))


def pets(root, each=2):
    """`each` images of two breeds in both splits; a breed may have several words."""
    splits = {"trainval": [], "test": []}
    for number, breed in enumerate(("Abyssinian", "american_bulldog")):
        for n in range(1, 2 * each + 1):
            image = f"{breed}_{n}"
            splits["trainval" if n <= each else "test"].append(
                f"{image} {number + 1} {number} 1"
            )
            touch(root / "images" / f"{image}.jpg")
    for split, lines in splits.items():
        write(root / "annotations" / f"{split}.txt", *lines)
    write(
        root / "annotations" / "list.txt",
        "#Image CLASS-ID SPECIES BREED ID",
        *splits["test"],
    )
    # of a Mac
    (root / "annotations" / "._trainval.txt").write_bytes(b"\x00\x05\x16\x07")


def flowers102(root):
    labels = np.array([[1, 1, 2, 2, 2, 1, 1]], dtype=np.uint8)
    for n in range(1, labels.size + 1):
        touch(root / "jpg" / f"image_{n:05d}.jpg")
    savemat(root / "imagelabels.mat", {"labels": labels}, do_compression=True)
    ids = {"trnid": [[1, 3]], "valid": [[2, 4]], "tstid": [[5, 6, 7]]}
    savemat(
        root / "setid.mat", {k: np.array(v, dtype=np.uint16) for k, v in ids.items()}
    )


def food101(root):
    for split, numbers in (("train", (11, 12)), ("test", (13,))):
        names = [
            f"{dish}/{n}" for dish in ("apple_pie", "baby_back_ribs") for n in numbers
        ]
        write(root / "food-101" / "meta" / f"{split}.txt", *names)
        for name in names:
            touch(root / "food-101" / "images" / f"{name}.jpg")


def dtd(root):
    for n, split in enumerate(("train1", "val1", "test1", "train2", "val2", "test2")):
        names = [f"{word}/{word}_{n:04d}.jpg" for word in ("banded", "polka-dotted")]
        write(root / "dtd" / "labels" / f"{split}.txt", *names)
        for name in names:
            touch(root / "dtd" / "images" / name)


def sun397(root):
    for n, split in enumerate(("Training", "Testing")):
        names = [f"/{s[0]}/{s}/sun_{n}{s[0]}x.jpg" for s in ("abbey", "church/indoor")]
        write(root / f"{split}_01.txt", *names)
        write(root / f"{split}_02.txt", *names)
        for name in names:
            touch(root / "SUN397" / name[1:])


def caltech101(root, images=(31, 40, 100)):
    kinds = zip(("accordion", "Faces_easy", "airplanes"), images, strict=True)
    for kind, n in (*kinds, ("BACKGROUND_Google", 35)):
        for i in range(1, n + 1):
            touch(
                root
                / "caltech-101"
                / "101_ObjectCategories"
                / kind
                / f"image_{i:04d}.jpg"
            )
    touch(root / "caltech-101" / "101_ObjectCategories" / "BACKGROUND_Google" / "tmp")


def eurosat(root):
    for kind in ("AnnualCrop", "Forest", "SeaLake"):
        for n in range(1, 11):
            touch(root / "2750" / kind / f"{kind}_{n}.jpg")


def cifar(root, labels, classes, files, meta):
    """Three images per file; gives their pixels by file, (3, 32, 32, 3)."""
    rng = np.random.default_rng(0)
    write(root / meta, *classes)
    made = {}
    for file in files:
        pixels = rng.integers(256, size=(3, 3, 32, 32), dtype=np.uint8)
        own = np.arange(3, dtype=np.uint8)[:, None] % len(classes)
        head = np.concatenate([np.full((3, labels - 1), 9, np.uint8), own], axis=1)
        rows = np.concatenate([head, pixels.reshape(3, -1)], axis=1)
        (root / file).write_bytes(rows.tobytes())
        made[file] = pixels.transpose(0, 2, 3, 1)
    return made


def cifar10(root):
    files = [*(f"data_batch_{n}.bin" for n in range(1, 6)), "test_batch.bin"]
    return cifar(
        root / "cifar-10-batches-bin",
        1,
        ("airplane", "bird"),
        files,
        "batches.meta.txt",
    )


def cifar100(root):
    files = ["train.bin", "test.bin"]
    names = ("apple", "aquarium_fish", "baby")
    return cifar(root / "cifar-100-binary", 2, names, files, "fine_label_names.txt")

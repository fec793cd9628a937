"""Stage 1, images: the data sets that are known by name, one record each.

From a record come the names that `deepfish reproduce` and `deepfish fetch` take, their help, their
errors, the lines of `deepfish doctor` and of docs/datasets.md. To add a data set, add its record
here, and a reader beside `voc.py` if none of those there fits.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from deepfishing.errors import DatasetError, did_you_mean
from deepfishing.files import Remote
from deepfishing.images.cifar import read_cifar
from deepfishing.images.dataset import Dataset
from deepfishing.images.drawn import read_caltech101, read_eurosat
from deepfishing.images.flowers import read_flowers102
from deepfishing.images.folder import read_folder
from deepfishing.images.groceries import load_groceries
from deepfishing.images.lists import read_dtd, read_food101, read_pets, read_sun397
from deepfishing.images.voc import read_voc


@dataclass(frozen=True, kw_only=True)
class DatasetRecord:
    """All that is known of a data set before it is read.

    Parameters
    ----------
    name, about : str
        As commands take it, and what it shows in a few words.
    read : callable
        Called with the folder and those of `options` that were given.
    options : tuple of str
        What may be asked of the reader: "train", "test" (names of splits), "seed" (which draw),
        and "into" (a folder to unpack pictures into).
    split : str
        The official split in words; what is drawn where there is none.
    sizes : pair of int, optional
        Images to train and to test as published.
    measure : str
        What figures are compared by, of `deepfishing.images.dataset.MEASURES`.
    licence : str
        Under which it is published.
    files : tuple of Remote
        What `deepfish fetch` gets; none where it cannot be fetched.
    embedded : bool
        Whether it comes with this package, so that no folder is needed.
    protocols, table
        What `deepfish reproduce` measures by default.
    """

    name: str
    about: str
    read: Callable[..., Dataset]
    options: tuple[str, ...] = ()
    split: str
    sizes: tuple[int, int] | None = None
    measure: str = "balanced_accuracy"
    licence: str
    files: tuple[Remote, ...] = ()
    embedded: bool = False
    protocols: tuple[str, ...] = ("table",)
    table: str = "all"


def find_record(name: str) -> DatasetRecord:
    """The record of a data set.

    Examples
    --------
    >>> find_record("pets").sizes
    (3680, 3669)
    >>> find_record("pet")
    Traceback (most recent call last):
    deepfishing.errors.DatasetError: data set must be one of groceries, folder, voc2007, voc2012,
        caltech101, pets, flowers102, food101, dtd, cifar10, cifar100, sun397, eurosat, got 'pet';
        did you mean pets?
    """
    if name == "scenes":
        raise DatasetError(
            "scenes, drawn digits, has made way for real photographs; "
            "run `deepfish reproduce groceries`"
        )
    if name not in DATASETS:
        raise DatasetError(
            f"data set must be one of {', '.join(DATASETS)}, got {name!r}"
            f"{did_you_mean(name, DATASETS)}"
        )
    return DATASETS[name]


def _file(url: str, size: int, sha256: str, *inner: str) -> Remote:
    return Remote(url, f"sha256:{sha256}", size, max(1, round(size / 1e6)), inner)


def _groceries(folder: Path | None, into: Path) -> Dataset:
    return load_groceries(folder or into)


_VOC = "http://host.robots.ox.ac.uk/pascal/VOC"
_VOC_LICENCE = "database rights of the PASCAL VOC organisers; images under Flickr's terms of use"
_VGG = "https://www.robots.ox.ac.uk/~vgg/data"
_CIFAR = "https://www.cs.toronto.edu/~kriz"
_SUN = "https://vision.princeton.edu/projects/2010/SUN"
_EUROSAT = "https://huggingface.co/datasets/torchgeo/eurosat/resolve"

_RECORDS = (
    DatasetRecord(
        name="groceries",
        about="fruit in grocery stores, 14 varieties; comes with this package",
        read=_groceries,
        options=("into",),
        split="25 of each variety to train, 25 to test",
        sizes=(350, 350),
        measure="map",
        licence="MIT",
        embedded=True,
        protocols=("table", "low-shot"),
        table="all,best",
    ),
    DatasetRecord(
        name="folder",
        about="your own: a folder per class, or train and test with a folder per class",
        read=read_folder,
        split="train and test, or half of each class drawn with a seed",
        measure="map",
        licence="your own",
    ),
    DatasetRecord(
        name="voc2007",
        about="PASCAL VOC 2007, 20 classes, several per image",
        read=partial(read_voc, year=2007),
        options=("train", "test"),
        split="trainval to train, test",
        sizes=(5011, 4952),
        measure="map",
        licence=_VOC_LICENCE,
        files=(
            _file(
                f"{_VOC}/voc2007/VOCtrainval_06-Nov-2007.tar",
                460_032_000,
                "7d8cd951101b0957ddfd7a530bdc8a94f06121cfc1e511bb5937e973020c7508",
            ),
            _file(
                f"{_VOC}/voc2007/VOCtest_06-Nov-2007.tar",
                451_020_800,
                "6836888e2e01dca84577a849d339fa4f73e1e4f135d312430c4856b5609b4892",
            ),
        ),
    ),
    DatasetRecord(
        name="voc2012",
        about="PASCAL VOC 2012, the same 20 classes",
        read=partial(read_voc, year=2012, train="train", test="val"),
        options=("train", "test"),
        split="train to train, val to test; the labels of test are not public",
        sizes=(5717, 5823),
        measure="map",
        licence=_VOC_LICENCE,
        files=(
            _file(
                f"{_VOC}/voc2012/VOCtrainval_11-May-2012.tar",
                1_999_639_040,
                "e14f763270cf193d0b5f74b169f44157a4b0c6efa708f4dd0ff78ee691763bcb",
            ),
        ),
    ),
    DatasetRecord(
        name="caltech101",
        about="Caltech-101, 101 kinds of objects; BACKGROUND_Google, which is no kind, is left out",
        read=read_caltech101,
        options=("seed",),
        split="no official one: 30 of each kind to train, up to 50 others to test, drawn with a "
        "seed",
        licence="CC BY 4.0",
        files=(
            _file(
                "https://data.caltech.edu/records/mzrjq-6wc02/files/caltech-101.zip",
                137_414_764,
                "331234750fc7f77520e50d9565e8b6907b03565e30320da1401130db08c61f91",
                "caltech-101/101_ObjectCategories.tar.gz",
            ),
        ),
    ),
    DatasetRecord(
        name="pets",
        about="Oxford-IIIT Pet, 37 breeds of cats and dogs",
        read=read_pets,
        split="trainval to train, test",
        sizes=(3680, 3669),
        licence="CC BY-SA 4.0",
        files=(
            _file(
                f"{_VGG}/pets/data/images.tar.gz",
                791_918_971,
                "67195c5e1c01f1ab5f9b6a5d22b8c27a580d896ece458917e61d459337fa318d",
            ),
            _file(
                f"{_VGG}/pets/data/annotations.tar.gz",
                19_173_078,
                "52425fb6de5c424942b7626b428656fcbd798db970a937df61750c0f1d358e91",
            ),
        ),
    ),
    DatasetRecord(
        name="flowers102",
        about="Oxford Flowers, 102 kinds",
        read=read_flowers102,
        split="train and val to train (trnid, valid), test (tstid)",
        sizes=(2040, 6149),
        licence="none stated",
        files=(
            _file(
                f"{_VGG}/flowers/102/102flowers.tgz",
                344_862_509,
                "2d01ecc807db462958cfe3d92f57a8c252b4abd240eb955770201e45f783b246",
            ),
            _file(
                f"{_VGG}/flowers/102/imagelabels.mat",
                502,
                "4903e94206bac23bf772aadf06451916df56b58fc483a62db32a97b82656651d",
            ),
            _file(
                f"{_VGG}/flowers/102/setid.mat",
                14_989,
                "46b8678f91fd95d3c8f4feab80d271a6c834a1dd896fe29fd3e6ad9ce5c8dccd",
            ),
        ),
    ),
    DatasetRecord(
        name="food101",
        about="Food-101, 101 dishes",
        read=read_food101,
        split="train, test",
        sizes=(75_750, 25_250),
        measure="accuracy",
        licence="scientific fair use; images under Foodspotting's terms of use",
        files=(
            _file(
                "http://data.vision.ee.ethz.ch/cvl/food-101.tar.gz",
                4_996_278_331,
                "d97d15e438b7f4498f96086a4f7e2fa42a32f2712e87d3295441b2b6314053a4",
            ),
        ),
    ),
    DatasetRecord(
        name="dtd",
        about="Describable Textures, 47 words for textures",
        read=read_dtd,
        split="the first of ten: train1 and val1 to train, test1",
        sizes=(3760, 1880),
        measure="accuracy",
        licence="for research purposes",
        files=(
            _file(
                f"{_VGG}/dtd/download/dtd-r1.0.1.tar.gz",
                625_239_812,
                "e42855a52a4950a3b59612834602aa253914755c95b0cff9ead6d07395f8e205",
            ),
        ),
    ),
    DatasetRecord(
        name="cifar10",
        about="CIFAR-10, 10 classes at 32 x 32 pixels, made larger to what the network takes",
        read=partial(read_cifar, name="cifar10"),
        options=("into",),
        split="train, test",
        sizes=(50_000, 10_000),
        measure="accuracy",
        licence="none stated",
        files=(
            _file(
                f"{_CIFAR}/cifar-10-binary.tar.gz",
                170_052_171,
                "c4a38c50a1bc5f3a1c5537f2155ab9d68f9f25eb1ed8d9ddda3db29a59bca1dd",
            ),
        ),
    ),
    DatasetRecord(
        name="cifar100",
        about="CIFAR-100, 100 classes at 32 x 32 pixels, likewise",
        read=partial(read_cifar, name="cifar100"),
        options=("into",),
        split="train, test",
        sizes=(50_000, 10_000),
        measure="accuracy",
        licence="none stated",
        files=(
            _file(
                f"{_CIFAR}/cifar-100-binary.tar.gz",
                168_513_733,
                "58a81ae192c23a4be8b1804d68e518ed807d710a4eb253b1f2a199162a40d8ec",
            ),
        ),
    ),
    DatasetRecord(
        name="sun397",
        about="SUN397, 397 kinds of scenes",
        read=read_sun397,
        split="the first of ten: Training_01, Testing_01",
        sizes=(19_850, 19_850),
        measure="accuracy",
        licence="none stated",
        files=(
            _file(
                f"{_SUN}/SUN397.tar.gz",
                39_077_296_924,
                "f404130965a7ad77bed5ececc71e720ab50f3cc1e1bb257257610d38f3b928ec",
            ),
            _file(
                f"{_SUN}/download/Partitions.zip",
                18_293_705,
                "e3311ea5f812d4cc6faef194688343d1111f6cd6f70f2c62f393c2b8d6ba1ec9",
            ),
        ),
    ),
    DatasetRecord(
        name="eurosat",
        about="EuroSAT, 10 kinds of land seen by a satellite, RGB",
        read=read_eurosat,
        options=("seed",),
        split="no official one: a fifth of each kind to test, drawn with a seed",
        sizes=(21_600, 5400),
        measure="accuracy",
        licence="MIT",
        files=(
            _file(
                f"{_EUROSAT}/c877bcd43f099cd0196738f714544e355477f3fd/EuroSAT.zip",
                94_280_567,
                "8ebea626349354c5328b142b96d0430e647051f26efc2dc974c843f25ecf70bd",
            ),
        ),
    ),
)

DATASETS = {record.name: record for record in _RECORDS}

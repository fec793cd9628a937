"""Before stage 1, fetching: a name becomes files where the other stages look for them.

Comes in: a name of the catalogue. Goes out: `weights/<file>` or `data/<name>/` in the
folder that is kept between runs, `home()`. What is there is verified and left alone.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from deepfishing.errors import FetchError, MissingDependencyError, OptionError, pip_install
from deepfishing.fetch.answer import UnreachableError
from deepfishing.fetch.catalogue import Item, find_item
from deepfishing.fetch.download import Patience, Progress, disk_errors, download
from deepfishing.fetch.unpack import RECORD, difference, unpack
from deepfishing.networks.zoo import home

try:
    import fcntl
except ImportError:  # Windows, where two runs at once are not kept apart
    fcntl = None  # type: ignore[assignment]


@dataclass(frozen=True)
class Fetched:
    """What became of a name.

    Parameters
    ----------
    name : str
        As asked for.
    status : "fetched" or "here"
        Whether something was downloaded now, or all was there and verified.
    paths : tuple of Path
        Weight files, the folder of a data set, or the folder of a package.
    licence : str
        Under which it is published.
    """

    name: str
    status: str
    paths: tuple[Path, ...]
    licence: str


def _silent(_what: str, _done: int, _total: int) -> None:
    pass


def fetch(name: str, progress: Progress = _silent, patience: Patience | None = None) -> Fetched:
    """Get weights or a data set by name, unless they are there; either way they are verified.

    Parameters
    ----------
    name : str
        One of the catalogue.
    progress : callable
        Told what is worked on, the bytes that are done and the bytes there are.
    patience : Patience, optional
        How long to go on with a bad connection.

    Returns
    -------
    fetched : Fetched
    """
    item = find_item(name)
    patience = patience or Patience()
    if not 0 < patience.timeout <= 3600:
        raise OptionError(f"timeout must be more than 0 and at most 3600 s, got {patience.timeout}")
    if item.package:
        return Fetched(name, "here", (_package_folder(item),), item.licence)
    with _alone(home() / f".{name}.lock", name):
        if item.archives:
            return _data(item, progress, patience)
        new = _files(item, home() / "weights", progress, patience)
        paths = tuple(home() / "weights" / remote.file for remote in item.files)
        return Fetched(name, "fetched" if new else "here", paths, item.licence)


def fetched_data(name: str) -> Path | None:
    """Folder of a data set that was fetched, as its reader takes it; None if it was not.

    Examples
    --------
    >>> fetched_data("groceries") is None
    True
    """
    folder = home() / "data" / name
    with disk_errors(folder):
        return folder if (folder / RECORD).is_file() else None


def _files(item: Item, folder: Path, progress: Progress, patience: Patience) -> bool:
    """Download what is missing; True if anything was."""
    new = False
    for remote in item.files:
        try:
            new |= download(remote, folder / remote.file, progress, patience)
        except UnreachableError as error:
            missing = [r for r in item.files if not (folder / r.file).exists()]
            by_hand = " and ".join(f"{r.url} as {folder / r.file}" for r in missing)
            raise FetchError(
                f"{error}; to do it by hand, save {by_hand}, then run `deepfish fetch {item.name}`"
                ", which checks it"
            ) from None
    return new


def _data(item: Item, progress: Progress, patience: Patience) -> Fetched:
    data = home() / "data"
    folder = data / item.name
    made_of = {remote.file: remote.digest for remote in item.files}
    with disk_errors(folder):
        if folder.exists():
            wrong = difference(folder, made_of)
            if wrong:
                raise FetchError(f"{folder} {wrong}; move it away and run it again")
            return Fetched(item.name, "here", (folder,), item.licence)
        _files(item, data, progress, patience)
        archives = [data / remote.file for remote in item.files]
        inner = [name for remote in item.files for name in remote.inner]
        unpack(archives, folder, made_of, progress, inner=inner)
        for path in archives:
            path.unlink()  # all of it is in the folder now
        return Fetched(item.name, "fetched", (folder,), item.licence)


def _package_folder(item: Item) -> Path:
    spec = importlib.util.find_spec(item.package)  # finds the folder, runs no code of it
    if spec is None or not spec.submodule_search_locations:
        raise MissingDependencyError(
            f"{item.name} comes with a package that is not installed; "
            f"run `{pip_install(item.package)}`"
        )
    return Path(spec.submodule_search_locations[0])


@contextmanager
def _alone(lock: Path, name: str) -> Iterator[None]:
    """Keep a second run away from the same name, in this process or another."""
    with disk_errors(lock):
        lock.parent.mkdir(parents=True, exist_ok=True)
        # left there afterwards: a lock file that vanishes could be held by two at once
        with lock.open("a") as file:
            if fcntl is not None:
                try:
                    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                except BlockingIOError:
                    raise FetchError(
                        f"{name} must be fetched by one run at a time, got another at work "
                        f"(it holds {lock}); wait until it ends"
                    ) from None
            yield

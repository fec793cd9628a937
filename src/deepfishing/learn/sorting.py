"""Photos sorted into folders by the predictions of a model.

`sort_photos` says into which folders each photo belongs, `copy_photos` copies the files there. The
originals are only read. A file that exists is never replaced: one with the same content counts as
copied, and a photo with the name of another one gets a number.
"""

from __future__ import annotations

import hashlib
import re
import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import IO, TYPE_CHECKING

from deepfishing.core.rank_one import Array
from deepfishing.errors import OptionError, StoreError, reraise_as
from deepfishing.util.files import file_sha256, replacing
from deepfishing.util.progress import Progress, silent

if TYPE_CHECKING:
    from deepfishing.learn.model import Model

UNSURE = "unsure"  # the folder of photos of which no class reaches its threshold
MAX_NAME = 100  # characters of a folder's name
MAX_NUMBER = 100_000  # photos of one name in a folder
# Names that Windows keeps for devices.
RESERVED = re.compile(r"(con|prn|aux|nul|com\d|lpt\d)(\..*)?", re.IGNORECASE)
UNUSABLE = re.compile(r'[<>:"/\\|?*\x00-\x1f\x7f]')
SPARE_BYTES = 64 << 20  # that stay free on the disk


@dataclass(frozen=True)
class Sorted:
    """A photo and the folder that it belongs into; `probability` is that of the class."""

    path: str
    id: str
    folder: str
    label: str  # the class; empty for `UNSURE`
    probability: float


@dataclass(frozen=True)
class Copied:
    """Numbers of files that were copied, and that existed already."""

    copied: int
    existing: int


def folder_names(classes: Sequence[str]) -> dict[str, str]:
    """Return the name of the folder of each class; usable on every system, all different.

    Examples
    --------
    >>> folder_names(["cat", "Cat", "a/b", "..", "unsure"])
    {'cat': 'cat', 'Cat': 'Cat (2)', 'a/b': 'a_b', '..': '_', 'unsure': 'unsure (2)'}
    """
    taken = {UNSURE}
    names = {}
    for label in classes:
        plain = UNUSABLE.sub("_", label).strip(" .")[:MAX_NAME] or "_"
        if RESERVED.fullmatch(plain):
            plain = f"_{plain}"
        name, number = plain, 2
        while name.casefold() in taken:
            name, number = f"{plain} ({number})", number + 1
        taken.add(name.casefold())
        names[label] = name
    return names


def classes_of(model: Model, probabilities: Array) -> list[int]:
    """Return the numbers of the classes that a photo (C,) is sorted into, most probable first.

    A class counts if its probability is at least its threshold. Of a model with one class per
    photo only the most probable class is asked, so that a photo below its threshold goes nowhere
    rather than to a class that is less probable.
    """
    limits = model.limits
    order = [
        int(c) for c in (-probabilities).argsort(kind="stable") if model.svm.trained[c]
    ]
    asked = order if model.has_several else order[:1]
    return [c for c in asked if probabilities[c] >= limits[c]]


def sort_photo(
    model: Model, path: str, id_: str, probabilities: Array, names: dict[str, str]
) -> list[Sorted]:
    """Return where one photo belongs; `names` are of `folder_names`."""
    places = []
    for column in classes_of(model, probabilities):
        label = model.classes[column]
        chance = float(probabilities[column])
        places.append(Sorted(path, id_, names[label], label, chance))
    if not places:
        places.append(Sorted(path, id_, UNSURE, "", float(probabilities.max())))
    return places


def check_target(folder: Path, photos: Path | None) -> None:
    """Refuse a folder among the photos, since copies would then be photos, too."""
    if photos is None or not photos.is_dir():
        return
    target, source = folder.resolve(), photos.resolve()
    if target == source or source in target.parents:
        raise OptionError(
            f"--copy-into must be outside the folder of the photos, got {folder} in {photos}; the "
            "copies would be taken for photos the next time, choose another folder"
        )


def copy_photos(
    folder: Path,
    photos: Sequence[tuple[Sorted, Callable[[], IO[bytes]]]],
    progress: Progress = silent,
) -> Copied:
    """Copy photos into folders by class below `folder`; each comes with what opens it."""
    copied = existing = 0
    do = "; what was copied stays, and running it again goes on"
    with reraise_as(StoreError, f"photos cannot be copied: {folder}", do, OSError):
        folder.mkdir(parents=True, exist_ok=True)
        for done, (photo, opener) in enumerate(photos, start=1):
            with opener() as file:
                content = file.read()
            is_new = _copy(folder / photo.folder, PurePosixPath(photo.id).name, content)
            copied += is_new
            existing += not is_new
            progress("copying", done, len(photos))
    return Copied(copied, existing)


def _copy(folder: Path, name: str, content: bytes) -> bool:
    """Write a file unless the folder has it already."""
    folder.mkdir(exist_ok=True)
    free = shutil.disk_usage(folder).free
    if len(content) + SPARE_BYTES > free:
        raise OSError(28, f"the disk has {free >> 20:,} MB left")
    name = UNUSABLE.sub("_", name).strip(" ") or "photo"
    stem, suffix = PurePosixPath(name).stem, PurePosixPath(name).suffix
    for number in range(1, MAX_NUMBER):
        place = folder / name
        if number > 1:
            place = folder / f"{stem} ({number}){suffix}"
        if not place.exists() and not place.is_symlink():
            with replacing(place) as partial:
                partial.write_bytes(content)
            return True
        if place.is_file() and _is_same(place, content):
            return False
    raise OptionError(
        f"{folder} must have room for another {name}, got {MAX_NUMBER:,} of that name"
    )


def _is_same(place: Path, content: bytes) -> bool:
    """Whether a file has this content."""
    if place.stat().st_size != len(content):
        return False
    return file_sha256(place) == hashlib.sha256(content).hexdigest()

"""Find the images of a store that a table of labels names.

A row of a table may name an image by its id, by its file, by the content of its file, which may
have been moved since, or by the end of its path, if no other image has the same.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path, PurePosixPath
from typing import Generic, Protocol, TypeVar

from deepfishing.images.item import Item


class _Image(Protocol):
    """An item of a source, a row of a store, or a picture of search."""

    @property
    def id(self) -> str: ...
    @property
    def path(self) -> object: ...


AnImage = TypeVar("AnImage", bound=_Image)


class Matcher(Generic[AnImage]):
    """Finds images by the names that a table gives them.

    Examples
    --------
    >>> images = [Item("cats/1.jpg", Path("photos/cats/1.jpg"))]
    >>> matcher = Matcher(images)
    >>> matcher.find(Item("1.jpg", Path("elsewhere/1.jpg"))) == images
    True
    >>> matcher.find(Item("2.jpg", Path("photos/2.jpg")))
    []
    """

    def __init__(self, images: Iterable[AnImage]) -> None:
        self._images = list(images)
        self._by_id = {image.id: image for image in self._images}
        self._by_file: dict[str, AnImage] | None = None
        self._by_content: dict[str, list[AnImage]] | None = None
        self._by_name: dict[str, list[AnImage]] | None = None

    def find(self, item: Item) -> Sequence[AnImage]:
        """Return the images that an item names: one, none, or several if it is ambiguous."""
        if item.id in self._by_id:
            return [self._by_id[item.id]]
        same_file = self._find_file(item)
        if same_file is not None:
            return [same_file]
        return self._find_content(item) or self._find_end(item)

    def _find_file(self, item: Item) -> AnImage | None:
        if self._by_file is None:
            self._by_file = {absolute(image): image for image in self._images}
        found = self._by_file.get(absolute(item))
        if found is None:
            found = self._by_file.get(os.path.realpath(absolute(item)))
        return found

    def _find_content(self, item: Item) -> list[AnImage]:
        """Return the images whose content is that of the file; its copies count as one."""
        if self._by_content is None:
            self._by_content = {}
            for image in self._images:
                sha256 = getattr(image, "sha256", None)
                if isinstance(sha256, str):
                    self._by_content.setdefault(sha256, []).append(image)
        if not self._by_content:
            return []
        try:
            sha256 = item.sha256()
        except (OSError, ValueError):
            return []
        return self._by_content.get(sha256, [])[:1]

    def _find_end(self, item: Item) -> list[AnImage]:
        """Return the images whose id or path ends with the given one."""
        if self._by_name is None:
            self._by_name = {}
            for image in self._images:
                for name in {
                    PurePosixPath(image.id).name,
                    PurePosixPath(str(image.path)).name,
                }:
                    self._by_name.setdefault(name, []).append(image)
        end = _parts(item.id)
        candidates = self._by_name.get(end[-1], []) if end else []
        return [image for image in candidates if _ends(image, end)]


def keep_known_ids(items: Sequence[Item], known: Mapping[str, _Image]) -> list[Item]:
    """Return items with the ids that a store has for their files, so that a file has one entry.

    A list or a table may name a file in another way than the folder did that was extracted first:
    `a.jpg`, `./a.jpg` and `photos/a.jpg` may be one file. `known` are the rows of the store by id.
    """
    if all(item.id in known for item in items):
        return list(items)
    id_of_file = {absolute(image): id_ for id_, image in known.items()}
    id_of_target = {os.path.realpath(path): id_ for path, id_ in id_of_file.items()}
    kept = []
    for item in items:
        id_ = item.id
        if id_ not in known and isinstance(item.path, Path):
            path = absolute(item)
            id_ = (
                id_of_file.get(path) or id_of_target.get(os.path.realpath(path)) or id_
            )
            id_of_file.setdefault(path, id_)
        kept.append(item if id_ == item.id else replace(item, id=id_))
    return kept


def absolute(image: _Image) -> str:
    """Return the absolute path of an image's file, without following links."""
    # as a string, which for an item in a tar or a video has its name there; a Path takes long
    path = str(image) if isinstance(image, Item) else str(image.path)
    return os.path.abspath(path)  # noqa: PTH100


def _ends(image: _Image, end: tuple[str, ...]) -> bool:
    paths = (_parts(image.id), _parts(str(image.path)))
    return any(path[-len(end) :] == end for path in paths)


def _parts(path: str) -> tuple[str, ...]:
    parts = PurePosixPath(path.replace("\\", "/")).parts
    return tuple(part for part in parts if part not in ("/", "..", "."))

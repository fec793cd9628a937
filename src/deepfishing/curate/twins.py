"""Stage 8, curate: groups of photos that are one picture.

Comes in: a store, and perhaps another one. Goes out: groups, each with the photo to keep and why,
and the others with what they are to it. The kernel's neighbours are candidates; pixels decide. Only
files count that are where they were, with the content that they had: whoever deletes what is listed
keeps one of each picture. A file under two names is one photo.
"""

from __future__ import annotations

import contextlib
import io
import math
import os
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
import pyarrow.compute as pc
from scipy.sparse import coo_array
from scipy.sparse.csgraph import connected_components

from deepfishing.curate.neighbours import nearest
from deepfishing.curate.pixels import SIDE, agreement, thumbnail
from deepfishing.errors import ImageError, OptionError
from deepfishing.images.item import ImageBytes
from deepfishing.images.preprocess import Openable, open_image, open_picture
from deepfishing.images.show import pictures_html
from deepfishing.images.sources import find_again
from deepfishing.progress import Progress, silent
from deepfishing.rank_one import Array
from deepfishing.search import Picture, Searcher
from deepfishing.store.manifest import SOURCE

NEAREST = 5  # contents that are compared by pixels
LEAST_KERNEL = 0.6  # of these; copies have more, docs/curate.md
SAME = 0.75  # agreement of pixels from which two are one picture
BLOCK_PAIRS = 256
SHOWN = 10  # groups that a notebook shows
NOT_PIXELS = (SOURCE, "dtype", "codebooks")  # settings that may differ between two stores

Pair = tuple[int, int]


@dataclass(frozen=True)
class Photo:
    """A photo of a group."""

    id: str
    path: str  # where the file is now
    store: str
    width: int
    height: int
    bytes: int
    relation: str = ""  # to the one that is kept: "same content", "same picture" or "mirrored"
    agreement: float = 1.0  # of the pixels of both
    can_go: bool = False  # a file of the first store, in no archive, and not the one to keep


@dataclass(frozen=True)
class Group:
    """One picture: the photo to keep, why that one, and the others."""

    keep: Photo
    why: str
    others: tuple[Photo, ...]


@dataclass(frozen=True, repr=False)
class Twins:
    """Groups, the largest first, and the ids of photos that were not found as they were."""

    groups: tuple[Group, ...]
    gone: tuple[str, ...]

    def __repr__(self) -> str:
        photos = sum(len(group.others) for group in self.groups)
        return f"Twins({len(self.groups)} pictures, {photos} photos beside those to keep)"

    def _repr_html_(self) -> str:
        shown = []
        for group in self.groups[:SHOWN]:
            shown.append((Path(group.keep.path), f"keep {group.keep.id}: {group.why}"))
            shown += [(Path(one.path), f"{one.relation}: {one.id}") for one in group.others]
        return pictures_html(repr(self), shown)

    def removable(self) -> list[str]:
        """Paths of the photos that may go: all but one of each picture."""
        return [photo.path for group in self.groups for photo in group.others if photo.can_go]


@dataclass(frozen=True)
class _File:
    """A photo as it lies on disk now."""

    photo: Photo
    key: str  # of its content
    node: int
    seconds: float  # of the last change
    is_own: bool  # a file, no part of an archive and not behind a URL
    is_first: bool  # of the first store

    @property
    def rank(self) -> tuple[float, float, bool, float, str]:
        """The least is kept: the most pixels, the most bytes, in the other store, the oldest."""
        photo = self.photo
        pixels = photo.width * photo.height
        return -pixels, -photo.bytes, self.is_first, self.seconds, photo.path


def find_twins(
    photos: Searcher,
    against: Searcher | None = None,
    *,
    least: float = SAME,
    progress: Progress = silent,
) -> Twins:
    """Find groups of photos that are one picture; nothing on disk is changed.

    With `against`, photos of the first store that the second has, too. Both from `open_searcher`.
    """
    if not 0 < least <= 1:
        raise OptionError(f"least agreement must be above 0 and at most 1, got {least}")
    if against is not None:
        _check_alike(photos, against)
    album = _Album([photos] if against is None else [photos, against])
    pairs, same = _candidates(photos, against, progress)
    album.look(np.unique(pairs).tolist(), progress)
    album.compare(pairs.tolist(), progress)
    edges = [pair for pair, (score, _) in album.agreements.items() if score >= least]
    groups = []
    for nodes in _components([*edges, *same]):
        files = album.files(nodes)
        while len(files) > 1:
            group, files = album.around(files[0], files[1:], least)
            crosses = against is None or len({p.store for p in (group.keep, *group.others)}) > 1
            if group.others and crosses:
                groups.append(group)
    groups.sort(key=lambda group: (-len(group.others), group.keep.path))
    return Twins(tuple(groups), tuple(sorted(album.gone)))


def _check_alike(photos: Searcher, against: Searcher) -> None:
    ours, theirs = photos.store, against.store
    for name, value in ours.settings.items():
        if name not in NOT_PIXELS and theirs.settings.get(name) != value:
            raise OptionError(
                f"two stores must be made alike to be compared, but {name} is {value!r} in "
                f"{ours.folder} and {theirs.settings.get(name)!r} in {theirs.folder}; extract one "
                "of them again as the other was"
            )


def _candidates(
    photos: Searcher, against: Searcher | None, progress: Progress
) -> tuple[Array, list[Pair]]:
    """Pairs of nodes (m, 2) that may be one picture, and pairs that have one content.

    A node is the number of a content; those of the second store follow those of the first.
    """
    n = len(photos.contents)
    of = None if against is None else photos.features
    near = nearest(against or photos, NEAREST, of, progress=progress)
    rows, columns = np.nonzero(near.kernel >= LEAST_KERNEL)
    pairs = np.stack([rows, near.numbers[rows, columns] + (n if against else 0)], axis=1)
    pairs = np.unique(np.sort(pairs, axis=1), axis=0)
    if against is None:
        several = np.flatnonzero(np.diff(photos.collection.starts) > 1).tolist()
        return pairs, [(node, node) for node in several]
    place = pc.index_in(photos.contents.keys, value_set=against.contents.keys).to_pylist()
    return pairs, [(node, n + other) for node, other in enumerate(place) if other is not None]


def _components(edges: Sequence[Pair]) -> list[list[int]]:
    """Nodes that are connected."""
    if not edges:
        return []
    a, b = np.array(edges).T
    nodes = np.unique([a, b])
    graph = coo_array((np.ones(len(edges)), (a, b)), shape=(nodes[-1] + 1, nodes[-1] + 1))
    label = connected_components(graph, directed=False)[1][nodes]
    order = np.argsort(label, kind="stable")
    parts = np.split(nodes[order], np.flatnonzero(np.diff(label[order])) + 1)
    return [part.tolist() for part in parts]


class _Album:
    """The files of one store or two, by node, and how their pixels agree."""

    def __init__(self, sides: Sequence[Searcher]) -> None:
        self.sides = sides
        self.gone: set[str] = set()
        self.thumbnails: dict[int, Array] = {}
        self.agreements: dict[Pair, tuple[float, bool]] = {}  # and whether one is mirrored

    def look(self, nodes: Sequence[int], progress: Progress) -> None:
        """Make thumbnails of the contents whose file exists and can be read."""

        def see(node: int) -> Array | None:
            for picture, _, content in self._found(node):
                with contextlib.suppress(ImageError):
                    return thumbnail(open_image(ImageBytes(picture.id, content), draft=SIDE))
            return None

        with ThreadPoolExecutor(os.cpu_count() or 1) as pool:
            for done, (node, seen) in enumerate(zip(nodes, pool.map(see, nodes), strict=True)):
                if seen is not None:
                    self.thumbnails[node] = seen
                progress("looking", done + 1, len(nodes))

    def compare(self, pairs: Iterable[Sequence[int]], progress: Progress) -> None:
        """Compare the pixels of the pairs that have thumbnails."""
        seen = self.thumbnails
        could = [(a, b) for a, b in pairs if a in seen and b in seen]
        parts = [could[i : i + BLOCK_PAIRS] for i in range(0, len(could), BLOCK_PAIRS)]

        def score(part: list[Pair]) -> tuple[Array, Array]:
            sides = np.array(part).T.tolist()
            return agreement(*(np.stack([seen[node] for node in side]) for side in sides))

        with ThreadPoolExecutor(os.cpu_count() or 1) as pool:
            for part, (found, mirrored) in zip(parts, pool.map(score, parts), strict=True):
                facts = zip(found.tolist(), mirrored.tolist(), strict=True)
                self.agreements.update(zip(part, facts, strict=True))
                progress("pixels", len(self.agreements), len(could))

    def files(self, nodes: Iterable[int]) -> list[_File]:
        """Each file of these contents once, that to be kept first."""
        found: dict[str, _File] = {}
        for node in nodes:
            side, _, key = self._content(node)
            is_first = side is self.sides[0]
            for picture, place, content in self._found(node):
                is_own = isinstance(place, Path)
                real = os.path.realpath(str(place)) if is_own else str(place)
                with contextlib.suppress(OSError):  # deleted this moment
                    seconds = Path(real).stat().st_mtime if is_own else math.inf
                    store, size = str(side.store.folder), _size(content)
                    photo = Photo(picture.id, str(place), store, *size, len(content))
                    found.setdefault(real, _File(photo, key, node, seconds, is_own, is_first))
        return sorted(found.values(), key=lambda file: file.rank)

    def around(self, keep: _File, rest: Sequence[_File], least: float) -> tuple[Group, list[_File]]:
        """The group of those that agree with the one to keep, and the others."""
        why, others, left = "", [], []
        for file in rest:
            relation, score = "same content", 1.0
            if file.key != keep.key:
                pair = (min(keep.node, file.node), max(keep.node, file.node))
                if pair not in self.agreements:  # connected by a third one
                    self.compare([pair], silent)
                score, mirrored = self.agreements.get(pair, (0.0, False))
                relation = "mirrored" if mirrored else "same picture"
            if score < least:
                left.append(file)
                continue
            can_go = file.is_own and file.is_first
            score = round(score, 3)
            others.append(replace(file.photo, relation=relation, agreement=score, can_go=can_go))
            why = why or _why(keep, file)
        return Group(keep.photo, why, tuple(others)), left

    def _content(self, node: int) -> tuple[Searcher, int, str]:
        """The store that a node is of, the number of its content there, and its key."""
        first = len(self.sides[0].contents)
        side, number = (self.sides[0], node) if node < first else (self.sides[1], node - first)
        return side, number, str(side.contents.keys[number])

    def _found(self, node: int) -> Iterator[tuple[Picture, Openable, bytes]]:
        """The rows of a content whose file is as it was, with its place and its bytes."""
        side, number, key = self._content(node)
        for row in side.collection.rows_of(number).tolist():
            picture = side.collection[row]
            place, content = find_again(side.store.folder, picture.path, key)
            if place is None or content is None:
                self.gone.add(picture.id)
            else:
                yield picture, place, content


def _why(keep: _File, next_: _File) -> str:
    """Why the first is kept and not the next one, by what they differ in."""
    photo, other = keep.photo, next_.photo
    if photo.width * photo.height > other.width * other.height:
        return f"most pixels, {photo.width} x {photo.height}"
    if photo.bytes > other.bytes:
        return f"largest file, {photo.bytes:,} bytes"
    if keep.is_first != next_.is_first:
        return f"{photo.store} has it"
    if keep.seconds < next_.seconds:
        return f"oldest, {datetime.fromtimestamp(keep.seconds, UTC):%Y-%m-%d}"
    return "first name"


def _size(content: bytes) -> tuple[int, int]:
    """Width and height of a picture; 0 if its header cannot be read."""
    with contextlib.suppress(Exception):  # damaged bytes make the readers raise almost anything
        return open_picture(io.BytesIO(content)).size
    return 0, 0

"""Groups of photos that are copies of one picture, and bursts of one scene.

The kernel's neighbours are candidates; `images.same_picture` decides at full detail. Only files
count that are where they were, with the content that they had. A file under two names is one photo.
`find_twins` gives verified copies, each with its kind; `find_bursts` gives photos of one scene that
are no copies, from which one may be chosen; these are never on a list of files that may go.
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
from PIL import Image
from scipy.sparse import coo_array
from scipy.sparse.csgraph import connected_components

from deepfishing.core.rank_one import Array
from deepfishing.curate.neighbours import nearest
from deepfishing.errors import ImageError, OptionError, check_choice
from deepfishing.images.alignment import SIDE, align, thumbnail
from deepfishing.images.item import ImageBytes
from deepfishing.images.preprocess import Openable, open_image, open_picture
from deepfishing.images.same_picture import (
    CROPPED,
    IDENTICAL_FILE,
    IDENTICAL_PIXELS,
    KINDS,
    MIN_SCORE,
    MIRRORED,
    RE_ENCODED,
    Likeness,
    compare_pictures,
    has_real_detail,
    without_border,
)
from deepfishing.images.show import pictures_html
from deepfishing.images.sources import find_again
from deepfishing.search import Picture, Searcher
from deepfishing.store.manifest import SOURCE
from deepfishing.util.progress import Progress, silent

NEAREST = 5  # contents that are compared by pixels
LEAST_KERNEL = 0.6  # of these; copies have more, docs/curate.md
SAME_SCENE = 0.75  # agreement of thumbnails from which two photos show one scene
# that may go unless others are asked
LISTED_KINDS = (IDENTICAL_FILE, IDENTICAL_PIXELS, RE_ENCODED)
BLOCK_PAIRS = 256
SHOWN = 10  # groups that a notebook shows
# settings that may differ between two stores
NOT_PIXELS = (SOURCE, "dtype", "codebooks")

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
    kind: str = ""  # how it differs from the one that is kept, one of KINDS
    # of the worst place of both; 1 is the most that a copy may have
    difference: float = 0.0
    # a file of the first store, in no archive, not mirrored, not the one kept
    can_go: bool = False


@dataclass(frozen=True)
class Group:
    """One picture: the photo to keep, why that one, and the others."""

    keep: Photo
    why: str
    others: tuple[Photo, ...]

    @property
    def kinds(self) -> tuple[str, ...]:
        """The kinds of copies in the group."""
        present = {photo.kind for photo in self.others}
        return tuple(kind for kind in KINDS if kind in present)


@dataclass(frozen=True, repr=False)
class Twins:
    """Groups, the largest first, and the ids of photos that were not found as they were."""

    groups: tuple[Group, ...]
    gone: tuple[str, ...]

    def __repr__(self) -> str:
        photos = sum(len(group.others) for group in self.groups)
        return (
            f"Twins({len(self.groups)} pictures, {photos} photos beside those to keep)"
        )

    def _repr_html_(self) -> str:
        shown = []
        for group in self.groups[:SHOWN]:
            shown.append((Path(group.keep.path), f"keep {group.keep.id}: {group.why}"))
            shown += [(Path(one.path), f"{one.kind}: {one.id}") for one in group.others]
        return pictures_html(repr(self), shown)

    def removable(self, kinds: Iterable[str] = LISTED_KINDS) -> list[str]:
        """Return paths of copies of these kinds; a mirrored photo never is among them."""
        wanted = set(kinds)
        for kind in wanted:
            check_choice("kind", kind, KINDS)
        paths = []
        for group in self.groups:
            paths += [
                photo.path
                for photo in group.others
                if photo.can_go and photo.kind in wanted
            ]
        return paths


@dataclass(frozen=True)
class Burst:
    """Photos of one scene that are no copies of each other; the one with the most detail first."""

    photos: tuple[Photo, ...]


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


@dataclass(frozen=True)
class _CopyOf:
    """A file, and how it is a copy of the one that is kept."""

    file: _File
    likeness: Likeness

    @property
    def is_mirrored(self) -> bool:
        """Whether it is a mirror image: pixels cannot tell which of two is the original."""
        return self.likeness.kind == MIRRORED

    def as_photo(self) -> Photo:
        """Return the photo with its kind, and whether it may go."""
        file = self.file
        return replace(
            file.photo,
            kind=self.likeness.kind,
            difference=self.likeness.difference,
            can_go=file.is_own and file.is_first and not self.is_mirrored,
        )


def find_twins(
    photos: Searcher, against: Searcher | None = None, *, progress: Progress = silent
) -> Twins:
    """Find groups of photos that are copies of one picture; nothing on disk is changed.

    With `against`, photos of the first store that the second has, too. Both from `open_searcher`.
    """
    if against is not None:
        _check_alike(photos, against)
    album = _Album([photos] if against is None else [photos, against])
    pairs, same = _candidates(photos, against, progress)
    album.look(np.unique(pairs).tolist(), progress)
    album.verify(album.alike(pairs.tolist(), MIN_SCORE, progress), progress)
    copies = [
        pair for pair, likeness in album.likenesses.items() if likeness is not None
    ]
    groups = []
    for nodes in _components([*copies, *same]):
        files = album.files(nodes)
        while len(files) > 1:
            group, files = album.around(files)
            crosses = (
                against is None
                or len({p.store for p in (group.keep, *group.others)}) > 1
            )
            if group.others and crosses:
                groups.append(group)
    groups.sort(key=lambda group: (-len(group.others), group.keep.path))
    return Twins(tuple(groups), tuple(sorted(album.gone)))


def find_bursts(photos: Searcher, *, progress: Progress = silent) -> list[Burst]:
    """Find photos of one scene that are no copies, the largest burst first."""
    album = _Album([photos])
    pairs, _ = _candidates(photos, None, progress)
    album.look(np.unique(pairs).tolist(), progress)
    alike = album.alike(pairs.tolist(), SAME_SCENE, progress)
    album.verify(alike, progress)
    bursts = []
    for nodes in _components(alike):
        scene: list[Photo] = []
        files = album.files(nodes)
        while files:  # of the copies of one picture the file that twins keeps
            group, files = album.around(files)
            scene.append(group.keep)
        if len(scene) > 1:
            bursts.append(Burst(tuple(scene)))
    return sorted(bursts, key=lambda burst: (-len(burst.photos), burst.photos[0].path))


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
    pairs = np.stack(
        [rows, near.numbers[rows, columns] + (n if against else 0)], axis=1
    )
    pairs = np.unique(np.sort(pairs, axis=1), axis=0)
    if against is None:
        several = np.flatnonzero(np.diff(photos.collection.starts) > 1).tolist()
        return pairs, [(node, node) for node in several]
    place = pc.index_in(
        photos.contents.keys, value_set=against.contents.keys
    ).to_pylist()
    return pairs, [
        (node, n + other) for node, other in enumerate(place) if other is not None
    ]


def _components(edges: Sequence[Pair]) -> list[list[int]]:
    """Nodes that are connected."""
    if not edges:
        return []
    a, b = np.array(edges).T
    nodes = np.unique([a, b])
    graph = coo_array(
        (np.ones(len(edges)), (a, b)), shape=(nodes[-1] + 1, nodes[-1] + 1)
    )
    label = connected_components(graph, directed=False)[1][nodes]
    order = np.argsort(label, kind="stable")
    parts = np.split(nodes[order], np.flatnonzero(np.diff(label[order])) + 1)
    return [part.tolist() for part in parts]


class _Album:
    """The files of one store or two, by node, and which of them are copies."""

    def __init__(self, sides: Sequence[Searcher]) -> None:
        self.sides = sides
        self.gone: set[str] = set()
        self.thumbnails: dict[int, Array] = {}
        # of photos with a border of one colour, without it
        self.inner: dict[int, Array] = {}
        self.likenesses: dict[Pair, Likeness | None] = {}  # of the first to the second

    def look(self, nodes: Sequence[int], progress: Progress) -> None:
        """Make thumbnails of the contents whose file exists and can be read."""

        def see(node: int) -> tuple[Array, Array | None] | None:
            image = self.image(node, SIDE)
            if image is None:
                return None
            box = without_border(image)
            has_border = box != (0, 0, *image.size)
            return thumbnail(image), thumbnail(image.crop(box)) if has_border else None

        with ThreadPoolExecutor(os.cpu_count() or 1) as pool:
            for done, (node, seen) in enumerate(
                zip(nodes, pool.map(see, nodes), strict=True)
            ):
                if seen is not None:
                    self.thumbnails[node], inner = seen
                    if inner is not None:
                        self.inner[node] = inner
                progress("looking", done + 1, len(nodes))

    def image(self, node: int, draft: int = 0) -> Image.Image | None:
        """The picture of a content, upright and in RGB, if a file of it exists and can be read."""
        for picture, _, content in self._found(node):
            with contextlib.suppress(ImageError):
                return open_image(ImageBytes(picture.id, content), draft=draft)
        return None

    def has_more(self, node: int) -> bool:
        """Whether a file has more than the picture that is compared."""
        return any(has_more(content) for _, _, content in self._found(node))

    def alike(
        self, pairs: Iterable[Sequence[int]], least: float, progress: Progress
    ) -> list[Pair]:
        """The pairs whose thumbnails agree at least so much, as they are or without borders."""
        seen = self.thumbnails
        readable = [(a, b) for a, b in pairs if a in seen and b in seen]
        alike = self._agreeing(readable, seen, least, progress)
        left = sorted(set(readable) - set(alike))
        bordered = [(a, b) for a, b in left if a in self.inner or b in self.inner]
        return sorted(
            alike + self._agreeing(bordered, {**seen, **self.inner}, least, progress)
        )

    def _agreeing(
        self,
        readable: list[Pair],
        seen: dict[int, Array],
        least: float,
        progress: Progress,
    ) -> list[Pair]:
        parts = [
            readable[i : i + BLOCK_PAIRS] for i in range(0, len(readable), BLOCK_PAIRS)
        ]
        alike: list[Pair] = []
        for done, part in enumerate(parts):
            rows = np.array(part)
            first = np.stack([seen[node] for node in rows[:, 0].tolist()])
            second = np.stack([seen[node] for node in rows[:, 1].tolist()])
            score = align(first, second).score
            alike += [
                pair for pair, value in zip(part, score, strict=True) if value >= least
            ]
            progress("aligning", done + 1, len(parts))
        return alike

    def verify(self, pairs: Sequence[Pair], progress: Progress) -> None:
        """Compare the pixels of pairs at full detail."""

        def compare(pair: Pair) -> Likeness | None:
            a, b = (self.image(node) for node in pair)
            likeness = None if a is None or b is None else compare_pictures(a, b)
            if likeness is not None and any(self.has_more(node) for node in pair):
                return None  # only files that are equal byte by byte are copies then
            return likeness

        with ThreadPoolExecutor(os.cpu_count() or 1) as pool:
            for done, (pair, likeness) in enumerate(
                zip(pairs, pool.map(compare, pairs), strict=True)
            ):
                self.likenesses[pair] = likeness
                progress("pixels", done + 1, len(pairs))

    def likeness(self, a: int, b: int) -> Likeness | None:
        """How two contents are one picture; `keep` is 1 for the first, 2 for the second."""
        pair = (min(a, b), max(a, b))
        if pair not in self.likenesses:  # connected by a third one
            self.verify([pair], silent)
        found = self.likenesses[pair]
        if found is None or a <= b or not found.keep:
            return found
        return replace(found, keep=3 - found.keep)

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
                    found.setdefault(
                        real, _File(photo, key, node, seconds, is_own, is_first)
                    )
        return sorted(found.values(), key=lambda file: file.rank)

    def around(self, files: Sequence[_File]) -> tuple[Group, list[_File]]:
        """Return the group of the photo to keep, and the files that are left for other groups.

        Mirror images of that photo may be true copies of each other. They are its group where
        it has no true copy itself; otherwise they are left, and are a group of their own.
        """
        keep, why = self._best(files)
        copies = self._copies_of(keep, files)
        mirrored = [copy.file for copy in copies if copy.is_mirrored]
        if len(mirrored) > 1:
            best, why_best = self._best(mirrored)
            true_copies = [
                copy.file
                for copy in self._copies_of(best, mirrored)
                if not copy.is_mirrored
            ]
            if true_copies and len(mirrored) == len(copies):
                keep, why, copies = best, why_best, self._copies_of(best, files)
            elif true_copies:
                own_group = [best, *true_copies]
                copies = [copy for copy in copies if copy.file not in own_group]
        if copies and not why:
            why = _why(keep, copies[0].file)
        others = tuple(copy.as_photo() for copy in copies)
        grouped = [keep, *(copy.file for copy in copies)]
        return Group(keep.photo, why, others), [
            file for file in files if file not in grouped
        ]

    def _copies_of(self, keep: _File, files: Sequence[_File]) -> list[_CopyOf]:
        """Return the files that are copies of one of them, or its mirror images."""
        copies = []
        for file in files:
            if file is keep:
                continue
            likeness: Likeness | None = Likeness(IDENTICAL_FILE, 0.0)
            if file.key != keep.key:
                likeness = self.likeness(keep.node, file.node)
            if likeness is not None:
                copies.append(_CopyOf(file, likeness))
        return copies

    def _best(self, files: Sequence[_File]) -> tuple[_File, str]:
        """The file to keep, and why unless its rank says it: the whole picture, real detail."""
        best, why = files[0], ""
        for file in files[1:]:
            if file.key == best.key:
                continue
            likeness = self.likeness(best.node, file.node)
            if likeness is None:
                continue
            if likeness.keep == 2:
                best = file
                why = (
                    "not cropped"
                    if likeness.kind in (CROPPED, MIRRORED)
                    else "no border"
                )
            elif likeness.keep == 0 and self._is_enlarged(best, file):
                best, why = file, "the larger copies are enlarged"
        return best, why

    def _is_enlarged(self, file: _File, smaller: _File) -> bool:
        """Whether a photo has more pixels than another without more detail."""
        size = smaller.photo.width, smaller.photo.height
        if file.photo.width * file.photo.height <= size[0] * size[1]:
            return False
        image = self.image(file.node)
        return image is not None and not has_real_detail(image, size)

    def _content(self, node: int) -> tuple[Searcher, int, str]:
        """The store that a node is of, the number of its content there, and its key."""
        first = len(self.sides[0].contents)
        side, number = (
            (self.sides[0], node) if node < first else (self.sides[1], node - first)
        )
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


def has_more(content: bytes) -> bool:
    """Whether a file has other frames or pages, or transparent places that hide a part of it.

    A photo of a telephone may have a second, smaller picture (MPO), which does not count.
    """
    with contextlib.suppress(Exception):
        # damaged bytes make the readers raise almost anything
        picture = open_picture(io.BytesIO(content))
        if picture.format != "MPO" and getattr(picture, "n_frames", 1) > 1:
            return True
        if not picture.has_transparency_data:
            return False
        alpha = np.asarray(picture.convert("RGBA").getchannel("A"))
        return bool(alpha.min() < 255)
    return True


def _size(content: bytes) -> tuple[int, int]:
    """Width and height of a picture; 0 if its header cannot be read."""
    with contextlib.suppress(Exception):
        # damaged bytes make the readers raise almost anything
        return open_picture(io.BytesIO(content)).size
    return 0, 0

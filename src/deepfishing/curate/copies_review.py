"""Review of copies: verified groups of a store, decisions about them, and the deletion list.

`find_copies` keeps the groups of `find_twins` beside the store. `Review` joins them with decisions,
which go to an append-only log, so that several people and tabs do not lose each other's. By default
a copy of the kinds `LISTED_KINDS` is set aside and everything else is kept.

A photo is listed only if a verified copy of it, which is not its mirror image, is kept: a decision
that would leave none is refused, and `listed` looks at all files again. No file is ever touched.
"""

from __future__ import annotations

import contextlib
import getpass
import io
import json
import os
import threading
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from deepfishing.core.rank_one import Array
from deepfishing.curate.duplicates import LISTED_KINDS, Twins, find_twins, has_more
from deepfishing.curate.neighbours import open_searcher
from deepfishing.errors import ImageError, OptionError, StoreError, reraise_as
from deepfishing.images.alignment import align, thumbnail
from deepfishing.images.item import ImageBytes
from deepfishing.images.preprocess import open_image
from deepfishing.images.same_picture import MIRRORED, compare_pictures
from deepfishing.images.sources import find_again
from deepfishing.search import Searcher
from deepfishing.store import Store
from deepfishing.store.side_files import LOCK, read_side, side_folder, write_side
from deepfishing.util.files import check_regular, csv_text, is_intact, sealed
from deepfishing.util.locks import hold_lock
from deepfishing.util.progress import Progress, silent

NAME = "duplicates"
LOG = "duplicates.jsonl"
FORMAT = 1
MAX_LOG_BYTES = 1 << 30
MAX_GROUP = 200  # photos of a group for which pairs beside the star are compared
DIFFERENCE_SIDE = 1024  # pixels of the longer side of a picture of differences
AMPLIFIED = 4  # times, so that small differences can be seen
ALIGNED = 0.02  # scale or shift from which a copy is laid over the other one


@dataclass(frozen=True)
class Copy:
    """A photo of a group, the first of which is the one that all others are copies of.

    `kind` and `difference` are against the first; empty and 0 for the first itself.
    """

    id: str
    path: str
    sha256: str
    width: int
    height: int
    bytes: int
    kind: str
    difference: float
    by_default: bool  # set aside unless somebody decides otherwise
    is_file: bool  # and not in an archive


@dataclass(frozen=True)
class CopyGroup:
    """Photos that are copies of the first one, and why that one is kept."""

    why: str
    copies: tuple[Copy, ...]


@dataclass(frozen=True)
class Listed:
    """A photo that may go, its kind, and the verified copy of it that is kept."""

    path: str
    kind: str
    keep: str
    id: str


def find_copies(store: Store, progress: Progress = silent) -> int:
    """Find the groups of a store and keep them beside it; return how many there are."""
    photos = open_searcher(store, progress=progress)
    groups = _described(photos, find_twins(photos, progress=progress))
    facts = {
        "format": FORMAT,
        "images": len(photos.collection),
        "groups": [asdict(group) for group in groups],
    }
    write_side(store.folder, NAME, facts, {})
    return len(groups)


def work(folder: Path, options: dict[str, Any], progress: Progress) -> dict[str, Any]:
    """Find the groups of a store as a task of the server."""
    return {"groups": find_copies(Store.open(folder), progress)}


def _described(photos: Searcher, twins: Twins) -> list[CopyGroup]:
    """Return the groups with the content hash of each photo."""
    collection, keys = photos.collection, photos.contents.keys
    groups = []
    for group in twins.groups:
        copies = []
        for photo in (group.keep, *group.others):
            row = collection.row_of(photo.id)
            path = photo.path
            sha256 = ""
            if row is not None:
                path = collection[row].path
                sha256 = str(keys[int(collection.content[row])])
            copies.append(
                Copy(
                    photo.id,
                    path,
                    sha256,
                    photo.width,
                    photo.height,
                    photo.bytes,
                    photo.kind,
                    photo.difference,
                    by_default=photo.can_go and photo.kind in LISTED_KINDS,
                    is_file=photo.can_go or Path(photo.path).is_file(),
                )
            )
        groups.append(CopyGroup(group.why, tuple(copies)))
    return groups


class Review:
    """The groups of a store with the decisions about them; may be used from several threads."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.decisions = Decisions(folder)
        self._pairs: dict[tuple[str, str], bool] = {}
        self._lock = threading.Lock()
        self._deciding = threading.Lock()
        self._groups: tuple[CopyGroup, ...] = ()
        self._group_of: dict[str, int] = {}
        self.images: int | None = None  # photos among which the groups were found
        self.reload()

    def reload(self) -> None:
        """Read the groups on disk."""
        stored = read_side(self.folder, NAME)
        groups: list[CopyGroup] = []
        group_of: dict[str, int] = {}
        images = None
        if stored is not None and stored[0].get("format") == FORMAT:
            with contextlib.suppress(LookupError, TypeError, ValueError):
                for number, group in enumerate(stored[0]["groups"]):
                    copies = tuple(Copy(**copy) for copy in group["copies"])
                    groups.append(CopyGroup(str(group["why"]), copies))
                    group_of.update((copy.id, number) for copy in copies)
                images = int(stored[0]["images"])
        with self._lock:
            self._groups = tuple(groups)
            self._group_of = group_of
            self.images = images

    @property
    def groups(self) -> tuple[CopyGroup, ...]:
        """All groups, the largest first."""
        return self._groups

    def group_of(self, id_: str) -> CopyGroup:
        """Return the group of a photo."""
        if id_ not in self._group_of:
            raise OptionError(
                f"a photo must be in a group of copies, got {id_!r}; look for copies"
            )
        return self._groups[self._group_of[id_]]

    def is_aside(self, copy: Copy) -> bool:
        """Whether a photo is set aside."""
        decision = self.decisions.of(copy.id, copy.sha256)
        if decision is None:
            return copy.by_default
        return decision

    def aside(self, group: CopyGroup) -> list[Copy]:
        """Return the photos of a group that are set aside."""
        return [copy for copy in group.copies if self.is_aside(copy)]

    def decide(
        self, id_: str, aside: bool | None, author: str | None = None
    ) -> CopyGroup:
        """Set a photo aside, keep it, or go back to the default with None; return its group.

        Refused if a photo that is set aside would be left without a verified copy that is kept.
        """
        group = self.group_of(id_)
        chosen = next(copy for copy in group.copies if copy.id == id_)
        if aside and not chosen.is_file:
            raise OptionError(
                f"a photo to set aside must be a file of its own, got {id_}"
            )
        with self._deciding:
            state = {copy.id: self.is_aside(copy) for copy in group.copies}
            state[id_] = chosen.by_default if aside is None else aside
            for copy in group.copies:
                if state[copy.id] and self.partner(group, copy, state) is None:
                    raise OptionError(
                        "a verified copy that is not mirrored must be kept of each photo that is "
                        f"set aside, got none of {copy.id}; keep another one of the group first"
                    )
            self.decisions.append(chosen.id, chosen.sha256, aside, author)
        return group

    def partner(
        self, group: CopyGroup, copy: Copy, state: dict[str, bool]
    ) -> Copy | None:
        """Return a verified copy of this photo that is not set aside, or None.

        A mirrored photo has none. Only against the first of the group may the copy show less than
        the one that stays, since people see these two side by side.
        """
        if copy.kind == MIRRORED:
            return None
        first = group.copies[0]
        staying = []
        for other in group.copies:
            if not state[other.id] and other.id != copy.id:
                staying.append(other)
        if first in staying:
            return first
        if copy is first:
            verified = (other for other in staying if other.kind in LISTED_KINDS)
            return next(verified, None)
        for other in staying[:MAX_GROUP]:
            if self._are_copies(copy, other):
                return other
        return None

    def _are_copies(self, a: Copy, b: Copy) -> bool:
        """Whether two copies of a third photo show exactly the same."""
        if a.sha256 == b.sha256:
            return True
        pair = min(a.sha256, b.sha256), max(a.sha256, b.sha256)
        if pair not in self._pairs:
            for copy in (a, b):
                _, content = find_again(self.folder, copy.path, copy.sha256)
                if content is None or has_more(content):
                    return (
                        False  # missing, or with several frames, which are not compared
                    )
            picture_a, picture_b = self.picture(a), self.picture(b)
            if picture_a is None or picture_b is None:
                return False
            likeness = compare_pictures(picture_a, picture_b)
            self._pairs[pair] = likeness is not None and likeness.kind in LISTED_KINDS
        return self._pairs[pair]

    def picture(self, copy: Copy, draft: int = 0) -> Image.Image | None:
        """Return the picture of a photo, upright; None if its file is missing or has changed."""
        _, content = find_again(self.folder, copy.path, copy.sha256)
        if content is None:
            return None
        with contextlib.suppress(ImageError):
            return open_image(ImageBytes(copy.id, content), draft=draft)
        return None

    def listed(
        self, among: Callable[[str], bool] | None = None
    ) -> tuple[list[Listed], list[str]]:
        """Return the photos that may go, and ids of those set aside that are not safe to list.

        Each file and the copy that is kept of it are read again: both must exist with the content
        that was compared, as files of their own. `among` says which ids are wanted.
        """
        listed, refused = [], []
        for group in self.groups:
            wanted = [c for c in self.aside(group) if among is None or among(c.id)]
            if not wanted:
                continue
            places = {copy.id: self._place(copy) for copy in group.copies}
            state = {copy.id: self.is_aside(copy) for copy in group.copies}
            for copy in wanted:
                keep = self.partner(group, copy, state)
                place = places[copy.id]
                other = places[keep.id] if keep is not None else None
                if keep is None or place is None or other is None or place == other:
                    refused.append(copy.id)
                    continue
                kind = copy.kind or keep.kind
                listed.append(Listed(place, kind, other, copy.id))
        return listed, refused

    def _place(self, copy: Copy) -> str | None:
        """Return the real path of a photo, if it is a file with the content that was compared."""
        place, content = find_again(self.folder, copy.path, copy.sha256)
        if content is None or not isinstance(place, Path):
            return None
        return os.path.realpath(place)

    def difference(self, a: str, b: str) -> bytes:
        """Return a JPEG of the difference of two photos of a group, aligned."""
        pictures = []
        for copy in self.group_of(a).copies:
            if copy.id in (a, b):
                pictures.append((copy.id, self.picture(copy, DIFFERENCE_SIDE)))
        by_id = dict(pictures)
        first, second = by_id.get(a), by_id.get(b)
        if first is None or second is None:
            raise ImageError(
                "a photo is gone or has changed since its copies were found"
            )
        return _difference(first, second)


def _difference(a: Image.Image, b: Image.Image) -> bytes:
    """Return a JPEG of |a - b|, amplified, where both pictures overlap."""
    alignment = align(thumbnail(a)[None], thumbnail(b)[None])
    a.thumbnail((DIFFERENCE_SIDE, DIFFERENCE_SIDE))
    if alignment.mirrored[0]:
        b = b.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
    aligned, overlap = _align(b, alignment.warp[0].tolist(), a.size)
    difference = np.asarray(a, dtype=np.int16) - np.asarray(aligned, dtype=np.int16)
    amplified = np.minimum(np.abs(difference).max(axis=2) * AMPLIFIED, 255)
    levels: Array = np.where(overlap, amplified, 0).astype(np.uint8)
    file = io.BytesIO()
    Image.fromarray(levels).save(file, "JPEG", quality=85)
    return file.getvalue()


def _align(
    b: Image.Image, warp: Sequence[float], size: tuple[int, int]
) -> tuple[Image.Image, Array]:
    """Return a picture warped to the coordinates of another one, and where it has pixels."""
    scale_x, shift_x, scale_y, shift_y = warp
    distances = (abs(scale_x - 1), abs(shift_x), abs(scale_y - 1), abs(shift_y))
    if max(distances) <= ALIGNED:
        resized = b.resize(size, Image.Resampling.LANCZOS, reducing_gap=3.0)
        return resized, np.ones((size[1], size[0]), dtype=bool)
    # a's coordinates x in [-1, 1] are read at scale x + shift of b's
    half_x, half_y = b.width / 2, b.height / 2
    box = (
        (1 - scale_x + shift_x) * half_x,
        (1 - scale_y + shift_y) * half_y,
        (1 + scale_x + shift_x) * half_x,
        (1 + scale_y + shift_y) * half_y,
    )
    extent = Image.Transform.EXTENT
    warped = b.transform(size, extent, box, Image.Resampling.BICUBIC)
    white = Image.new("L", b.size, 255)
    return warped, np.asarray(white.transform(size, extent, box)) > 0


class Decisions:
    """Append-only log of what people decided about copies; the last line about a photo counts.

    A decision is about a file with its content: one that changes is no longer decided.
    """

    def __init__(self, folder: Path) -> None:
        self.store = folder
        self._current: dict[tuple[str, str], bool | None] = {}
        self._read_bytes = 0
        self._lock = threading.RLock()

    @property
    def path(self) -> Path:
        """The file of the log."""
        return self.store / ".studio" / LOG

    def of(self, id_: str, sha256: str) -> bool | None:
        """Whether a photo was set aside or kept; None if nothing was decided."""
        with self._lock:
            self._read()
            return self._current.get((id_, sha256))

    def append(
        self, id_: str, sha256: str, aside: bool | None, author: str | None = None
    ) -> None:
        """Write a decision; it is on disk when this returns."""
        if author is None:
            author = _user()
        document = {
            "time": datetime.now(UTC).isoformat(timespec="milliseconds"),
            "author": author,
            "id": id_,
            "sha256": sha256,
            "aside": aside,
        }
        line = json.dumps(sealed(document), ensure_ascii=False).encode() + b"\n"
        folder = side_folder(self.store)
        do = "; nothing was changed, free some space or make it writable and try again"
        with (
            reraise_as(
                StoreError, f"a decision cannot be written: {self.path}", do, OSError
            ),
            hold_lock(folder / LOCK),
            self._lock,
        ):
            self._read()
            with self.path.open("ab") as file:
                if file.tell() > self._read_bytes:
                    # the end of a line of a killed writer
                    file.truncate(self._read_bytes)
                file.write(line)
                file.flush()
                os.fsync(file.fileno())
            self._read()

    def _read(self) -> None:
        """Read the lines that were added since the last call."""
        try:
            size = check_regular(self.path).st_size
        except FileNotFoundError:
            self._current, self._read_bytes = {}, 0
            return
        except OSError as error:
            raise StoreError(
                f"decisions cannot be read: {self.path} ({error.strerror})"
            ) from None
        if size == self._read_bytes:
            return
        if size < self._read_bytes or size > MAX_LOG_BYTES:
            self._current, self._read_bytes = {}, 0
        with self.path.open("rb") as file:
            file.seek(self._read_bytes)
            content = file.read(MAX_LOG_BYTES)
        whole = content[: content.rfind(b"\n") + 1]
        for line in whole.splitlines():
            self._apply(line)
        self._read_bytes += len(whole)

    def _apply(self, line: bytes) -> None:
        with contextlib.suppress(ValueError, LookupError, TypeError, RecursionError):
            document = json.loads(line)
            if is_intact(document) and document["aside"] in (True, False, None):
                key = str(document["id"]), str(document["sha256"])
                self._current[key] = document["aside"]
                return
        raise StoreError(
            f"the log of decisions is damaged: {self.path}; put a copy of the file back, or delete "
            "the damaged line"
        )


def as_text(listed: Sequence[Listed], form: str) -> tuple[bytes, int]:
    """Return the list as tab-separated lines, NUL-separated paths or CSV, and how many it lacks.

    Names with a tab or a line break are left out of lines; CSV and NUL have them.
    """
    if form == "nul":
        return b"".join(_bytes(photo.path) + b"\0" for photo in listed), 0
    if form == "csv":
        return _csv(listed), 0
    lines = []
    for photo in listed:
        if not set("\t\r\n").intersection(photo.path + photo.keep):
            lines.append(f"{photo.path}\t{photo.kind}\t{photo.keep}\n")
    return _bytes("".join(lines)), len(listed) - len(lines)


def _csv(listed: Sequence[Listed]) -> bytes:
    return _bytes(csv_text(map(vars, listed), ["path", "kind", "keep", "id"]))


def _bytes(text: str) -> bytes:
    return text.encode("utf-8", "surrogateescape")


def _user() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError, ImportError):
        return ""

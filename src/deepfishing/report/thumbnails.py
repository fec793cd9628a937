"""Stage 7, report: test images as small pictures inside the page.

Comes in: the ids behind a row, and the indexes of the stores in `features/`, which know where each
image was seen and what its content is. Goes out: for each id a thumbnail as a data URI, or why
there is none.

An image may have moved since, with the results or without them, so a few places are tried. Only a
file with the very content that was measured is shown.
"""

from __future__ import annotations

import hashlib
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from deepfishing.errors import ImageError
from deepfishing.images.item import Held
from deepfishing.images.show import square_uri
from deepfishing.store.index import Row, read_index


@dataclass(frozen=True)
class Thumbnail:
    """A picture, or the reason why there is none; one of the two is empty."""

    uri: str
    problem: str


class Album:
    """Thumbnails of the images behind the results of a folder, each made once.

    Parameters
    ----------
    folder : Path
        With `features/`, as `deepfish reproduce` leaves it; without, every image is not found.
    images : Path, optional
        Where the images are now, if they have moved.
    """

    def __init__(self, folder: Path, images: Path | None = None) -> None:
        self.folder = folder.absolute()
        self.roots = ([images] if images else []) + [self.folder]
        stores = sorted(path.parent for path in folder.glob("features/*/index.parquet"))
        self.rows = [row for store in stores for row in read_index(store).values()]
        self._made: dict[str, Thumbnail] = {}  # by content

    def index(self, dataset: str, ids: Sequence[str]) -> dict[str, Row]:
        """What the stores know of these images of a data set, by id; nothing if it is not clear."""
        return match_ids(self.rows, dataset, ids)

    def thumbnail(self, row: Row | None) -> Thumbnail:
        """The central square of an image, as the network saw it."""
        if row is None or row.sha256 is None:
            return Thumbnail("", "not in features/")
        if row.sha256 not in self._made:
            self._made[row.sha256] = self._make(row, row.sha256)
        return self._made[row.sha256]

    def _make(self, row: Row, sha256: str) -> Thumbnail:
        content = next(filter(None, (_read(p, row.size, sha256) for p in self._places(row))), None)
        if content is None:
            return Thumbnail("", "not found")
        try:
            return Thumbnail(square_uri(Held(str(row.path), content)), "")
        except ImageError:
            return Thumbnail("", "not readable")

    def _places(self, row: Row) -> Iterator[Path]:
        """Where the image may be, the likeliest first."""
        path = Path(row.path)
        yield path
        # a relative path started where the command ran, which often is above the results
        yield from (parent / path for parent in (self.folder, *self.folder.parents))
        parts = [part for part in path.parts if part not in ("..", path.anchor)]
        for root in self.roots:
            yield from (root.joinpath(*parts[start:]) for start in range(len(parts)))


def match_ids(rows: Sequence[Row], dataset: str, ids: Sequence[str]) -> dict[str, Row]:
    """The row of each id: paths of one folder end in the ids, with or without a suffix.

    Several data sets may share ids; then the folder counts that has the data set's name in it.

    Examples
    --------
    >>> rows = [Row(p, p) for p in ("VOC2007/a.jpg", "VOC2007/b.jpg", "groceries/a.jpg")]
    >>> [row.path for row in match_ids(rows, "voc2007", ["b", "a"]).values()]
    ['VOC2007/b.jpg', 'VOC2007/a.jpg']
    >>> match_ids(rows, "voc2007", ["a", "c"])
    {}
    """
    named: defaultdict[str, list[tuple[PurePosixPath, Row]]] = defaultdict(list)
    for row in rows:
        path = PurePosixPath(Path(row.path).as_posix())
        for name in {path.name, path.stem}:
            named[name].append((path, row))
    folders: defaultdict[str, dict[str, Row]] = defaultdict(dict)
    for image_id in ids:
        for path, row in named[PurePosixPath(image_id).name]:
            for tail in (str(path), str(path.with_suffix(""))):
                if f"/{tail}".endswith(f"/{image_id}"):
                    folders[tail.removesuffix(image_id)][image_id] = row
    whole = {name: found for name, found in folders.items() if len(found) == len(set(ids))}
    by_name = {name: found for name, found in whole.items() if dataset in name.lower()}
    for candidates in (by_name, whole):
        # the same contents in two places are as good as one
        contents = {tuple(found[i].sha256 for i in ids): found for found in candidates.values()}
        if len(contents) == 1:
            return next(iter(contents.values()))
    return {}


def _read(path: Path, size: int, sha256: str) -> bytes | None:
    """The bytes of a file if they are these; never those of a pipe, which may not end."""
    try:
        if not path.is_file() or path.stat().st_size != size:
            return None
        content = path.read_bytes()
    except (OSError, ValueError):  # no permission, a name too long or with a zero in it
        return None
    return content if hashlib.sha256(content).hexdigest() == sha256 else None

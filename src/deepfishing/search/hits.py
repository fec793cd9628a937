"""Stage 7, search: what was found, as values, as a data frame, and as pictures in a notebook."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from deepfishing.errors import need
from deepfishing.images.item import ImageBytes
from deepfishing.images.show import pictures_html
from deepfishing.search.why import ClassTerm


@dataclass(frozen=True)
class Hit:
    """One image that was found, its labels None where nothing is known.

    `score` is the recipe's kernel, 1 for the same content, or that of a `Query` of several. The
    other numbers are of the gradient that explains the recipe, see `Explanation`: <x, x'>,
    <delta, delta'> (None without one), and the classes with the largest part in the latter.
    """

    id: str
    path: str
    labels: tuple[str, ...] | None
    score: float
    forward: float
    backward: float | None
    classes: tuple[ClassTerm, ...]

    @property
    def caption(self) -> str:
        """Its labels, or else the name of its file."""
        return ", ".join(self.labels) if self.labels else Path(self.id).name


class Hits(list[Hit]):
    """Hits, the nearest first, as a list; a notebook shows their pictures.

    `of` says what was searched, and `photo` leads from an id to the bytes of its file, or None.
    """

    def __init__(self, hits: Iterable[Hit], of: str, photo: Callable[[str], bytes | None]) -> None:
        super().__init__(hits)
        self.of = of
        self.photo = photo

    def __repr__(self) -> str:
        nearest = f": {self[0].id} {self[0].score:.3f}, ..." if self else ""
        return f"{len(self)} hits of {self.of}{nearest}"

    def pictures(self) -> list[tuple[ImageBytes | None, str]]:
        """The file of each hit, None if it is gone, and a caption."""
        files = ((hit, self.photo(hit.id)) for hit in self)
        return [
            (None if file is None else ImageBytes(hit.id, file), f"{hit.score:.3f} {hit.caption}")
            for hit, file in files
        ]

    def _repr_html_(self) -> str:
        return pictures_html(f"{len(self)} hits of {self.of}", self.pictures())

    def to_pandas(self) -> Any:
        """A data frame: id, path, labels, score, forward, backward, classes."""
        return need("pandas", "frames").DataFrame([asdict(hit) for hit in self])

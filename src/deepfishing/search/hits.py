"""Stage 7, search: what was found, as values, as a data frame, and as pictures in a notebook."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from deepfishing.errors import need
from deepfishing.images.item import Held
from deepfishing.images.show import pictures_html
from deepfishing.search.why import ClassTerm


@dataclass(frozen=True)
class Hit:
    """One image that was found.

    Parameters
    ----------
    id, path : str
        As in the store.
    labels : tuple of str, or None
        None where nothing is known.
    score : float
        The recipe's kernel, 1 for the same content; for several examples see `Query`.
    forward, backward : float
        <x, x'> and <delta, delta'> of the gradient that explains the recipe, see `Explanation`;
        backward is None without one.
    classes : tuple of ClassTerm
        Those with the largest part in `backward`; empty if it is no sum over classes.
    """

    id: str
    path: str
    labels: tuple[str, ...] | None
    score: float
    forward: float
    backward: float | None
    classes: tuple[ClassTerm, ...]


class Hits(list[Hit]):
    """Hits, the nearest first, as a list; a notebook shows their pictures.

    Parameters
    ----------
    hits : iterable of Hit
    of : str
        What was searched, for people.
    photo : callable
        From the id of a hit to the bytes of its file, or None.
    """

    def __init__(self, hits: Iterable[Hit], of: str, photo: Callable[[str], bytes | None]) -> None:
        super().__init__(hits)
        self.of = of
        self.photo = photo

    def __repr__(self) -> str:
        nearest = f": {self[0].id} {self[0].score:.3f}, ..." if self else ""
        return f"{len(self)} hits of {self.of}{nearest}"

    def pictures(self) -> list[tuple[Held | None, str]]:
        """The file of each hit, None if it is gone, and a caption."""
        found = []
        for hit in self:
            name = ", ".join(hit.labels) if hit.labels else Path(hit.id).name
            content = self.photo(hit.id)
            file = None if content is None else Held(hit.id, content)
            found.append((file, f"{hit.score:.3f} {name}"))
        return found

    def _repr_html_(self) -> str:
        return pictures_html(f"{len(self)} hits of {self.of}", self.pictures())

    def to_pandas(self) -> Any:
        """A data frame: id, path, labels, score, forward, backward, classes."""
        return need("pandas", "frames").DataFrame([asdict(hit) for hit in self])

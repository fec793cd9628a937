"""Selections of photos: made in one view, a filter in the others.

A lasso may hold half a million photos, too many for an address. So the server remembers the rows,
and the address has a key, which is the same for the same rows.
"""

from __future__ import annotations

import hashlib
import threading
from collections import OrderedDict
from dataclasses import dataclass

import numpy as np

from deepfishing.core.rank_one import Array
from deepfishing.errors import OptionError

MAX_SELECTIONS = 200
KEY_DIGITS = 16


class ForgottenSelectionError(OptionError):
    """A selection that was made too long ago, by another server, or never."""


@dataclass(frozen=True, eq=False)
class Selection:
    """Rows of a collection in ascending order, with a name to show."""

    key: str
    name: str
    rows: Array

    def as_dict(self) -> dict[str, object]:
        """Return what the page shows of it."""
        return {"selection": self.key, "name": self.name, "images": len(self.rows)}


class Selections:
    """The last selections; may be used from several threads."""

    def __init__(self) -> None:
        self._kept: OrderedDict[str, Selection] = OrderedDict()
        self._lock = threading.Lock()

    def add(self, rows: Array, name: str) -> Selection:
        """Remember some rows, such as those inside a lasso."""
        unique = np.unique(np.asarray(rows, dtype=np.int64))
        digest = hashlib.sha256(unique.tobytes() + name.encode())
        selection = Selection(digest.hexdigest()[:KEY_DIGITS], name, unique)
        with self._lock:
            self._kept[selection.key] = selection
            self._kept.move_to_end(selection.key)
            while len(self._kept) > MAX_SELECTIONS:
                self._kept.popitem(last=False)
        return selection

    def get(self, key: str) -> Selection:
        """Return a selection; a `ForgottenSelectionError` if it is not remembered."""
        with self._lock:
            if key not in self._kept:
                raise ForgottenSelectionError(
                    "the selection is not in memory any more; remove it and select again"
                )
            self._kept.move_to_end(key)
            return self._kept[key]

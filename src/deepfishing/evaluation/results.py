"""Results on disk.

`results.jsonl` has one line per measured row with everything needed to run it again, `scores/` the
decision scores behind it, so that curves can be drawn later. The key of a row is a digest of all
that decides its figures; measuring it again replaces it. `curves.jsonl` has one line per point of a
curve; points that are measured together share their key.
"""

from __future__ import annotations

import hashlib
import json
import platform
import re
import struct
import zlib
from abc import ABC, abstractmethod
from collections.abc import Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from tokenize import TokenError
from typing import Any, ClassVar
from zipfile import BadZipFile

import numpy as np

from deepfishing.core.rank_one import Array
from deepfishing.errors import StoreError, reraise_as, version_of
from deepfishing.evaluation.record import Result, wrong_point, wrong_row
from deepfishing.images.dataset import Split
from deepfishing.util.files import check_regular, read_regular, replacing

MAX_LINES_BYTES = 4 * 2**30
# what numpy, and the zip that it reads, raise for damaged bytes, found by fuzzing
DAMAGED = (
    *(OSError, ValueError, LookupError, EOFError, RuntimeError, MemoryError, TypeError),
    *(ArithmeticError, SyntaxError, TokenError, BadZipFile, zlib.error, struct.error),
)


def versions() -> dict[str, str]:
    """Return the versions of Python and of the packages that decide figures."""
    installed = {"Python": platform.python_version()}
    for name in ("torch", "scikit-learn", "numpy", "pillow"):
        installed[name] = version_of(name)
    return installed


def row_key(**parts: Any) -> str:
    """Return a short digest of all that decides a row."""
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()[:16]


def safe_name(feature: str) -> str:
    """Return a feature's name as part of a file name."""
    return re.sub(r"[^A-Za-z0-9.@]+", "_", feature)[:80]


def _number(text: str) -> int | float:
    """Read an integer of a JSON file; one beyond all floats is infinite, as other numbers are."""
    return int(text) if len(text) < 300 else float(text)


class _Lines(ABC):
    """A file of JSON lines in an output folder, each with a key and checked (`record`)."""

    name: ClassVar[str]
    what: ClassVar[str]  # what a line is

    def __init__(self, folder: str | Path) -> None:
        self.folder = Path(folder)
        self.file = self.folder / self.name
        problem = f"output folder cannot be used: {self.folder}"
        with reraise_as(StoreError, problem, of=(OSError, UnicodeDecodeError)):
            self.folder.mkdir(parents=True, exist_ok=True)
            text = ""
            if self.file.exists():
                text = read_regular(self.file, MAX_LINES_BYTES, links=True).decode()
        self.rows: list[Result] = []
        for number, line in enumerate(text.splitlines(), 1):
            where = f"in {self.file} line {number}; remove the line to measure it again"
            row = self._parse(line, where)
            self._check(row, where)
            self.rows.append(row)

    def _parse(self, line: str, where: str) -> Result:
        try:
            row: Result = json.loads(line, parse_int=_number)
            row["key"]
            # half a character is no text
            json.dumps(row, ensure_ascii=False).encode()
        except (ValueError, KeyError, TypeError, RecursionError):
            raise StoreError(
                f"each line must be a {self.what} with a key, got {line[:60]!r} {where}"
            ) from None
        return row

    def _check(self, row: Result, where: str) -> None:
        wrong = self.wrong_key(row)
        if wrong:
            raise StoreError(
                f"a {self.what} must have a usable {wrong!r}, got {str(row.get(wrong))[:60]!r} "
                f"{where}"
            )

    @abstractmethod
    def wrong_key(self, row: Result) -> str | None:
        """Return the first key of a line that is not usable."""

    def find(self, key: str) -> list[Result]:
        """Return the rows measured under this key; none if they were not."""
        return [row for row in self.rows if row["key"] == key]

    def keep(self, rows: Sequence[Result]) -> None:
        """Write these rows in place of those with the same keys: all of them, or none."""
        for row in rows:
            self._check(row, f"for {self.file}, which is left as it was")
        keys = {row["key"] for row in rows}
        self.rows = [old for old in self.rows if old["key"] not in keys] + list(rows)
        text = "".join(json.dumps(row) + "\n" for row in self.rows)
        with self._writing(), replacing(self.file) as partial:
            partial.write_text(text, encoding="utf-8")

    def _writing(self) -> AbstractContextManager[None]:
        return reraise_as(
            StoreError, f"{self.what}s cannot be written: {self.folder}", of=OSError
        )


class Curves(_Lines):
    """The points of one output folder; those that are measured together share their key."""

    name, what = "curves.jsonl", "point"

    def wrong_key(self, row: Result) -> str | None:
        """Return the first key of a point that is not usable."""
        return wrong_point(row)


class Results(_Lines):
    """The rows of one output folder, one per key, and the scores behind them."""

    name, what = "results.jsonl", "result"

    def wrong_key(self, row: Result) -> str | None:
        """Return the first key of a row that is not usable."""
        return wrong_row(row)

    def add(
        self,
        row: Result,
        scores: Array | None = None,
        split: Split | None = None,
        groups: Array | None = None,
    ) -> None:
        """Keep a row, the scores of the split it was measured on, and groups of similar images."""
        path = self.scores_path(row)
        if scores is not None and split is not None:
            labels = np.zeros(0, np.int8) if split.labels is None else split.labels
            with self._writing():
                path.parent.mkdir(exist_ok=True)
                with replacing(path) as partial, partial.open("wb") as file:
                    together = np.arange(len(scores)) if groups is None else groups
                    np.savez(
                        file,
                        scores=scores,
                        labels=labels,
                        ids=np.array(split.ids),
                        groups=together,
                    )
        self.keep([row])

    def scores_path(self, row: Result) -> Path:
        """Return the path of the scores of a row."""
        return self.folder / "scores" / f"{safe_name(row['feature'])}-{row['key']}.npz"

    def groups(self, row: Result) -> Array | None:
        """Groups (m,) of similar test images, which a bootstrap draws together; None if unknown."""
        path = self.scores_path(row)
        with _reading_scores(path):
            with path.open("rb") as file, np.load(file, allow_pickle=False) as data:
                if "groups" not in data:  # of an older version
                    return None
                groups, images = np.asarray(data["groups"]), len(data["ids"])
            if groups.dtype.kind != "i" or groups.shape != (images,):
                raise ValueError("it must hold one group for each image")
        return groups

    def scores(self, row: Result) -> tuple[Array, Array, list[str]]:
        """Scores (m, C), labels (m, C) or empty, and the image ids behind a row."""
        path = self.scores_path(row)
        with _reading_scores(path):
            check_regular(path, links=True)
            with path.open("rb") as file, np.load(file, allow_pickle=False) as data:
                scores = np.asarray(data["scores"])
                labels = np.asarray(data["labels"])
                ids = np.asarray(data["ids"])
            kinds = [values.dtype.kind for values in (scores, labels, ids)]
            same_length = scores.ndim == 2 and ids.shape == scores.shape[:1]
            if kinds != ["f", "i", "U"] or not same_length:
                raise ValueError(
                    "it must hold scores, labels and ids of the same images"
                )
        return scores, labels, ids.tolist()


def _reading_scores(path: Path) -> AbstractContextManager[None]:
    problem = f"scores cannot be read: {path}"
    return reraise_as(StoreError, problem, "; run the experiment again", DAMAGED)

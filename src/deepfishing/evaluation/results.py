"""Measured rows on disk.

`results.jsonl` holds one line per measured row with everything needed to run it again;
`scores/` the decision scores behind it, so that curves can be drawn later. A row is known by a
key made of all that decides its figures; measuring it again replaces it. `curves.jsonl` holds the
points of curves likewise, one line per point; points that are measured together share their key.
"""

from __future__ import annotations

import hashlib
import json
import platform
import re
import struct
import zlib
from collections.abc import Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from tokenize import TokenError
from typing import Any, ClassVar
from zipfile import BadZipFile

import numpy as np

from deepfishing.core.rank_one import Array
from deepfishing.core.recipes import parse_recipe
from deepfishing.errors import StoreError, explained, need, version_of
from deepfishing.evaluation.checks import Result, wrong_point, wrong_row
from deepfishing.images.dataset import Split
from deepfishing.images.show import table_html
from deepfishing.util.files import check_regular, read_regular, replacing

# what numpy, and the zip that it reads, raise for damaged bytes, found by fuzzing
MAX_LINES_BYTES = 4 * 2**30
DAMAGED = (
    *(OSError, ValueError, LookupError, EOFError, RuntimeError, MemoryError, TypeError),
    *(ArithmeticError, SyntaxError, TokenError, BadZipFile, zlib.error, struct.error),
)


def versions() -> dict[str, str]:
    """What a row was measured with, beside this package."""
    packages = ("torch", "scikit-learn", "numpy", "pillow")
    return {"Python": platform.python_version()} | {
        name: version_of(name) for name in packages
    }


def row_key(**parts: Any) -> str:
    """A short name for all that decides a row."""
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()[:16]


def safe_name(feature: str) -> str:
    """A feature's name as part of a file name."""
    return re.sub(r"[^A-Za-z0-9.@]+", "_", feature)[:80]


def _number(text: str) -> int | float:
    """A whole number of a JSON file; infinite, as JSON's others are, if it is beyond all floats."""
    return int(text) if len(text) < 300 else float(text)


class Table(list[Result]):
    """Measured rows, as a list; a notebook shows them with their intervals."""

    def __repr__(self) -> str:
        if not self:
            return "no rows"
        best = max(self, key=lambda row: _figures(row)["mAP"] or 0.0)
        figure, of = _figures(best)["mAP"], f"{best['dataset']} with {best['network']}"
        found = "" if figure is None else f", best {_title(best)}: {figure:.1f} mAP"
        return f"{len(self)} rows of {of}{found}"

    def _repr_html_(self) -> str:
        figures = [_figures(row) for row in self]
        shown = ("mAP", "top-1")
        names = [
            name for name in shown if any(one[name] is not None for one in figures)
        ]
        titles = [
            "feature",
            *(part for name in names for part in (f"{name}, %", "95 %")),
        ]
        cells = []
        for row, one in zip(self, figures, strict=True):
            cells.append([_title(row)])
            for name in names:
                low, high = one[f"{name} low"], one[f"{name} high"]
                cells[-1] += ["" if one[name] is None else f"{one[name]:.1f}"]
                cells[-1] += ["" if low is None else f"{low:.1f}–{high:.1f}"]
        return table_html(repr(self), titles, cells)

    def to_pandas(self) -> Any:
        """A data frame: feature, figures in percent with the ends of their intervals, setting."""
        facts = ("dataset", "network", "tau", "n_train", "n_test", "seconds")
        lines = []
        for row in self:
            told = {name: row.get(name) for name in facts}
            lines.append({"feature": row["feature"], **_figures(row), **told})
        return need("pandas", "frames").DataFrame(lines)


def _title(row: Result) -> str:
    return parse_recipe(row["feature"]).title


_FIGURES = {"mAP": "map", "top-1": "accuracy", "balanced": "balanced_accuracy"}


def _figures(row: Result) -> dict[str, float | None]:
    """The figures of a row and the ends of their intervals, None where there are none."""
    found: dict[str, float | None] = {}
    for name, key in _FIGURES.items():
        value, interval = row.get(key), row.get(f"{key}_interval")
        if key == "map":  # by each definition
            value, interval = (
                (part or {}).get(row["official_ap"]) for part in (value, interval)
            )
        low, high = interval or (None, None)
        found |= {name: value, f"{name} low": low, f"{name} high": high}
    return found


_WRONG = {"point": wrong_point, "result": wrong_row}  # the first key that is not usable


class _Lines:
    """A file of JSON lines in an output folder, each with a key and whole (`checks`)."""

    name: ClassVar[str]
    what: ClassVar[str]  # what a line is, of `_WRONG`

    def __init__(self, folder: str | Path) -> None:
        self.folder = Path(folder)
        self.file = self.folder / self.name
        of = (OSError, UnicodeDecodeError)
        with explained(
            StoreError, f"output folder cannot be used: {self.folder}", of=of
        ):
            self.folder.mkdir(parents=True, exist_ok=True)
            text = ""
            if self.file.exists():
                text = read_regular(self.file, MAX_LINES_BYTES, links=True).decode()
        self.rows: list[Result] = []
        for number, line in enumerate(text.splitlines(), 1):
            where = f"in {self.file} line {number}; remove the line to measure it again"
            try:
                row = json.loads(line, parse_int=_number)
                row["key"]
                # half a character is no text
                json.dumps(row, ensure_ascii=False).encode()
            except (ValueError, KeyError, TypeError, RecursionError):
                raise StoreError(
                    f"each line must be a {self.what} with a key, got {line[:60]!r} {where}"
                ) from None
            self._check(row, where)
            self.rows.append(row)

    def _check(self, row: Result, where: str) -> None:
        if wrong := _WRONG[self.what](row):
            raise StoreError(
                f"a {self.what} must have a usable {wrong!r}, got {str(row.get(wrong))[:60]!r} "
                f"{where}"
            )

    def find(self, key: str) -> list[Result]:
        """The rows measured under this key; none if they were not."""
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
        return explained(
            StoreError, f"{self.what}s cannot be written: {self.folder}", of=OSError
        )


class Curves(_Lines):
    """The points of one output folder; those that are measured together share their key."""

    name, what = "curves.jsonl", "point"


class Results(_Lines):
    """The rows of one output folder, one per key, and the scores behind them."""

    name, what = "results.jsonl", "result"

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
        """Where the scores of a row are."""
        return self.folder / "scores" / f"{safe_name(row['feature'])}-{row['key']}.npz"

    def groups(self, row: Result) -> Array | None:
        """Groups (m,) of similar test images, which a bootstrap draws together; None if unknown."""
        path = self.scores_path(row)
        do = "; run the experiment again"
        with explained(StoreError, f"scores cannot be read: {path}", do, DAMAGED):
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
        do = "; run the experiment again"
        with explained(StoreError, f"scores cannot be read: {path}", do, DAMAGED):
            check_regular(path, links=True)
            with path.open("rb") as file, np.load(file, allow_pickle=False) as data:
                scores, labels, ids = (
                    data[name] for name in ("scores", "labels", "ids")
                )
            kinds = [np.asarray(values).dtype.kind for values in (scores, labels, ids)]
            if (
                kinds != ["f", "i", "U"]
                or scores.ndim != 2
                or ids.shape != scores.shape[:1]
            ):
                raise ValueError(
                    "it must hold scores, labels and ids of the same images"
                )
        return scores, labels, ids.tolist()

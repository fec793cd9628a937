"""Features on disk: a store as the tables and arrays of other tools, decoded.

Comes in: a store and, if not all are wanted, names of features. Goes out: a row per usable image in
the order of the ids, as Arrow, pandas, polars or numpy. Arrow's lists are the decoded arrays
themselves, not copies; `to_batches` decodes some thousand images at a time, for stores that are
larger than the memory.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from deepfishing.errors import FeatureError, StoreError, need
from deepfishing.features import split_names
from deepfishing.rank_one import Array
from deepfishing.recipes import Recipe, parse_recipe
from deepfishing.store.index import OK, SCHEMA, Row

if TYPE_CHECKING:
    from deepfishing.kernels import Comparable
    from deepfishing.store.shards import Shards

BATCH_ROWS = 4096
BATCH_VALUES = 1 << 25  # numbers of a batch, 128 MB
FACTS = ("id", "path", "sha256", "labels")  # columns of the index that a table begins with


class Frames:
    """What `Store` can be turned into.

    `features` are names such as `x7`, `delta8` or `dW8`, or a list of them; all by default. A
    gradient stands for its two factors. Images that cannot be used are left out.
    """

    folder: Path
    settings: dict[str, Any]

    if TYPE_CHECKING:  # what the store itself has

        def factors(self) -> list[str]:
            """Names of the factors."""

        def rows(self) -> dict[str, Row]:
            """The images by id."""

        def shards(self, factor: str) -> Shards:
            """The files of a factor."""

        def read(self, keys: Sequence[str], factor: str) -> Array:
            """Values of a factor."""

    def to_batches(
        self, features: str | Iterable[str] | None = None, *, rows: int = BATCH_ROWS
    ) -> pa.RecordBatchReader:
        """Id, path, sha256, labels and a column per factor, at most so many rows at a time.

        An image that lacks a factor has null there. DuckDB, polars and Arrow read what this gives.
        """
        columns, images = self.columns_of(features), self.usable()
        keys = [str(row.sha256) for row in images]
        shapes = {}
        for name in columns:
            shards = self.shards(name)
            first = next((key for key in keys if key in shards), None)
            shapes[name] = () if first is None else self.read([first], name).shape[1:]
        schema = pa.schema(
            [SCHEMA.field(name) for name in FACTS]
            + [pa.field(name, list_type(shape)) for name, shape in shapes.items() if shape]
        )
        values = sum(int(np.prod(shape)) for shape in shapes.values())
        step = max(1, min(rows, BATCH_VALUES // max(values, 1)))

        def batches() -> Iterator[pa.RecordBatch]:
            for start in range(0, len(images), step):
                some = images[start : start + step]
                facts = [
                    pa.array([getattr(row, n) for row in some], schema.field(n).type) for n in FACTS
                ]
                lists = [
                    self._lists(keys[start : start + step], name, shapes[name])
                    for name in schema.names[len(FACTS) :]
                ]
                yield pa.record_batch([*facts, *lists], schema=schema)

        return pa.RecordBatchReader.from_batches(schema, batches())

    def to_arrow(self, features: str | Iterable[str] | None = None) -> pa.Table:
        """The same as one table, with a fixed-size list of float32 per factor and image."""
        return self.to_batches(features).read_all()

    def to_pandas(self, features: str | Iterable[str] | None = None) -> Any:
        """The same as a pandas data frame; each cell of a factor is an array."""
        need("pandas", "frames")
        return self.to_arrow(features).to_pandas()

    def to_polars(self, features: str | Iterable[str] | None = None) -> Any:
        """The same as a polars data frame, whose factors are of the type `Array`."""
        return need("polars", "frames").from_arrow(self.to_arrow(features))

    def to_numpy(self, factor: str) -> Array:
        """One factor of all usable images as float32: (n, d) or (n, P, d)."""
        columns = self.columns_of([factor])
        if len(columns) > 1:
            raise FeatureError(
                f"{factor} is made of {' and '.join(columns)}; take one of them, or "
                f"feature({factor!r}) for what `extract` gives"
            )
        return self.read([str(row.sha256) for row in self.usable()], columns[0])

    def feature(self, name: str) -> Comparable:
        """A feature or recipe of all usable images, as `extract` gives it: normalised.

        An array (n, d), a `RankOne` for a gradient, or what `gram` compares.
        """
        recipe = self._recipe(name)
        if recipe.learns:
            raise FeatureError(
                f"{recipe.title} is fitted on training images; take its features and fit "
                "deepfishing.estimators.Whiten, or use `deepfish train`"
            )
        self.columns_of([name])
        return recipe.fit({})({column: self.to_numpy(column) for column in recipe.columns})

    def usable(self) -> list[Row]:
        """The images that have features, in the order of their ids."""
        return [row for row in self.rows().values() if row.status == OK]

    def columns_of(self, features: str | Iterable[str] | None) -> list[str]:
        """The factors that features are made of, each once; an error if the store lacks one."""
        there = self.factors()
        if features is None:
            return there
        names = split_names(features) if isinstance(features, str) else list(features)
        wanted = [(n,) if n in there else self._recipe(n).columns for n in names]
        columns = list(dict.fromkeys(column for some in wanted for column in some))
        if absent := [column for column in columns if column not in there]:
            raise StoreError(
                f"store {self.folder} must hold {', '.join(columns)} for {', '.join(names)}, but "
                f"lacks {', '.join(absent)}; it has {', '.join(there) or 'none'}"
            )
        return columns

    def _recipe(self, name: str) -> Recipe:
        layers = self.settings.get("layers")
        known = {int(k): path for k, path in layers.items()} if isinstance(layers, dict) else None
        return parse_recipe(name, known)

    def _lists(self, keys: Sequence[str], name: str, shape: tuple[int, ...]) -> pa.Array:
        """One factor of some images, null where it is not there."""
        shards = self.shards(name)
        has = np.array([key in shards for key in keys])
        if not has.any():
            return pa.nulls(len(keys), list_type(shape))
        lists = pa.array(
            self.read([k for k, there in zip(keys, has, strict=True) if there], name).reshape(-1)
        )
        for size in reversed(shape):
            lists = pa.FixedSizeListArray.from_arrays(lists, size)
        return lists if has.all() else lists.take(pa.array(has.cumsum() - 1, mask=~has))


def list_type(shape: tuple[int, ...]) -> pa.DataType:
    """Arrow's type of a factor."""
    kind = pa.float32()
    for size in reversed(shape):
        kind = pa.list_(kind, size)
    return kind

"""Features on disk: what a store gives, as arrays or as the tables of other tools.

Comes in: names of factors or features, and keys of images where not all are wanted. Goes out: numpy
arrays, or a row per usable image in the order of the ids as Arrow, pandas or polars. Arrow's lists
are the decoded arrays themselves; `to_batches` decodes some thousand images at a time, for stores
that are larger than the memory.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, unquote

import numpy as np
import pyarrow as pa

from deepfishing.errors import FeatureError, StoreError, need
from deepfishing.features import split_names
from deepfishing.rank_one import Array
from deepfishing.recipes import Recipe, parse_recipe
from deepfishing.store.columns import Column, stored
from deepfishing.store.index import OK, SCHEMA, Row, read_index
from deepfishing.store.precision import CODECS, Codec
from deepfishing.store.shards import PATTERN, Shards, check_shards, read_table

if TYPE_CHECKING:
    from deepfishing.kernels import Comparable

ERRORS = "errors"
BATCH_ROWS = 4096
BATCH_VALUES = 1 << 25  # numbers of a batch, 128 MB
FACTS = ("id", "path", "sha256", "labels")  # columns of the index that a table begins with


class StoredFeatures:
    """The reading half of a `Store`.

    `features` are names such as `x7`, `delta8` or `dW8`, or a list of them; all by default. A
    gradient stands for its two factors. Images that cannot be used are left out.
    """

    def __init__(self, folder: Path, settings: dict[str, Any], precision: str) -> None:
        self.folder, self.settings, self.precision = folder, settings, precision
        self._shards: dict[str, Shards] = {}  # by factor, looked at when first asked for

    @cached_property
    def codec(self) -> Codec:
        """How numbers are written."""
        return CODECS[self.precision]

    def factors(self) -> list[str]:
        """Names of the factors that are in the store."""
        names = {path: unquote(path.name) for path in self.folder.iterdir() if path.is_dir()}
        return sorted(
            name
            for path, name in names.items()
            # of a folder that is called as a factor's is: not ".partial", not "%2e%2e"
            if path == self.shards_folder(name) and name != ERRORS and name[0] != "."
        )

    def rows(self) -> dict[str, Row]:
        """The images by id."""
        return read_index(self.folder)

    def usable(self) -> list[Row]:
        """The images that have features, in the order of their ids."""
        return [row for row in self.rows().values() if row.status == OK]

    def errors(self) -> dict[str, str]:
        """Contents that cannot be used, and why."""
        files = self.shards(ERRORS).files
        check_shards(files)
        tables = [read_table(path) for path in files]
        columns = [[t.column(name).to_pylist() for name in ("sha256", "error")] for t in tables]
        return {k: e for keys, errors in columns for k, e in zip(keys, errors, strict=True)}

    def missing(self, keys: Iterable[str], factors: Iterable[str]) -> list[str]:
        """The keys, each once and in order, that lack at least one of the factors."""
        once = dict.fromkeys(keys)
        lacking = set().union(*(once.keys() - self.shards(name).keys() for name in factors))
        return [key for key in once if key in lacking]

    def read(self, keys: Sequence[str], factor: str) -> Array:
        """One factor of these images as float32, in the order of the keys: (n, d) or (n, P, d)."""
        shards = self.shards(factor)
        if not keys:
            raise StoreError(f"nothing to read: no keys were given for {shards.folder}")
        if absent := [key for key in keys if key not in shards]:
            raise StoreError(
                f"{factor} of {len(absent)} images is not in {self.folder}, first {absent[0]}"
            )
        return Column.of(shards.files, *shards.find(keys), self.codec, factor).read_scaled()

    def shape(self, factor: str) -> tuple[int, ...]:
        """The shape of one image's factor; () of one that no content has."""
        files = self.shards(factor).files[:1]
        check_shards(files)
        return stored(files[0], factor, self.codec)[2] if files else ()

    def shards(self, factor: str) -> Shards:
        """The files of a factor, or of the errors."""
        folder = self.shards_folder(factor)
        if factor not in self._shards:
            try:
                self._shards[factor] = Shards(folder)
            except UnicodeDecodeError as error:
                check_shards(sorted(folder.glob(PATTERN)))  # says which one it is
                raise StoreError(f"keys in {folder} must be text, got {error}") from None
        return self._shards[factor]

    def shards_folder(self, factor: str) -> Path:
        """Where they are; a module's path may hold anything, so the name is quoted."""
        return self.folder / quote(factor, safe=":@+,;= ")

    def look_again(self) -> None:
        """Forget which features exist: another process may have written since."""
        self._shards.clear()

    def to_batches(
        self, features: str | Iterable[str] | None = None, *, rows: int = BATCH_ROWS
    ) -> pa.RecordBatchReader:
        """Id, path, sha256, labels and a column per factor, at most so many rows at a time.

        An image that lacks a factor has null there. DuckDB, polars and Arrow read what this gives.
        """
        images = self.usable()
        shapes = {name: self.shape(name) for name in self.columns_of(features)}
        lists = {name: list_type(shape) for name, shape in shapes.items() if shape}
        types = {name: SCHEMA.field(name).type for name in FACTS}
        schema = pa.schema([*types.items(), *lists.items()])
        values = sum(int(np.prod(shape)) for shape in shapes.values())
        step = max(1, min(rows, BATCH_VALUES // max(values, 1)))

        def batches() -> Iterator[pa.RecordBatch]:
            for start in range(0, len(images), step):
                some = images[start : start + step]
                facts = [pa.array([getattr(row, n) for row in some], types[n]) for n in FACTS]
                keys = [str(row.sha256) for row in some]
                arrays = [self._lists(keys, name, shapes[name]) for name in lists]
                yield pa.record_batch([*facts, *arrays], schema=schema)

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
        lists = pa.array(self.read([key for key in keys if key in shards], name).reshape(-1))
        for size in reversed(shape):
            lists = pa.FixedSizeListArray.from_arrays(lists, size)
        return lists if has.all() else lists.take(pa.array(has.cumsum() - 1, mask=~has))


def list_type(shape: tuple[int, ...]) -> pa.DataType:
    """Arrow's type of a factor."""
    kind = pa.float32()
    for size in reversed(shape):
        kind = pa.list_(kind, size)
    return kind

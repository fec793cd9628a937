"""Features on disk, so that no image is computed twice.

A store is a folder that any Parquet reader can read:

`store.json`         how the features were made, by which version, when
`index.parquet`      one row per image: id, path, sha256, labels, status, error...
`x7/shard-*.parquet` one folder per factor, one row per content: sha256, x7, x7_norm
`errors/`            contents that cannot be used, and why: sha256, error

Features are keyed by content, so the same picture under two names is computed once and an
interrupted run finds its work again even without the index. A factor that is asked for later is a
folder more; what exists is never touched.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import quote, unquote

import numpy as np
import pyarrow as pa

from deepfishing.core.features import split_names
from deepfishing.core.kernels import Comparable
from deepfishing.core.rank_one import Array
from deepfishing.core.recipes import Recipe, parse_recipe
from deepfishing.errors import (
    FeatureError,
    PrecisionError,
    StoreError,
    need,
    reraise_as,
)
from deepfishing.store import manifest
from deepfishing.store.journal import Journal, finish, recover
from deepfishing.store.label_log import LabelLog, with_current_labels
from deepfishing.store.manifest import OK, SOURCE, Row
from deepfishing.store.precision import (
    CODECS,
    DEFAULT,
    FINER,
    check_precision,
    precision_problem,
)
from deepfishing.store.shards import (
    MAX_BYTES,
    MAX_ROWS,
    PATTERN,
    Column,
    Shards,
    check_shard,
    encode,
    read_table,
    stored,
    write_shard,
)
from deepfishing.util.locks import hold_lock

ERRORS = "errors"
BATCH_ROWS = 4096
BATCH_VALUES = 1 << 25  # numbers of a batch, 128 MB
# columns of the index that a table begins with
FACTS = ("id", "path", "sha256", "labels")


class Store:
    """A folder of features, keyed by the content of the images.

    `Store(folder)` opens a store that exists. As with a data frame, `len(store)` is the number of
    rows, the usable images, and `store["x7"]` or `store["dW8"]` a feature of all of them.

    In methods `features` are names such as `x7`, `delta8` or `dW8`, or a list of them; all by
    default. A gradient means its two factors. Images that cannot be used are left out.

    Parameters
    ----------
    folder : path
        Made if absent and `settings` are given.
    settings : dict, optional
        All that determines the values, from `Settings.as_dict`. A store made with other settings is
        refused, and the error names the one that differs; only `source`, the network's files, may.
        Without settings the store must exist.
    precision : str, optional
        Of the numbers on disk, one of `CODECS`. A store that exists keeps its own; else int8.
        Where it is left out, vectors that it does not suit are refused.

    Examples
    --------
    >>> import tempfile
    >>> import numpy as np
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     store = Store(folder, {"network": "toy"}, "float32")
    ...     store.append(["k1", "k2"], {"x7": np.array([[3.0, 4.0], [0, 1]])})
    ...     print(store.missing(["k1", "k9"], ["x7"]), Store.open(folder).read(["k1"], "x7"))
    ['k9'] [[3. 4.]]
    """

    def __init__(
        self,
        folder: str | Path,
        settings: Mapping[str, Any] | None = None,
        precision: str | None = None,
    ) -> None:
        folder = Path(folder)
        if settings is None:
            folder = manifest.find_store(folder)
            settings = manifest.read_manifest(folder)["settings"]
        self.folder = folder
        try:
            str(folder).encode()
        except UnicodeEncodeError:
            raise StoreError(
                f"the folder of a store must have a name in UTF-8, got {folder}; Parquet's files "
                "can be in no other, choose another folder"
            ) from None
        is_new = not (folder / manifest.MANIFEST).exists()
        stored_precision = DEFAULT
        if not is_new:
            stored_settings = manifest.read_manifest(folder)["settings"]
            stored_precision = stored_settings.get("dtype", DEFAULT)
        self.precision = check_precision(precision or stored_precision)
        self.codec = CODECS[self.precision]
        self._is_precision_given = precision is not None
        self.settings = {**settings, "dtype": self.precision}
        self._shards: dict[str, Shards] = {}  # by factor, read when it is first needed
        do = "; choose another folder"
        with reraise_as(StoreError, f"store cannot be made: {folder}", do, OSError):
            folder.mkdir(parents=True, exist_ok=True)
            if is_new:
                manifest.new_manifest(folder, self.settings)
        stored = manifest.agree_on_settings(folder, self.settings)
        self._stored_source = stored.get(SOURCE)

    def __repr__(self) -> str:
        factors = "no factors"
        if self.folder.is_dir():
            factors = ", ".join(self.factors()) or factors
        images = f"{manifest.count_rows(self.folder):,} images"
        network = self.settings.get("network")
        about = f"{images}, {factors} in {self.precision}, of {network}"
        return f"Store({str(self.folder)!r}: {about})"

    @classmethod
    def open(cls, folder: str | Path) -> Store:
        """Open an existing store, or the one that `deepfish reproduce` left in a folder."""
        return cls(folder)

    def __len__(self) -> int:
        return len(self.usable())

    def __bool__(self) -> bool:
        return True  # also a store without images

    def __getitem__(self, feature: str) -> Comparable:
        return self.feature(feature)

    def __iter__(self) -> Iterator[str]:
        return iter(self.factors())

    def __contains__(self, factor: object) -> bool:
        return factor in self.factors()

    def append(
        self,
        keys: Sequence[str],
        factors: Mapping[str, Array],
        errors: Mapping[str, str] | None = None,
        *,
        known: Mapping[str, Collection[str]] | None = None,
    ) -> None:
        """Write factors (n, d) or (n, P, d) of n contents, and contents that cannot be used.

        All of it is written or nothing; contents that are in the store stay as they are.

        Parameters
        ----------
        keys : sequence of str
            The SHA-256 of each content.
        factors : mapping
            Arrays with a row per key, by the name of the factor.
        errors : mapping, optional
            The reason by the key of each content that cannot be used.
        known : mapping, optional
            By factor, which of the keys are in the store. For processes that write for another one,
            which is `writing` and has looked. A shard that is written twice is the same file.
        """
        is_only_writer = known is None
        if known is None:
            known = {name: self.shards(name).keys() for name in (*factors, ERRORS)}
        if not self._is_precision_given:
            new = {name: x for name, x in factors.items() if not known.get(name)}
            if new:
                self.check_precision(new)
        with self._transaction(is_only_writer) as journal:
            for name, table in self._tables(keys, factors, errors or {}, known):
                if is_only_writer:
                    self.shards(name).add(table, journal)
                else:
                    write_shard(self.shards_folder(name), table, journal)

    def check_precision(self, factors: Mapping[str, Array]) -> None:
        """Refuse vectors whose kernel the store's precision would change."""
        for name, values in factors.items():
            problem = precision_problem(name, np.asarray(values), self.precision)
            if problem:
                raise PrecisionError(
                    f"{problem}; make a new store in {FINER}, or ask for {self.precision}: "
                    f"precision={self.precision!r}, on the command line --precision"
                )

    def _tables(
        self,
        keys: Sequence[str],
        factors: Mapping[str, Array],
        errors: Mapping[str, str],
        known: Mapping[str, Collection[str]],
    ) -> Iterator[tuple[str, pa.Table]]:
        """Yield the shards to write: the rows that are not in the store yet."""
        known_errors = known.get(ERRORS, ())
        new_errors = {k: why for k, why in errors.items() if k not in known_errors}
        if new_errors:
            columns = {"sha256": list(new_errors), "error": list(new_errors.values())}
            yield ERRORS, pa.table(columns)
        for name, values in factors.items():
            known_keys = known.get(name, ())
            rows = [row for row, key in enumerate(keys) if key not in known_keys]
            row_bytes = max(values[:1].size * self.codec.dtype.itemsize, 1)
            max_rows = max(1, min(MAX_ROWS, MAX_BYTES // row_bytes))
            for start in range(0, len(rows), max_rows):
                part = rows[start : start + max_rows]
                # all of them are not copied
                part_values = values if len(part) == len(keys) else values[part]
                part_keys = [keys[row] for row in part]
                yield name, encode(part_keys, name, part_values, self.codec)

    @contextmanager
    def writing(self) -> Iterator[None]:
        """Hold the writer lock, for this process and others that write parts for it.

        Temporary files of killed processes are removed at the beginning and at a successful end.
        """
        busy = StoreError(
            f"store must have one writer, but another process works on {self.folder}; wait until "
            "it ends, or choose another folder"
        )
        what = f"store cannot be written: {self.folder}"
        do = "; make it writable or choose another folder"
        lock = hold_lock(self.folder / manifest.LOCK, seconds=0, busy=busy)
        with contextlib.ExitStack() as stack:
            with reraise_as(StoreError, what, do, OSError):
                stack.enter_context(lock)
            self._clear_up()
            if self.settings.get(SOURCE) != self._stored_source:
                manifest.keep_source(self.folder, self.settings.get(SOURCE))
            yield
            self._clear_up()

    def _clear_up(self) -> None:
        """Finish or delete what killed processes left, and look at the shards again."""
        self.look_again()
        do = "; make it writable and run the command again"
        what = f"store cannot be written: {self.folder}"
        with reraise_as(StoreError, what, do, OSError):
            recover(self.folder)

    def write_rows(self, rows: Iterable[Row]) -> None:
        """Replace the index."""
        manifest.write_index(self.folder, rows)

    def forget_errors(self, keys: Collection[str]) -> None:
        """Forget failed contents, so that they are tried again."""
        self.compact(self.shards(ERRORS).keys() - keys, [ERRORS])

    def compact(
        self, keep: Collection[str], names: Sequence[str] | None = None
    ) -> None:
        """Drop features and errors of all other contents; only shards that hold some change.

        `names` are factors, or `errors`; all by default.
        """
        keep = frozenset(keep)
        stale = []
        for name in names or [*self.factors(), ERRORS]:
            shards = self.shards(name)
            if not shards.keys() <= keep:
                stale.append(shards)
        if stale:
            with self._transaction() as journal:
                for shards in stale:
                    shards.compact(keep, journal)
            self.look_again()

    @contextmanager
    def _transaction(self, is_only_writer: bool = True) -> Iterator[Journal]:
        """Yield a journal that is committed at the end, or rolled back after an error."""
        journal = Journal(self.folder)
        try:
            if is_only_writer:
                finish(self.folder)  # a change that was interrupted
            yield journal
            journal.commit()
        except BaseException as error:
            self.look_again()  # `_shards` may have rows that are not on disk
            journal.discard()
            if isinstance(error, OSError):
                raise StoreError(
                    f"store cannot be written: {self.folder} ({error}); what is in it stays, run "
                    "the command again to go on"
                ) from None
            raise

    def factors(self) -> list[str]:
        """Return the names of the factors that are in the store."""
        factors = []
        for path in self.folder.iterdir():
            name = unquote(path.name)
            is_hidden = name.startswith(".")
            if name == ERRORS or is_hidden or path != self.shards_folder(name):
                continue  # such as ".partial" and "%2e%2e"
            # there may be other folders, for instance the photos themselves
            if path.is_dir() and not path.is_symlink() and any(path.glob(PATTERN)):
                factors.append(name)
        return sorted(factors)

    def rows(self) -> dict[str, Row]:
        """Return the images by id."""
        return manifest.read_index(self.folder)

    def labelled_rows(self) -> list[Row]:
        """Return the images with their current labels, corrected by the label log."""
        return with_current_labels(self.rows().values(), LabelLog.open(self.folder))

    def usable(self) -> list[Row]:
        """Return the images that have features, in the order of their ids."""
        return [row for row in self.rows().values() if row.status == OK]

    def errors(self) -> dict[str, str]:
        """Return the reason for each content that cannot be used, by its key."""
        reasons: dict[str, str] = {}
        for path in self.shards(ERRORS).files:
            check_shard(path)
            table = read_table(path)
            keys = table.column("sha256").to_pylist()
            errors = table.column("error").to_pylist()
            reasons.update(zip(keys, errors, strict=True))
        return reasons

    def missing(self, keys: Iterable[str], factors: Iterable[str]) -> list[str]:
        """Return the keys that lack at least one of the factors, each once and in order."""
        unique = dict.fromkeys(keys)
        missing: set[str] = set()
        for name in factors:
            missing |= unique.keys() - self.shards(name).keys()
        return [key for key in unique if key in missing]

    def read(self, keys: Sequence[str], factor: str) -> Array:
        """Return one factor as float32, (n, d) or (n, P, d), in the order of the keys."""
        shards = self.shards(factor)
        if not keys:
            raise StoreError(f"nothing to read: no keys were given for {shards.folder}")
        absent = [key for key in keys if key not in shards]
        if absent:
            raise StoreError(
                f"{factor} of {len(absent)} images is not in {self.folder}, first {absent[0]}"
            )
        shard, row = shards.find(keys)
        column = Column.of(shards.files, shard, row, self.codec, factor)
        return column.read_scaled()

    def shape(self, factor: str) -> tuple[int, ...]:
        """Return the shape of one image's factor, or () if no content has it."""
        files = self.shards(factor).files
        if not files:
            return ()
        check_shard(files[0])
        return stored(files[0], factor, self.codec)[2]

    def shards(self, factor: str) -> Shards:
        """Return the shards of a factor, or of the errors."""
        if factor not in self._shards:
            self._shards[factor] = Shards(self.shards_folder(factor))
        return self._shards[factor]

    def shards_folder(self, factor: str) -> Path:
        """Return the folder of a factor; its name is quoted, since Windows allows no `:` in it."""
        return self.folder / quote(factor, safe="@+,;= ")

    def look_again(self) -> None:
        """Forget which features exist: another process may have written since."""
        self._shards.clear()

    def to_batches(
        self, features: str | Iterable[str] | None = None, *, rows: int = BATCH_ROWS
    ) -> pa.RecordBatchReader:
        """Return id, path, sha256, labels and a column per factor, in batches.

        An image that lacks a factor has null there. DuckDB, polars and Arrow can read it.
        """
        images = with_current_labels(self.usable(), LabelLog.open(self.folder))
        shapes = {name: self.shape(name) for name in self.columns_of(features)}
        fields = [manifest.SCHEMA.field(name) for name in FACTS]
        factors = [name for name, shape in shapes.items() if shape]
        for name in factors:
            fields.append(pa.field(name, self._lists([], name, shapes[name]).type))
        schema = pa.schema(fields)
        values_per_image = sum(math.prod(shape) for shape in shapes.values())
        step = max(1, min(rows, BATCH_VALUES // max(values_per_image, 1)))

        def batches() -> Iterator[pa.RecordBatch]:
            for start in range(0, len(images), step):
                part = images[start : start + step]
                keys = [str(row.sha256) for row in part]
                columns: list[Any] = []
                for name in FACTS:
                    columns.append([getattr(row, name) for row in part])
                for name in factors:
                    columns.append(self._lists(keys, name, shapes[name]))
                yield pa.record_batch(columns, schema=schema)

        return pa.RecordBatchReader.from_batches(schema, batches())

    def to_arrow(self, features: str | Iterable[str] | None = None) -> pa.Table:
        """Return the same as one table."""
        return self.to_batches(features).read_all()

    def to_pandas(self, features: str | Iterable[str] | None = None) -> Any:
        """Return the same as a pandas data frame; each cell of a factor is an array."""
        need("pandas", "frames")
        return self.to_arrow(features).to_pandas()

    def to_polars(self, features: str | Iterable[str] | None = None) -> Any:
        """Return the same as a polars data frame, whose factors have the type `Array`."""
        return need("polars", "frames").from_arrow(self.to_arrow(features))

    def to_numpy(self, factor: str) -> Array:
        """Return one factor of all usable images as float32, (n, d) or (n, P, d)."""
        columns = self.columns_of([factor])
        if len(columns) > 1:
            raise FeatureError(
                f"{factor} is made of {' and '.join(columns)}; take one of them, or "
                f"feature({factor!r}) for what `extract` gives"
            )
        return self.read([str(row.sha256) for row in self.usable()], columns[0])

    def feature(self, name: str) -> Comparable:
        """Return a feature or recipe of all usable images as `extract` does: normalised.

        An array (n, d), a `RankOne` for a gradient, or another value that `gram` takes.
        """
        recipe = self._recipe(name)
        if recipe.learns:
            raise FeatureError(
                f"{recipe.title} is fitted on training images; take its features and fit "
                "deepfishing.estimators.Whiten, or use `deepfish train`"
            )
        self.columns_of([name])
        arrays = {column: self.to_numpy(column) for column in recipe.columns}
        return recipe.fit({})(arrays)

    def columns_of(self, features: str | Iterable[str] | None) -> list[str]:
        """Return the factors that features are made of, each once; refuse one that is missing."""
        stored = self.factors()
        if features is None:
            return stored
        names = split_names(features) if isinstance(features, str) else list(features)
        unique: dict[str, None] = {}
        for name in names:
            needed = (name,) if name in stored else self._recipe(name).columns
            unique.update(dict.fromkeys(needed))
        columns = list(unique)
        absent = [column for column in columns if column not in stored]
        if absent:
            raise StoreError(
                f"store {self.folder} must hold {', '.join(columns)} for {', '.join(names)}, but "
                f"lacks {', '.join(absent)}; it has {', '.join(stored) or 'none'}"
            )
        return columns

    def _recipe(self, name: str) -> Recipe:
        layers = self.settings.get("layers")
        if not isinstance(layers, dict):
            return parse_recipe(name, None)
        return parse_recipe(name, {int(k): path for k, path in layers.items()})

    def _lists(
        self, keys: Sequence[str], name: str, shape: tuple[int, ...]
    ) -> pa.Array:
        """Return one factor of some images as lists of lists, null where it does not exist."""
        shards = self.shards(name)
        exists = np.array([key in shards for key in keys], dtype=bool)
        existing = [key for key in keys if key in shards]
        values = np.empty(0, np.float32)
        if existing:
            values = self.read(existing, name).ravel()
        lists = pa.array(values)
        for size in reversed(shape):
            lists = pa.FixedSizeListArray.from_arrays(lists, size)
        if exists.all():
            return lists
        return lists.take(pa.array(exists.cumsum() - 1, mask=~exists))

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

import fcntl
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence, Set
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa

from deepfishing.errors import StoreError
from deepfishing.rank_one import Array
from deepfishing.store.columns import encode
from deepfishing.store.index import Row, count_rows, write_index
from deepfishing.store.journal import Journal, clear_leftovers, finish
from deepfishing.store.manifest import (
    LOCK,
    MANIFEST,
    SOURCE,
    agree_on_settings,
    find_store,
    keep_source,
    new_manifest,
    read_manifest,
)
from deepfishing.store.precision import DEFAULT, check_precision
from deepfishing.store.reading import ERRORS, StoredFeatures
from deepfishing.store.shards import MAX_BYTES, MAX_ROWS, write_shard

_ERRORS_SCHEMA = pa.schema([("sha256", pa.string()), ("error", pa.string())])


class Store(StoredFeatures):
    """A folder of features, keyed by the content of the images.

    Parameters
    ----------
    folder : path
        Made if absent.
    settings : dict
        All that decides the values: network, weights, tau... A store made with other settings is
        refused, and the error says which one differs; `source`, which says where the network's
        files are, may differ. JSON values only, from `Settings.as_dict`.
    precision : str, optional
        Of the numbers on disk, one of `precision.CODECS`. A store that exists keeps its own; a new
        one is in int8 if nothing is said.

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
        self, folder: str | Path, settings: Mapping[str, Any], precision: str | None = None
    ) -> None:
        folder = Path(folder)
        _check_utf8(folder)
        is_new = not (folder / MANIFEST).exists()
        theirs = {} if is_new else read_manifest(folder)["settings"]
        precision = check_precision(precision or theirs.get("dtype", DEFAULT))
        super().__init__(folder, {**settings, "dtype": precision}, precision)
        try:
            folder.mkdir(parents=True, exist_ok=True)
            if is_new:
                new_manifest(folder, self.settings)
        except OSError as error:
            raise StoreError(
                f"store cannot be made: {folder} ({error.strerror}); choose another folder"
            ) from None
        agree_on_settings(folder, self.settings)

    def __repr__(self) -> str:
        factors = self.factors() if self.folder.is_dir() else []
        return (
            f"Store({str(self.folder)!r}: {count_rows(self.folder):,} images, "
            f"{', '.join(factors) or 'no factors'} in {self.precision}, "
            f"of {self.settings.get('network')})"
        )

    @classmethod
    def open(cls, folder: str | Path) -> Store:
        """A store that exists, with the settings that it was made with.

        `folder` may also be one of `deepfish reproduce` with one store in it.
        """
        folder = find_store(Path(folder))
        return cls(folder, read_manifest(folder)["settings"])

    def append(
        self,
        keys: Sequence[str],
        factors: Mapping[str, Array],
        errors: Mapping[str, str] | None = None,
        *,
        there: Mapping[str, Collection[str]] | None = None,
    ) -> None:
        """Write factors (n, d) or (n, P, d) of n contents, and contents that cannot be used.

        All of it is written or nothing. What exists stays as it is.

        Of several processes that write for the one that is `writing`, each says which of the keys
        are `there` by factor, so that nobody else has to look. What is written twice, since a
        process died, is the same file under the same name.
        """
        known = there
        if known is None:
            known = {name: self.shards(name).keys() for name in (*factors, ERRORS)}
        with self._at_once(alone=there is None) as journal:
            for name, table in self._tables(keys, factors, errors or {}, known):
                if there is None:
                    self.shards(name).add(table, journal)
                else:
                    write_shard(self.shards_folder(name), table, journal)

    def _tables(
        self,
        keys: Sequence[str],
        factors: Mapping[str, Array],
        errors: Mapping[str, str],
        there: Mapping[str, Collection[str]],
    ) -> Iterator[tuple[str, pa.Table]]:
        """The shards to write: the rows that are not there."""
        new = {key: why for key, why in errors.items() if key not in there.get(ERRORS, ())}
        if new:
            yield ERRORS, pa.table([list(new), list(new.values())], schema=_ERRORS_SCHEMA)
        for name, values in factors.items():
            known = there.get(name, ())
            rows = [row for row, key in enumerate(keys) if key not in known]
            size = max(values[:1].size * self.codec.dtype.itemsize, 1)
            n = max(1, min(MAX_ROWS, MAX_BYTES // size))
            for part in (rows[i : i + n] for i in range(0, len(rows), n)):
                some = values if len(part) == len(keys) else values[part]
                yield name, encode([keys[row] for row in part], name, some, self.codec)

    @contextmanager
    def writing(self) -> Iterator[None]:
        """Be the only process that writes, for itself or with others that write parts for it.

        What killed ones left is cleared away: at the beginning, and at a good end what was left
        meanwhile.
        """
        try:
            file = (self.folder / LOCK).open("a")
        except OSError as error:
            raise StoreError(
                f"store cannot be written: {self.folder} ({error.strerror}); make it writable or "
                "choose another folder"
            ) from None
        with file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise StoreError(
                    f"store must have one writer, but another process works on {self.folder}; "
                    "wait until it ends, or choose another folder"
                ) from None
            self._clear_up()
            keep_source(self.folder, self.settings.get(SOURCE))
            yield
            self._clear_up()

    def _clear_up(self) -> None:
        self.look_again()
        with self._at_once():
            clear_leftovers(self.folder)

    def write_rows(self, rows: Iterable[Row]) -> None:
        """Replace the index."""
        write_index(self.folder, rows)

    def forget_errors(self, keys: Collection[str]) -> None:
        """Let contents that could not be used be tried again."""
        self._compact([ERRORS], self.shards(ERRORS).keys() - keys)

    def compact(self, keep: Collection[str]) -> None:
        """Drop features and errors of all other contents; only shards that hold some change."""
        self._compact([*self.factors(), ERRORS], set(keep))

    def _compact(self, names: Iterable[str], keep: Set[str]) -> None:
        stale = [shards for shards in map(self.shards, names) if not shards.keys() <= keep]
        if stale:
            with self._at_once() as journal:
                for shards in stale:
                    shards.compact(keep, journal)
            self.look_again()

    @contextmanager
    def _at_once(self, alone: bool = True) -> Iterator[Journal]:
        """A journal that is committed at the end, or dropped if something goes wrong."""
        journal = Journal(self.folder)
        try:
            if alone:
                finish(self.folder)  # of a change that was interrupted
            yield journal
            journal.commit()
        except BaseException as error:
            self.look_again()  # the shards know of rows that are not on disk
            journal.discard()
            if isinstance(error, OSError):
                raise StoreError(
                    f"store cannot be written: {self.folder} ({error}); what is in it stays, run "
                    "the command again to go on"
                ) from None
            raise


def _check_utf8(folder: Path) -> None:
    try:
        str(folder).encode()
    except UnicodeEncodeError:
        raise StoreError(
            f"the folder of a store must have a name in UTF-8, got {folder}; Parquet's files can "
            "be in no other, choose another folder"
        ) from None

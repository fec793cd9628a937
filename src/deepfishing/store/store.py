"""Features on disk, so that no image is computed twice.

A store is a folder that any Parquet reader can read:

`store.json`         how the features were made, by which version, when
`index.parquet`      one row per image: id, path, sha256, labels, status, error...
`x7/shard-*.parquet` one folder per factor, one row per content: sha256, x7, x7_norm
`errors/`            contents that cannot be used, and why: sha256, error

Features are keyed by content, so the same picture under two names is computed once and an
interrupted run finds its work again even without the index. A factor that is asked for later is a
folder more; what is there is never touched.
"""

from __future__ import annotations

import fcntl
import json
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from functools import cached_property
from pathlib import Path
from typing import Any
from urllib.parse import quote, unquote

import pyarrow as pa

from deepfishing import __version__
from deepfishing.errors import StoreError
from deepfishing.files import SEAL, replacing, sealed
from deepfishing.rank_one import Array
from deepfishing.store.factor_columns import encode
from deepfishing.store.frames import Frames
from deepfishing.store.index import Row, count_rows, read_index, write_index
from deepfishing.store.intact import check_shards
from deepfishing.store.journal import Journal, clear_leftovers, finish
from deepfishing.store.manifest import MANIFEST, find_store, read_manifest
from deepfishing.store.precision import CODECS, DEFAULT, Codec, check_precision
from deepfishing.store.reader import read_values
from deepfishing.store.shards import (
    MAX_BYTES,
    MAX_ROWS,
    PATTERN,
    Shards,
    read_table,
    write_shard,
)

FORMAT = 2
ERRORS = "errors"
SOURCE = "source"  # the setting that decides no number
UNSAID = {"head": "softmax", "scores": ""}  # by stores of version 0.1
UNSAID_PIXELS = {"oversampling": 2}
LOCK = ".lock"


class Store(Frames):
    """A folder of features, keyed by the content of the images.

    Parameters
    ----------
    folder : path
        Made if absent.
    settings : dict
        All that decides the values: network, weights, tau... A store made with other settings is
        refused, and the error says which one differs; `source`, which says where the network's
        files are, may differ. JSON values only, from `Settings.as_dict`.
    dtype : str, optional
        Precision on disk, one of `precision.CODECS`. A store that exists keeps its own; a new one
        is in int8 if nothing is said.

    Examples
    --------
    >>> import tempfile
    >>> import numpy as np
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     store = Store(folder, {"network": "toy"}, dtype="float32")
    ...     store.append(["k1", "k2"], {"x7": np.array([[3.0, 4.0], [0, 1]])})
    ...     print(store.missing(["k1", "k9"], ["x7"]), Store.open(folder).read(["k1"], "x7"))
    ['k9'] [[3. 4.]]
    """

    def __init__(
        self, folder: str | Path, settings: Mapping[str, Any], dtype: str | None = None
    ) -> None:
        self.folder = Path(folder)
        _check_utf8(self.folder)
        is_new = not (self.folder / MANIFEST).exists()
        theirs = {} if is_new else read_manifest(self.folder)["settings"]
        self.precision = check_precision(dtype or theirs.get("dtype", DEFAULT))
        self.settings = {**settings, "dtype": self.precision}
        self._moved = not is_new and self.settings.get(SOURCE) != theirs.get(SOURCE)
        self._shards: dict[str, Shards] = {}  # by factor, looked at when first asked for
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            if is_new:
                self._write_manifest()
        except OSError as error:
            raise StoreError(
                f"store cannot be made: {self.folder} ({error.strerror}); choose another folder"
            ) from None
        self._agree_on_settings()

    def __repr__(self) -> str:
        factors = self.factors() if self.folder.is_dir() else []
        return (
            f"Store({str(self.folder)!r}: {count_rows(self.folder):,} images, "
            f"{', '.join(factors) or 'no factors'} in {self.precision}, "
            f"of {self.settings.get('network')})"
        )

    @classmethod
    def open(cls, folder: str | Path) -> Store:
        """A store that is there, with the settings that it was made with.

        `folder` may also be one of `deepfish reproduce` with one store in it.
        """
        folder = find_store(Path(folder))
        settings = read_manifest(folder)["settings"]
        return cls(folder, settings, settings.get("dtype"))

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

    def errors(self) -> dict[str, str]:
        """Contents that cannot be used, and why."""
        check_shards(self.shards(ERRORS).files)
        tables = [read_table(path) for path in self.shards(ERRORS).files]
        columns = [(t.column("sha256").to_pylist(), t.column("error").to_pylist()) for t in tables]
        return {k: e for keys, errors in columns for k, e in zip(keys, errors, strict=True)}

    def missing(self, keys: Iterable[str], factors: Iterable[str]) -> list[str]:
        """The keys, each once and in order, that lack at least one of the factors."""
        once = dict.fromkeys(keys)
        lacking: set[str] = set()
        for factor in factors:
            lacking |= once.keys() - self.shards(factor).keys()
        return [key for key in once if key in lacking]

    def append(
        self,
        keys: Sequence[str],
        factors: Mapping[str, Array],
        errors: Mapping[str, str] | None = None,
    ) -> None:
        """Write factors (n, d) or (n, P, d) of n contents, and contents that cannot be used.

        All of it is written or nothing. What is there stays as it is.
        """
        there = {name: self.shards(name).keys() for name in (*factors, ERRORS)}
        with self._at_once() as journal:
            for name, table in self._tables(keys, factors, errors or {}, there):
                self.shards(name).add(table, journal)

    def append_part(
        self,
        keys: Sequence[str],
        factors: Mapping[str, Array],
        errors: Mapping[str, str],
        there: Mapping[str, Collection[str]],
    ) -> None:
        """The same for one of several processes that write for the one that is `writing`.

        `there` says which of the keys have a factor already, so that nobody else has to look. What
        is written twice, since a process died, is the same file under the same name.
        """
        with self._at_once(alone=False) as journal:
            for name, table in self._tables(keys, factors, errors, there):
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

    def read(self, keys: Sequence[str], factor: str) -> Array:
        """One factor of these images as float32, in the order of the keys: (n, d) or (n, P, d)."""
        shards = self.shards(factor)
        absent = [key for key in keys if key not in shards]
        if absent:
            raise StoreError(
                f"{factor} of {len(absent)} images is not in {self.folder}, first {absent[0]}"
            )
        return read_values(shards, keys, factor, self.codec)

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
            self._keep_source()
            yield
            self._clear_up()

    def _clear_up(self) -> None:
        self.look_again()
        with self._at_once():
            clear_leftovers(self.folder)

    def look_again(self) -> None:
        """Forget which features are there: another process may have written since."""
        self._shards.clear()

    def write_rows(self, rows: Iterable[Row]) -> None:
        """Replace the index."""
        write_index(self.folder, rows)

    def forget_errors(self, keys: Collection[str]) -> None:
        """Let contents that could not be used be tried again."""
        shards = self.shards(ERRORS)
        if any(key in shards for key in keys):
            with self._at_once() as journal:
                _compact(shards, shards.keys() - keys, journal)
            self.look_again()

    def compact(self, keep: Collection[str]) -> None:
        """Drop features and errors of all other contents; only shards that hold some change."""
        wanted = set(keep)
        stale = [
            shards
            for shards in map(self.shards, [*self.factors(), ERRORS])
            if not shards.keys() <= wanted
        ]
        if stale:
            with self._at_once() as journal:
                for shards in stale:
                    _compact(shards, wanted, journal)
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

    def _keep_source(self) -> None:
        """Remember where the network's files are now; nothing else of a manifest ever changes."""
        if self._moved and self.settings.get(SOURCE) is not None:
            facts = {k: v for k, v in read_manifest(self.folder).items() if k != SEAL}
            facts["settings"][SOURCE] = self.settings[SOURCE]
            with replacing(self.folder / MANIFEST) as partial:
                partial.write_text(_text(facts))
        self._moved = False

    def _write_manifest(self) -> None:
        facts = {
            "format": FORMAT,
            "version": __version__,
            "created": datetime.now(UTC).isoformat(timespec="seconds"),
            "settings": self.settings,
        }
        with (self.folder / LOCK).open("a") as file:
            fcntl.flock(
                file, fcntl.LOCK_EX
            )  # of two that make a store, the second takes the first's
            if not (self.folder / MANIFEST).exists():
                with replacing(self.folder / MANIFEST) as partial:
                    partial.write_text(_text(facts))

    def _agree_on_settings(self) -> None:
        theirs = read_manifest(self.folder)
        other = {"format": theirs["format"], **_completed({**UNSAID, **theirs["settings"]})}
        for name, value in {"format": FORMAT, **_completed(self.settings)}.items():
            if name != SOURCE and json.loads(json.dumps(value)) != other.get(name):
                raise StoreError(
                    f"store {self.folder} was made with {name} = {other.get(name)!r}, now it is "
                    f"{value!r}; choose another folder or the same {name}"
                )


def _completed(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Settings with what version 0.1 did not say of the pixels."""
    pixels = settings.get("preprocess")
    said = {"preprocess": {**UNSAID_PIXELS, **pixels}} if isinstance(pixels, dict) else {}
    return {**settings, **said}


def _text(facts: Mapping[str, Any]) -> str:
    return json.dumps(sealed(facts), indent=1, sort_keys=True) + "\n"


_ERRORS_SCHEMA = pa.schema([("sha256", pa.string()), ("error", pa.string())])


def _check_utf8(folder: Path) -> None:
    try:
        str(folder).encode()
    except UnicodeEncodeError:
        raise StoreError(
            f"the folder of a store must have a name in UTF-8, got {folder}; Parquet's files can "
            "be in no other, choose another folder"
        ) from None


def _compact(shards: Shards, keep: Collection[str], journal: Journal) -> None:
    """Drop all other rows; from sound shards only, or a damaged row would get a new checksum."""
    check_shards(shards.files_of(shards.keys() - set(keep)))
    shards.compact(keep, journal)

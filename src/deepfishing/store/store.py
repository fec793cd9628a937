"""Features on disk, so that no image is computed twice.

A store is a folder: `store.json` says how its features were made, `shard-*.parquet` hold them.
A row is one image: `sha256` of the file, `path` where it was first seen, and per factor a
fixed-size list of values divided by their l2 norm, with the norm beside it (`x7`, `x7_norm`).
A shard is written beside its place and renamed, so a crash loses at most the shard in work; a new
factor of an old image goes into a new shard. Any Parquet reader can read a store.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from deepfishing.errors import OptionError, StoreError
from deepfishing.files import replacing
from deepfishing.rank_one import Array, l2_norm

FORMAT = 1
MANIFEST = "store.json"


class Store:
    """A folder of features, keyed by the content of the images.

    Parameters
    ----------
    folder : path
        Made if absent.
    settings : dict
        All that decides the values: network, weights, tau... A store made with other settings is
        refused, and the error says which one differs. JSON values only.
    dtype : "float16" or "float32"
        Precision on disk.

    Examples
    --------
    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     store = Store(folder, {"network": "toy"}, dtype="float32")
    ...     store.append(["k1", "k2"], ["a.jpg", "b.jpg"], {"x7": np.array([[3.0, 4.0], [0, 1]])})
    ...     print(store.missing(["k1", "k9"], ["x7"]), store.read(["k1"], "x7"))
    ['k9'] [[3. 4.]]
    """

    def __init__(
        self, folder: str | Path, settings: Mapping[str, Any], dtype: str = "float16"
    ) -> None:
        if dtype not in ("float16", "float32"):
            raise OptionError(f"precision of a store must be float16 or float32, got {dtype!r}")
        self.folder = Path(folder)
        self.settings = {**settings, "dtype": dtype}
        self.dtype = np.dtype(dtype)
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            self._agree_on_settings()
        except OSError as error:
            raise StoreError(f"store cannot be made: {self.folder} ({error})") from None
        self._where: dict[str, dict[str, tuple[Path, int]]] = {}  # factor -> key -> place
        for shard in sorted(self.folder.glob("shard-*.parquet")):
            self._index(shard)

    def missing(self, keys: Iterable[str], factors: Iterable[str]) -> list[str]:
        """The keys, each once and in order, that lack at least one of the factors."""
        known = [self._where.get(factor, {}) for factor in factors]
        return [k for k in dict.fromkeys(keys) if not all(k in where for where in known)]

    def append(
        self, keys: Sequence[str], paths: Sequence[str], factors: Mapping[str, Array]
    ) -> None:
        """Write one shard: factors (n, d) or (n, P, d) of n images."""
        columns: dict[str, Any] = {"sha256": pa.array(keys), "path": pa.array(paths)}
        fields = [pa.field("sha256", pa.string()), pa.field("path", pa.string())]
        for name, values in factors.items():
            flat = values.reshape(len(keys), -1)
            norm = l2_norm(flat)
            if not np.isfinite(norm).all():
                bad = int(np.flatnonzero(~np.isfinite(norm))[0])
                raise StoreError(f"{name} must be finite, got NaN or infinity for {paths[bad]}")
            unit = (flat / np.where(norm > 0, norm, 1)[:, None]).astype(self.dtype)
            columns[name] = pa.FixedSizeListArray.from_arrays(unit.ravel(), flat.shape[1])
            columns[f"{name}_norm"] = pa.array(norm, pa.float64())
            shape = {"shape": json.dumps(values.shape[1:])}
            fields += [
                pa.field(name, columns[name].type, metadata=shape),
                pa.field(f"{name}_norm", pa.float64()),
            ]
        table = pa.table(list(columns.values()), schema=pa.schema(fields))
        shard = self.folder / f"shard-{self._next_number():06d}.parquet"
        try:
            with replacing(shard) as partial:
                pq.write_table(table, partial, compression="none", use_dictionary=False)
        except OSError as error:
            raise StoreError(
                f"shard cannot be written: {shard} ({error}); what is in the store stays, run "
                "the command again to go on"
            ) from None
        self._index(shard)

    def read(self, keys: Sequence[str], factor: str) -> Array:
        """One factor of these images as float32, in the order of the keys: (n, d) or (n, P, d)."""
        where = self._where.get(factor, {})
        absent = [key for key in keys if key not in where]
        if absent:
            raise StoreError(
                f"{factor} of {len(absent)} images is not in {self.folder}, first {absent[0]}"
            )
        by_shard: dict[Path, list[tuple[int, int]]] = {}
        for position, key in enumerate(keys):
            shard, row = where[key]
            by_shard.setdefault(shard, []).append((position, row))
        out: Array | None = None
        for shard, places in by_shard.items():
            values = self._read_column(shard, factor)
            if out is None:
                out = np.empty((len(keys), *values.shape[1:]), dtype=np.float32)
            to, rows = np.array(places).T
            out[to] = values[rows]
        if out is None:
            raise StoreError(f"nothing to read: no keys were given for {factor}")
        return out

    def _read_column(self, shard: Path, factor: str) -> Array:
        """All rows of one factor in a shard, multiplied by their norms again."""
        try:
            table = pq.read_table(shard, columns=[factor, f"{factor}_norm"])
            shape = json.loads(table.schema.field(factor).metadata[b"shape"])
            values = table.column(factor).combine_chunks().flatten().to_numpy(zero_copy_only=False)
            norm = table.column(f"{factor}_norm").to_numpy().astype(np.float32)
        except (OSError, pa.ArrowException) as error:
            raise _damaged(shard, error) from None
        rows: Array = values.reshape(len(norm), -1).astype(np.float32) * norm[:, None]
        return rows.reshape(len(norm), *shape)

    def _index(self, shard: Path) -> None:
        try:
            keys = pq.read_table(shard, columns=["sha256"]).column(0).to_pylist()
            names = pq.read_schema(shard).names
        except (OSError, pa.ArrowException) as error:
            raise _damaged(shard, error) from None
        for factor in names:
            if f"{factor}_norm" in names:
                places = self._where.setdefault(factor, {})
                places.update((key, (shard, row)) for row, key in enumerate(keys))

    def _next_number(self) -> int:
        numbers = [int(p.stem.split("-")[1]) for p in self.folder.glob("shard-*.parquet")]
        return max(numbers, default=-1) + 1

    def _agree_on_settings(self) -> None:
        manifest = self.folder / MANIFEST
        mine = {"format": FORMAT, "settings": self.settings}
        if not manifest.exists():
            with replacing(manifest) as partial:
                partial.write_text(json.dumps(mine, indent=1, sort_keys=True) + "\n")
            return
        try:
            theirs = json.loads(manifest.read_text())
            other = {"format": theirs["format"], **theirs["settings"]}
        except (ValueError, KeyError, TypeError):
            raise StoreError(
                f"store manifest cannot be read: {manifest}; choose another folder"
            ) from None
        for name, value in {"format": FORMAT, **self.settings}.items():
            if json.loads(json.dumps(value)) != other.get(name):
                raise StoreError(
                    f"store {self.folder} was made with {name} = {other.get(name)!r}, now it is "
                    f"{value!r}; choose another folder or the same {name}"
                )


def _damaged(shard: Path, error: Exception) -> StoreError:
    reason = str(error).splitlines()[0] if str(error) else type(error).__name__
    return StoreError(f"shard is damaged: {shard} ({reason}); delete it to compute it again")

"""Before the work: a small cost model, from rates to core-hours, time, bytes, files and memory.

Comes in: a number of images, rates, and where the work is to be done. Goes out: a `Plan`.

    time = start + N' c / C + N h / (W C) + N i

with N images, W workers of C cores, c core-seconds to compute an image, h to hash it, and i
seconds of the one process that keeps the index. N' is how many images the busiest worker has: on
Ray whole chunks of 512, on one machine all of them. That storage keeps up, and that cores do not
slow each other down more than they did when c was measured, is assumed.
"""

from __future__ import annotations

import math
import re
import tempfile
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np

from deepfishing.errors import OptionError, did_you_mean
from deepfishing.gradients.to_store import SHARD_IMAGES
from deepfishing.machine import memory as machine_memory
from deepfishing.planning.rates import Rates
from deepfishing.store import Row, Store
from deepfishing.store.index import INDEX, OK
from deepfishing.store.precision import CODECS
from deepfishing.store.shards import MAX_BYTES

_UNITS = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "b": 10**9, "t": 10**12}
MOST = 10**15  # images; more is a slip of the keyboard
SHARE = 1 / 2  # of a machine's memory, that the index of one store may take
FEW_VALUES, INDEX_ROWS = 1_000_000, 2048  # that are written to find out what a row takes


@dataclass(frozen=True)
class Run:
    """The work at one place; memory is of each worker, and of the process that keeps the index."""

    workers: int
    cores: int  # of each
    core_hours: float
    wall_seconds: float
    images_per_second: float
    written_per_second: float  # bytes of all workers together
    worker_bytes: int
    index_bytes: int


@dataclass(frozen=True)
class Plan:
    """What features of so many images cost; `ray` is None unless it was asked for.

    `stores` is how many stores it takes so that the index of each fits into this machine's memory.
    """

    images: int
    network: str
    features: str
    precision: str
    bytes: int
    bytes_per_image: float
    factor_bytes: dict[str, int]
    index_file_bytes: int
    shards: int
    shard_images: int
    stores: int
    local: Run
    ray: Run | None
    rates: Rates


def make_plan(
    images: int,
    rates: Rates,
    precision: str = "int8",
    cores: int | None = None,
    workers: int | None = None,
) -> Plan:
    """Say what features of so many different, usable images cost.

    Parameters
    ----------
    images : int
    rates : Rates
    precision : str
        On disk.
    cores : int, optional
        Of each worker on Ray, or of the machine if only that is planned; else those of the rates.
    workers : int, optional
        Workers on Ray; without them only the machine is planned.

    Examples
    --------
    >>> rates = Rates("vgg16", "x7", {"x7": (4096,)}, core_seconds=0.1, hash_seconds=0.001,
    ...               index_seconds=1e-4, start_seconds=5.0, worker_bytes=2**30, index_bytes=2000,
    ...               cores=2)
    >>> plan = make_plan(1_000_000, rates, workers=100, cores=8)
    >>> round(plan.local.wall_seconds), round(plan.ray.wall_seconds), plan.shards
    (50605, 234, 1954)
    """
    check_counts(images=images, cores=cores, workers=workers)
    disk = footprint(images, rates.factors, precision)
    each, index = cores or rates.cores, round(images * rates.index_bytes)

    def run(workers: int, cores: int, busiest: int) -> Run:
        shared = images * rates.hash_seconds / (workers * cores) + images * rates.index_seconds
        wall = rates.start_seconds + busiest * rates.core_seconds / cores + shared
        busy = images * (rates.core_seconds + rates.hash_seconds + rates.index_seconds)
        hours = (busy + workers * cores * rates.start_seconds) / 3600
        speed = (images / wall, disk.bytes / wall)
        return Run(workers, cores, hours, wall, *speed, rates.worker_bytes, index)

    ray = None
    if workers is not None:
        chunks = math.ceil(images / SHARD_IMAGES)
        ray = run(workers, each, min(images, math.ceil(chunks / workers) * SHARD_IMAGES))
    return Plan(
        images=images,
        network=rates.network,
        features=rates.features,
        precision=precision,
        bytes=disk.bytes,
        bytes_per_image=round(disk.bytes / images, 1),
        factor_bytes=disk.factors,
        index_file_bytes=disk.index,
        shards=disk.shards,
        shard_images=SHARD_IMAGES,
        stores=max(1, math.ceil(images * rates.index_bytes / (SHARE * machine_memory()))),
        local=run(1, each if workers is None else rates.cores, images),
        ray=ray,
        rates=rates,
    )


def check_counts(**counts: int | None) -> None:
    """Refuse a count below 1."""
    for name, value in counts.items():
        if value is not None and value < 1:
            raise OptionError(f"{name} must be at least 1, got {value}")


def parse_count(text: str) -> int:
    """How many images a text means.

    Examples
    --------
    >>> parse_count("1e9"), parse_count("2.5M"), parse_count("10,000"), parse_count("3k")
    (1000000000, 2500000, 10000, 3000)
    """
    plain = re.sub(r"(?<=\d)[,_](?=\d{3})", "", text.strip().lower())
    match = re.fullmatch(r"(\d+(?:\.\d+)?(?:e\+?\d{1,2})?)\s*([kmgbt]?)", plain)
    count = round(float(match[1]) * _UNITS[match[2]], 3) if match else 0.0
    if not 1 <= count <= MOST or count != int(count):
        raise OptionError(
            f"images must be a whole number from 1 to 1e15, such as 5000, 1e9 or 10M, got {text!r}"
        )
    return int(count)


@dataclass(frozen=True)
class Footprint:
    """What a store takes on disk: bytes of each factor and of the index, files of all factors."""

    factors: dict[str, int]
    index: int
    shards: int

    @property
    def bytes(self) -> int:
        """All of it."""
        return sum(self.factors.values()) + self.index


def footprint(
    images: int, factors: Mapping[str, tuple[int, ...]], precision: str = "int8"
) -> Footprint:
    """Bytes and files of a store of so many different images with factors of these shapes.

    Nothing here knows the file format: a few rows are written by the store itself and the rest is
    counted up, since shards are not compressed and each row takes the same room.

    Examples
    --------
    >>> small = footprint(1000, {"x7": (1280,), "delta8": (1000,)})
    >>> small.shards, round(small.factors["x7"] / 1000, -1)
    (4, 1360.0)
    """
    if precision not in CODECS:
        raise OptionError(
            f"precision must be one that extraction writes, {', '.join(CODECS)}, got {precision!r}"
            f"{did_you_mean(precision, CODECS)}"
        )
    sizes, shards = {}, 0
    with tempfile.TemporaryDirectory() as folder:
        store = Store(folder, {}, precision)
        for name, shape in factors.items():
            fixed, row = _factor_bytes(store, name, shape)
            in_file = max(1, min(SHARD_IMAGES, int(MAX_BYTES // row)))
            whole, rest = divmod(images, SHARD_IMAGES)
            files = whole * math.ceil(SHARD_IMAGES / in_file) + math.ceil(rest / in_file)
            sizes[name] = round(files * fixed + images * row)
            shards += files
        random, more = np.random.default_rng(0), max(0, images - INDEX_ROWS) / INDEX_ROWS
        index = _index_bytes(store, min(images, INDEX_ROWS), factors, random)
        if more:
            index += round(more * (_index_bytes(store, 2 * INDEX_ROWS, factors, random) - index))
    return Footprint(sizes, index, shards)


def _factor_bytes(store: Store, name: str, shape: tuple[int, ...]) -> tuple[float, float]:
    """Bytes of a shard without rows, and of each row, from two that are written."""
    n = max(1, min(SHARD_IMAGES // 2, FEW_VALUES // math.prod(shape)))
    values = np.random.default_rng(0).standard_normal((2 * n, *shape), dtype=np.float32)
    sizes = [0]
    for rows in (n, 2 * n):
        store.append([f"{rows:032}{row:032}" for row in range(rows)], {name: values[:rows]})
        sizes.append(sum(path.stat().st_size for path in store.shards_folder(name).iterdir()))
    first, second = sizes[1], sizes[2] - sizes[1]
    return 2 * first - second, (second - first) / n


def _index_bytes(
    store: Store, images: int, factors: Iterable[str], random: np.random.Generator
) -> int:
    """Bytes of the index of so many images, if paths are of usual length."""
    rows = []
    for size, stamp in random.integers((1 << 20, 1 << 60), size=(images, 2)).tolist():
        id_ = f"{random.bytes(2).hex()}/{random.bytes(5).hex()}.jpg"
        key = random.bytes(32).hex()
        rows.append(Row(id_, f"photos/{id_}", key, size, stamp, None, OK, None, tuple(factors)))
    store.write_rows(rows)
    return (store.folder / INDEX).stat().st_size

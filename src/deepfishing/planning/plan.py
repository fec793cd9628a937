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
from dataclasses import asdict, dataclass
from typing import Any

from deepfishing.errors import OptionError
from deepfishing.gradients.to_store import SHARD_IMAGES
from deepfishing.machine import memory as machine_memory
from deepfishing.planning.footprint import Footprint, footprint
from deepfishing.planning.rates import Rates

_UNITS = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "b": 10**9, "t": 10**12}
MOST = 10**15  # images; more is a slip of the keyboard

# Of a machine's memory, that the index of a store may take before it is time for a second store.
SHARE = 1 / 2


@dataclass(frozen=True)
class Run:
    """What the work is at one place.

    Parameters
    ----------
    workers, cores : int
        Processes, and cores of each.
    core_hours : float
        Of all cores, while they are busy.
    wall_seconds : float
        From the beginning to the end.
    images_per_second : float
    written_per_second : float
        Bytes, of all workers together.
    worker_bytes, index_bytes : int
        Memory of each worker, and of the process that keeps the index.
    """

    workers: int
    cores: int
    core_hours: float
    wall_seconds: float
    images_per_second: float
    written_per_second: float
    worker_bytes: int
    index_bytes: int


@dataclass(frozen=True)
class Plan:
    """What features of so many images cost; `ray` is None unless it was asked for.

    `stores` is how many stores it takes so that the index of each fits into this machine's memory.
    """

    images: int
    precision: str
    disk: Footprint
    stores: int
    local: Run
    ray: Run | None
    rates: Rates

    def as_dict(self) -> dict[str, Any]:
        """The same as JSON has it."""
        return {
            "images": self.images,
            "network": self.rates.network,
            "features": self.rates.features,
            "precision": self.precision,
            "bytes": self.disk.bytes,
            "bytes_per_image": round(self.disk.bytes / self.images, 1),
            "factor_bytes": self.disk.factors,
            "index_file_bytes": self.disk.index,
            "shards": self.disk.shards,
            "shard_images": SHARD_IMAGES,
            "stores": self.stores,
            "local": asdict(self.local),
            "ray": None if self.ray is None else asdict(self.ray),
            "rates": asdict(self.rates),
        }


def make_plan(
    images: int,
    rates: Rates,
    precision: str = "int8",
    cores: int | None = None,
    workers: int | None = None,
) -> Plan:
    """Say what features of so many images cost.

    Parameters
    ----------
    images : int
        All different, and usable.
    rates : Rates
        Measured or given.
    precision : str
        On disk.
    cores : int, optional
        Of each worker on Ray, or of the machine if only that is planned; by default those that
        the rates were measured with.
    workers : int, optional
        Workers on Ray; without them only the machine is planned.

    Examples
    --------
    >>> rates = Rates("vgg16", "x7", {"x7": (4096,)}, core_seconds=0.1, hash_seconds=0.001,
    ...               index_seconds=1e-4, start_seconds=5.0, worker_bytes=2**30, index_bytes=2000,
    ...               cores=2)
    >>> plan = make_plan(1_000_000, rates, workers=100, cores=8)
    >>> round(plan.local.wall_seconds), round(plan.ray.wall_seconds), plan.disk.shards
    (50605, 234, 1954)
    """
    for name, value in (("images", images), ("cores", cores), ("workers", workers)):
        if value is not None and value < 1:
            raise OptionError(f"{name} must be at least 1, got {value}")
    disk = footprint(images, rates.factors, precision)
    each = cores or rates.cores
    here = each if workers is None else rates.cores
    index = images * rates.index_bytes
    return Plan(
        images=images,
        precision=precision,
        disk=disk,
        stores=max(1, math.ceil(index / (SHARE * machine_memory()))),
        local=_run(images, rates, disk, 1, here, images),
        ray=None if workers is None else _on_ray(images, rates, disk, workers, each),
        rates=rates,
    )


def parse_count(text: str) -> int:
    """How many images a text means.

    Examples
    --------
    >>> parse_count("1e9"), parse_count("2.5M"), parse_count("10,000"), parse_count("3k")
    (1000000000, 2500000, 10000, 3000)
    >>> parse_count("many")
    Traceback (most recent call last):
    deepfishing.errors.OptionError: images must be a whole number from 1 to 1e15, such as 5000, 1e9
        or 10M, got 'many'
    """
    match = re.fullmatch(r"(\d+(?:\.\d+)?(?:e\+?\d{1,2})?)\s*([kmgbt]?)", _plain(text))
    count = round(float(match[1]) * _UNITS[match[2]], 3) if match else 0.0
    if not 1 <= count <= MOST or count != int(count):
        raise OptionError(
            f"images must be a whole number from 1 to 1e15, such as 5000, 1e9 or 10M, got {text!r}"
        )
    return int(count)


def _plain(text: str) -> str:
    return re.sub(r"(?<=\d)[,_](?=\d{3})", "", text.strip().lower())


def _on_ray(images: int, rates: Rates, disk: Footprint, workers: int, cores: int) -> Run:
    chunks = math.ceil(images / SHARD_IMAGES)
    busiest = min(images, math.ceil(chunks / workers) * SHARD_IMAGES)
    return _run(images, rates, disk, workers, cores, busiest)


def _run(images: int, rates: Rates, disk: Footprint, workers: int, cores: int, busiest: int) -> Run:
    wall = (
        rates.start_seconds
        + busiest * rates.core_seconds / cores
        + images * rates.hash_seconds / (workers * cores)
        + images * rates.index_seconds
    )
    busy = images * (rates.core_seconds + rates.hash_seconds + rates.index_seconds)
    return Run(
        workers=workers,
        cores=cores,
        core_hours=(busy + workers * cores * rates.start_seconds) / 3600,
        wall_seconds=wall,
        images_per_second=images / wall,
        written_per_second=disk.bytes / wall,
        worker_bytes=rates.worker_bytes,
        index_bytes=round(images * rates.index_bytes),
    )

"""Before the work: what features of many images will cost, from rates of one image.

Comes in: a number of images, and `Rates`, measured on this machine or read from a JSON file. Goes
out: a `Plan` of core-hours, time, bytes, files and memory.

    time = start + N' c / C + N h / (W C) + N i

with N images, W workers of C cores, c core-seconds to compute an image, h to hash it, and i seconds
of the one process that keeps the index. N' is how many images the busiest worker has: on Ray whole
chunks of 512, on one machine all of them.
"""

from __future__ import annotations

import json
import math
import re
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, fields
from itertools import cycle, islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from deepfishing.core.features import needed_factors
from deepfishing.core.recipes import parse_recipes
from deepfishing.errors import DeepFishingError, ImageError, OptionError, explained
from deepfishing.extraction.options import Resources
from deepfishing.extraction.settings import Settings
from deepfishing.extraction.to_store import SHARD_IMAGES, Job, Local
from deepfishing.images.item import Item
from deepfishing.images.published import load_groceries
from deepfishing.images.sources import find_images
from deepfishing.networks.reference import RANDOM
from deepfishing.networks.zoo import find_weights, is_network_file, record
from deepfishing.store import Row, Store
from deepfishing.store.manifest import INDEX, OK
from deepfishing.store.shards import MAX_BYTES
from deepfishing.util import machine
from deepfishing.util.files import replacing

if TYPE_CHECKING:
    from deepfishing.networks.network import Network

Shapes = dict[str, tuple[int, ...]]  # of each factor

SECONDS = 4.0  # that the network is measured for
FIRST = 16  # images that say how many it takes
PICTURES, SIZE = 24, (500, 375)  # of the sample, if none is given: as photographs of PASCAL VOC
# Per image, of the one process that lists, compares and writes the index: `bookkeeping` at a
# million images in benchmarks/GROWTH.md, and for each factor more bytes.
INDEX_SECONDS, INDEX_BYTES, FACTOR_BYTES = 6e-5, 1800, 175
SHARE = 1 / 2  # of this machine's memory that the index of one store may take
FEW_VALUES, INDEX_ROWS = 1_000_000, 2048  # that are written to find out what a row takes
MOST, MOST_VALUES = 10**15, 10**8  # images or a rate, and values of a factor; more is a slip
_UNITS = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "b": 10**9, "t": 10**12}


@dataclass(frozen=True)
class Rates:
    """What one image costs, in core-seconds and bytes of memory, and where it was measured."""

    network: str  # as it was given
    features: str
    factors: Shapes
    core_seconds: float  # to decode an image, compute and write its factors
    hash_seconds: float  # to read an image and hash it
    index_seconds: float  # per image, of the one process that keeps the index
    start_seconds: float  # until a worker has its engine
    worker_bytes: int
    index_bytes: float  # per image, in the one process that keeps the index
    cores: int  # that were at work when this was measured
    measured: str = ""  # where and how; only for people

    def write(self, path: Path) -> None:
        """Keep them in a file, which `read` reads."""
        do = "; choose another file"
        cannot = explained(OptionError, f"rates cannot be written: {path}", do, OSError)
        with cannot, replacing(path) as partial:
            partial.write_text(json.dumps(asdict(self), indent=1) + "\n", encoding="utf-8")

    @classmethod
    def read(cls, path: Path) -> Rates | None:
        """The rates of a file, which people may have changed, or None if it does not exist."""
        try:
            found = json.loads(path.read_text(encoding="utf-8"))
        except FileNotFoundError:
            return None
        except (OSError, ValueError, RecursionError) as error:
            raise OptionError(f"rates cannot be read: {path} ({error}); measure again") from None
        known = {field.name for field in fields(cls)}
        found = found if isinstance(found, dict) else {}
        for name in sorted(known | found.keys()):
            if name not in known or not _is_sound(name, found.get(name, "")):
                raise OptionError(
                    f"{path} has no rates of `deepfish plan`: {name} = "
                    f"{json.dumps(found.get(name))[:60]}; add --measure to write it again"
                )
        shapes = {name: tuple(shape) for name, shape in found["factors"].items()}
        return cls(**{**found, "factors": shapes})


def _is_sound(name: str, value: Any) -> bool:
    if name in ("network", "features", "measured"):
        return isinstance(value, str) and (value != "" or name == "measured")
    if name == "factors":
        return isinstance(value, dict) and value != {} and all(map(_is_shape, value.values()))
    least = {"cores": 1, "core_seconds": 1e-12}.get(name, 0)
    kinds = (int,) if name == "cores" else (int, float)
    return type(value) in kinds and least <= value <= MOST  # which NaN is not


def _is_shape(shape: Any) -> bool:
    whole = isinstance(shape, list) and all(type(n) is int and n >= 1 for n in shape)
    return whole and shape != [] and math.prod(shape) <= MOST_VALUES


@dataclass(frozen=True)
class PlannedRun:
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
    """What features of so many images cost; `ray` is None unless it was asked for."""

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
    stores: int  # that it takes so that the index of each fits into this machine's memory
    local: PlannedRun
    ray: PlannedRun | None
    rates: Rates


def make_plan(
    images: int,
    rates: Rates,
    precision: str = "int8",
    cores: int | None = None,
    workers: int | None = None,
) -> Plan:
    """Say what features of so many different, usable images cost; on Ray too, if with workers.

    `cores` are those of each worker on Ray, or of the machine; by default those of the rates.
    """
    check_counts(images=images, cores=cores, workers=workers)
    factor_bytes, index_file, shards = footprint(images, rates.factors, precision)
    total, index = sum(factor_bytes.values()) + index_file, images * rates.index_bytes
    each = cores or rates.cores

    def run(workers: int, cores: int, busiest: int) -> PlannedRun:
        shared = images * rates.hash_seconds / (workers * cores) + images * rates.index_seconds
        wall = rates.start_seconds + busiest * rates.core_seconds / cores + shared
        busy = images * (rates.core_seconds + rates.hash_seconds + rates.index_seconds)
        hours = (busy + workers * cores * rates.start_seconds) / 3600
        speed = images / wall, total / wall
        return PlannedRun(workers, cores, hours, wall, *speed, rates.worker_bytes, round(index))

    ray = None
    if workers is not None:
        most = math.ceil(math.ceil(images / SHARD_IMAGES) / workers) * SHARD_IMAGES
        ray = run(workers, each, min(images, most))
    return Plan(
        images=images,
        network=rates.network,
        features=rates.features,
        precision=precision,
        bytes=total,
        bytes_per_image=round(total / images, 1),
        factor_bytes=factor_bytes,
        index_file_bytes=index_file,
        shards=shards,
        shard_images=SHARD_IMAGES,
        stores=max(1, math.ceil(index / (SHARE * machine.memory()))),
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
    """How many images a text means: 1e9, 2.5M, 10,000 or 3k."""
    plain = re.sub(r"(?<=\d)[,_](?=\d{3})", "", text.strip().lower())
    match = re.fullmatch(r"(\d+(?:\.\d+)?(?:e\+?\d{1,2})?)\s*([kmgbt]?)", plain)
    count = round(float(match[1]) * _UNITS[match[2]], 3) if match else 0.0
    if not 1 <= count <= MOST or count != int(count):
        raise OptionError(
            f"images must be a whole number from 1 to 1e15, such as 5000, 1e9 or 10M, got {text!r}"
        )
    return int(count)


def footprint(
    images: int, factors: Shapes, precision: str = "int8"
) -> tuple[dict[str, int], int, int]:
    """Bytes of each factor, bytes of the index, and how many shards a store of images has.

    Nothing here knows the file format: the store itself writes a shard or a part of it.
    """
    sizes, shards = {}, 0
    whole, rest = divmod(images, SHARD_IMAGES)
    with tempfile.TemporaryDirectory() as folder:
        store = Store(folder, {}, precision)
        for name, shape in factors.items():
            full, last = (_shard_bytes(store, name, n, shape) for n in (SHARD_IMAGES, rest))
            sizes[name] = round(whole * full + last)
            shards += whole * math.ceil(full / MAX_BYTES) + math.ceil(last / MAX_BYTES)
        random = np.random.default_rng(0)
        index = _index_bytes(store, min(images, INDEX_ROWS), tuple(factors), random)
        if images > INDEX_ROWS:
            more = _index_bytes(store, 2 * INDEX_ROWS, tuple(factors), random) - index
            index += round((images - INDEX_ROWS) / INDEX_ROWS * more)
    return sizes, index, shards


def _shard_bytes(store: Store, name: str, rows: int, shape: tuple[int, ...]) -> float:
    """Bytes of a shard with so many rows, of which a few are written if they are large."""
    n = max(1, min(rows, FEW_VALUES // math.prod(shape)))
    folder = store.shards_folder(name)
    before = set(folder.glob("*"))
    values = np.random.default_rng(0).standard_normal((n, *shape), dtype=np.float32)
    store.append([f"{rows:032}{row:032}" for row in range(n)], {name: values})
    written = sum(path.stat().st_size for path in set(folder.iterdir()) - before)
    return rows / n * written


def _index_bytes(
    store: Store, images: int, factors: tuple[str, ...], random: np.random.Generator
) -> int:
    """Bytes of the index of so many images, if paths are of usual length."""
    rows = []
    for size, stamp in random.integers((1 << 20, 1 << 60), size=(images, 2)).tolist():
        id_ = f"{random.bytes(2).hex()}/{random.bytes(5).hex()}.jpg"
        key = random.bytes(32).hex()
        rows.append(Row(id_, f"photos/{id_}", key, size, stamp, None, OK, None, factors))
    store.write_rows(rows)
    return (store.folder / INDEX).stat().st_size


def measure_rates(
    network: str,
    features: str = "all",
    weights: str | Path | None = None,
    engine: str = "auto",
    sample: str | None = None,
    seconds: float = SECONDS,
    tell: Callable[[str], None] = lambda line: None,
) -> Rates:
    """Run a network for about so many seconds on all cores and say what an image costs.

    `sample` names images to measure with; else JPEGs of 500 x 375 are made.
    """
    import torch

    tell(f"loading {network}")
    loaded, which = load(network, weights)
    with tempfile.TemporaryDirectory() as folder:
        items = find_images(sample) if sample else _pictures(Path(folder))
        tell(f"measuring {network} ({which} weights) for about {seconds:.0f} s")
        job = Job(
            store=Store(Path(folder, "store"), {}),
            factors=tuple(needed_factors(parse_recipes(features, loaded.layers))),
            settings=Settings.of(loaded),
            resources=Resources(engine=engine),
            network=loaded,
        )
        place = Local()
        extractor, start_seconds = _timed(job.extractor)
        batches, spent = _timed(lambda: list(extractor(_some(items, FIRST))))
        factors = {name: v.shape[1:] for batch in batches for name, v in batch.factors.items()}
        if not factors:
            raise ImageError(next(iter(batches[0].failures.values())))
        some = _some(items, max(FIRST, math.ceil(seconds / spent * FIRST)))
        keys = [f"{number:064x}" for number in range(len(some))]
        place.extractor, cores = extractor, torch.get_num_threads()
        parts, spent = _timed(lambda: list(place.compute(job, keys, some)))
        core_seconds = spent * cores / sum(part.images - len(part.errors) for part in parts)
        some = _some(items, max(512, min(len(items), 4096)))
        spent = _timed(lambda: list(place.hashes(some)))[1]
        hash_seconds = spent * machine.cores() / len(some)
    pictures = f"images of {sample}" if sample else f"JPEGs of {SIZE[0]} x {SIZE[1]}"
    return Rates(
        network=network,
        features=features,
        factors=factors,
        core_seconds=core_seconds,
        hash_seconds=hash_seconds,
        index_seconds=INDEX_SECONDS,
        start_seconds=start_seconds,
        worker_bytes=machine.peak_memory(),
        index_bytes=INDEX_BYTES + FACTOR_BYTES * len(factors),
        cores=cores,
        measured=f"{pictures}, {which} weights, engine {engine}, {machine.describe()}",
    )


def _timed(work: Callable[[], Any]) -> tuple[Any, float]:
    started = time.perf_counter()
    return work(), time.perf_counter() - started


def _some(items: Sequence[Item], n: int) -> list[Item]:
    """So many of the images, the first ones again if there are fewer."""
    return list(islice(cycle(items), n))


def load(name: str, weights: str | Path | None) -> tuple[Network, str]:
    """The network to measure, and which weights it has: given, its own, published or random."""
    from deepfishing.networks.load import load_network

    if weights is not None:
        return load_network(name, weights), RANDOM if str(weights) == RANDOM else "given"
    if is_network_file(name):
        try:
            return load_network(name), "its own"
        except OptionError:  # an .onnx file that does not say its mean, which costs nothing
            return load_network(name, preprocess="imagenet"), "its own"
    try:
        find_weights(record(name))
        return load_network(name), "published"
    except DeepFishingError:
        return load_network(name, RANDOM), RANDOM  # also for timm:NAME, which would be downloaded


def _pictures(folder: Path) -> list[Item]:
    """JPEGs as large as usual photographs of a data set, made from the embedded ones."""
    from PIL import Image

    items = []
    for number, path in enumerate(load_groceries(folder, n_train=PICTURES, n_test=1).train.paths):
        picture = folder / f"{number}.jpg"
        with Image.open(path) as photo:
            photo.resize(SIZE).save(picture, quality=90)
        items.append(Item(picture.name, picture))
    return items

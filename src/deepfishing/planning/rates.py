"""Before the work: what one image costs, measured on this machine or read from a file.

Comes in: a network and features, and if you like some of your own images. Goes out: `Rates`, in a
JSON file if asked for, so that they can be measured on one machine and used on another. They are of
the whole way of an image: reading, decoding, the network forward and backward, and writing.
"""

from __future__ import annotations

import itertools
import json
import math
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from deepfishing.errors import (
    ImageError,
    MissingDependencyError,
    NetworkError,
    OptionError,
    WeightsError,
)
from deepfishing.features import needed_factors
from deepfishing.files import replacing
from deepfishing.gradients.to_store import Local, Work
from deepfishing.images.groceries import load_groceries
from deepfishing.images.item import Item
from deepfishing.images.sources import find_images
from deepfishing.machine import cores as machine_cores
from deepfishing.machine import describe, peak_memory
from deepfishing.networks.reference import RANDOM
from deepfishing.networks.zoo import find_weights, is_network_file, record
from deepfishing.recipes import parse_recipes
from deepfishing.store import Store

if TYPE_CHECKING:
    from deepfishing.gradients.extract import Extractor
    from deepfishing.networks.network import Network

SECONDS = 4.0  # that the network is measured for
FIRST = 16  # images that say how many it takes
PICTURES, SIZE = 24, (500, 375)  # of the sample, if none is given: as photographs of PASCAL VOC
# Per image, of the one process that lists, compares and writes the index: `bookkeeping` at a
# million images in benchmarks/GROWTH.md, and for each factor more bytes.
INDEX_SECONDS, INDEX_BYTES, FACTOR_BYTES = 6e-5, 1800, 175
MOST, MOST_VALUES = 1e15, 10**8  # of a rate, and of a factor; more is a slip of the keyboard


@dataclass(frozen=True)
class Rates:
    """What one image costs, in core-seconds and bytes of memory, and where it was measured."""

    network: str  # as it was given
    features: str
    factors: dict[str, tuple[int, ...]]  # the shape of each
    core_seconds: float  # to decode an image, compute and write its factors
    hash_seconds: float  # to read an image and hash it
    index_seconds: float  # per image, of the one process that keeps the index
    start_seconds: float  # until a worker has its engine
    worker_bytes: int
    index_bytes: float  # per image, of the one process that keeps the index
    cores: int  # that were at work when this was measured
    measured: str = ""  # where and how; only for people

    def write(self, path: Path) -> None:
        """Keep them in a file."""
        try:
            with replacing(path) as partial:
                partial.write_text(json.dumps(asdict(self), indent=1) + "\n")
        except OSError as error:
            raise OptionError(
                f"rates cannot be written: {path} ({error.strerror}); choose another file"
            ) from None

    @classmethod
    def read(cls, path: Path) -> Rates | None:
        """Rates of a file that `write` left, or None if it does not exist."""
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

    Network, features, weights and engine are as for `extract`. Without `weights` they are the
    published ones if they are here, and else random ones, which take the same time. `sample` names
    images to measure with; else JPEGs of 500 x 375 are made. `tell` is told in a line what is done.
    """
    from deepfishing.gradients.extract import Extractor
    from deepfishing.gradients.resources import Resources

    loaded, which = _load(network, weights, tell)
    factors = needed_factors(parse_recipes(features, loaded.layers))
    with tempfile.TemporaryDirectory() as folder:
        items = find_images(sample) if sample else _pictures(Path(folder))
        tell(f"measuring {network} ({which} weights) for about {seconds:.0f} s")
        started = time.perf_counter()
        extractor = Extractor(loaded, factors, resources=Resources(engine=engine))
        start = time.perf_counter() - started
        shapes, core_seconds, cores = _compute_rate(extractor, items, seconds, Path(folder))
        some = list(itertools.islice(itertools.cycle(items), max(512, min(len(items), 4096))))
        started = time.perf_counter()
        list(Local().hashes(some))
        hash_seconds = (time.perf_counter() - started) * machine_cores() / len(some)
    pictures = f"images of {sample}" if sample else f"JPEGs of {SIZE[0]} x {SIZE[1]}"
    return Rates(
        network=network,
        features=features,
        factors=shapes,
        core_seconds=core_seconds,
        hash_seconds=hash_seconds,
        index_seconds=INDEX_SECONDS,
        start_seconds=start,
        worker_bytes=peak_memory(),
        index_bytes=INDEX_BYTES + FACTOR_BYTES * len(factors),
        cores=cores,
        measured=f"{pictures}, {which} weights, engine {engine}, {describe()}",
    )


def _load(
    name: str, weights: str | Path | None, tell: Callable[[str], None]
) -> tuple[Network, str]:
    """The network, and whether its weights are `published`, `given` or `random`."""
    from deepfishing.networks.load import load_network

    tell(f"loading {name}")
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
    except (NetworkError, MissingDependencyError, WeightsError):
        return load_network(name, RANDOM), RANDOM  # also for timm:NAME, which would be downloaded


def _compute_rate(
    extractor: Extractor, items: Sequence[Item], seconds: float, folder: Path
) -> tuple[dict[str, tuple[int, ...]], float, int]:
    """Shapes of the factors, core-seconds per image, and how many cores were at work."""
    import torch

    store, written = Store(folder / "store", {}), itertools.count()
    shapes: dict[str, tuple[int, ...]] = {}

    def run(n: int) -> tuple[int, float]:
        """Images that could be used, and seconds."""
        some = list(itertools.islice(itertools.cycle(items), n))
        keys = [f"{next(written):064x}" for _ in some]
        work, good = Work(store.append), 0
        started = time.perf_counter()
        for batch in extractor(some):
            work.add(batch, keys, some)
            good += len(batch.indices)
            shapes.update({name: values.shape[1:] for name, values in batch.factors.items()})
            if not good:
                raise ImageError(next(iter(batch.failures.values())))
        work.flush()
        return good, time.perf_counter() - started

    good, spent = run(FIRST)
    good, spent = run(max(FIRST, math.ceil(seconds / spent * good)))  # the first filled caches
    while spent < seconds:
        more, took = run(max(FIRST, math.ceil((seconds - spent) / spent * good)))
        good, spent = good + more, spent + took
    cores = torch.get_num_threads()
    return shapes, spent * cores / good, cores


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

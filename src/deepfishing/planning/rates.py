"""Before the work: how long an image takes, measured on this machine or given.

Comes in: a network and features, and if you like some of your own images. Goes out: `Rates`, which
a JSON file holds, too, so that they can be measured on one machine and used on another, or be
changed by hand. They are of the whole way of an image: reading, decoding, the network forward and
backward, and writing.
"""

from __future__ import annotations

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
    did_you_mean,
)
from deepfishing.features import needed_factors
from deepfishing.files import replacing
from deepfishing.images.groceries import load_groceries
from deepfishing.images.item import Item
from deepfishing.images.sources import find_images
from deepfishing.machine import cores as machine_cores
from deepfishing.machine import describe, peak_memory
from deepfishing.networks.reference import RANDOM
from deepfishing.networks.zoo import find_weights, record
from deepfishing.planning.bookkeeping import bookkeeping
from deepfishing.recipes import parse_recipes

if TYPE_CHECKING:
    from deepfishing.gradients.extract import Extractor
    from deepfishing.networks.network import Network

SECONDS = 4.0  # that the network is measured for
FIRST = 16  # images that say how many it takes
PICTURES, SIZE = 24, (500, 375)  # of the sample, if none is given: as photographs of PASCAL VOC

# Above this a rate, or the numbers of a factor, are a slip of the keyboard.
MOST, MOST_VALUES = 1e15, 10**8


@dataclass(frozen=True)
class Rates:
    """What one image costs.

    Parameters
    ----------
    network, features : str
        What they were measured for, as it was given.
    factors : dict
        The shape of each factor for one image.
    core_seconds : float
        Of one core, to decode an image, compute and write its factors.
    hash_seconds : float
        Of one core, to read an image and hash it.
    index_seconds : float
        Of the one process that keeps the index, an image.
    start_seconds : float
        Until a worker has its engine.
    worker_bytes : int
        Memory of a worker.
    index_bytes : float
        Memory of the process that keeps the index, an image.
    cores : int
        That were at work when this was measured.
    measured : str
        Where and how; only for people.
    """

    network: str
    features: str
    factors: dict[str, tuple[int, ...]]
    core_seconds: float
    hash_seconds: float
    index_seconds: float
    start_seconds: float
    worker_bytes: int
    index_bytes: float
    cores: int
    measured: str = ""

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
        """Rates of a file, None if there is none; one that `write` would not leave is an error."""
        try:
            found = json.loads(path.read_text(encoding="utf-8"))
        except FileNotFoundError:
            return None
        except OSError as error:
            raise OptionError(f"rates cannot be read: {path} ({error.strerror})") from None
        except (ValueError, RecursionError) as error:
            raise _unfit(path, f"no JSON ({error})") from None
        if not isinstance(found, dict):
            raise _unfit(path, type(found).__name__)
        names = [field.name for field in fields(cls)]
        for name in found:
            if name not in names:
                raise _unfit(path, f"the key {name!r}{did_you_mean(name, names)}")
        for name in names[:-1]:
            if not _is_sound(name, found.get(name)):
                raise _unfit(path, f"{name} = {json.dumps(found.get(name))[:60]}")
        shapes = {name: tuple(shape) for name, shape in found["factors"].items()}
        return cls(**{**found, "factors": shapes, "measured": str(found.get("measured", ""))})


def measure_rates(
    network: str,
    features: str = "all",
    weights: str | Path | None = None,
    engine: str = "auto",
    sample: str | None = None,
    seconds: float = SECONDS,
    tell: Callable[[str], None] = lambda line: None,
) -> Rates:
    """Run a network for some seconds on all cores and say what an image costs.

    Parameters
    ----------
    network : str
        As for `load_network`.
    features : str
        As for `deepfish extract`.
    weights : path or "random", optional
        Without them the published ones if they are here, and else random ones: they take the same
        time.
    engine : str
        As for `extract`.
    sample : str, optional
        Images to measure with, as for `find_images`; else JPEGs of 500 x 375 that are made.
    seconds : float
        How long to measure, about.
    tell : callable
        Told in a line what is done.
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
        hash_seconds = _hash_rate(items)
    index_seconds, index_bytes = bookkeeping(len(factors))
    pictures = f"images of {sample}" if sample else f"JPEGs of {SIZE[0]} x {SIZE[1]}"
    return Rates(
        network=network,
        features=features,
        factors=shapes,
        core_seconds=core_seconds,
        hash_seconds=hash_seconds,
        index_seconds=index_seconds,
        start_seconds=start,
        worker_bytes=peak_memory(),
        index_bytes=index_bytes,
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
    if name.endswith(".caffemodel"):
        return load_network(name), "its own"
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

    from deepfishing.gradients.to_store import Work
    from deepfishing.store import Store

    store = Store(folder / "store", {})
    shapes: dict[str, tuple[int, ...]] = {}
    written = 0

    def run(n: int) -> tuple[int, float]:
        """Images that could be used, and seconds."""
        nonlocal written
        some = [items[number % len(items)] for number in range(n)]
        keys = [f"{written + number:064x}" for number in range(n)]
        written += n
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

    cores = torch.get_num_threads()
    good, spent = run(FIRST)
    size = max(FIRST, math.ceil(seconds / spent * good))
    good, spent = run(size)  # the first one was slow: it filled caches
    while spent < seconds:
        more, took = run(max(FIRST, math.ceil((seconds - spent) / spent * good)))
        good, spent = good + more, spent + took
    return shapes, spent * cores / good, cores


def _hash_rate(items: Sequence[Item]) -> float:
    """Core-seconds to read and hash an image, as often as it takes to tell."""
    from deepfishing.gradients.to_store import Local

    some = [items[number % len(items)] for number in range(max(512, len(items)))][:4096]
    started = time.perf_counter()
    list(Local().hashes(some))
    return (time.perf_counter() - started) * machine_cores() / len(some)


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
    if name in ("network", "features"):
        return isinstance(value, str) and bool(value)
    if name == "factors":
        return (
            isinstance(value, dict)
            and bool(value)
            and all(isinstance(shape, list) and _is_shape(shape) for shape in value.values())
        )
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    if name == "cores":
        return isinstance(value, int) and value >= 1
    least = 0 if name != "core_seconds" else 1e-12
    return least <= value <= MOST  # which NaN is not


def _is_shape(shape: list[Any]) -> bool:
    whole = bool(shape) and all(type(n) is int and n >= 1 for n in shape)
    return whole and math.prod(shape) <= MOST_VALUES


def _unfit(path: Path, got: str) -> OptionError:
    return OptionError(
        f"rates must be a file that `deepfish plan --rates FILE --measure` writes, got {got} in "
        f"{path}; measure them again"
    )

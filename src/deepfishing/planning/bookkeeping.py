"""Before the work: what one process does for every image of a run, whoever computes the factors.

Comes in: how many factors there are. Goes out: seconds and bytes of memory per image of listing,
comparing and writing the index. That is little beside a network on one machine, but it is all in
one process: with many workers it is what limits a run. It is measured by a real run of
`extract_to_store` whose images and factors are stand-ins.
"""

from __future__ import annotations

import hashlib
import tempfile
import time
import tracemalloc
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from deepfishing.features import Factor
from deepfishing.gradients.to_store import SHARD_IMAGES, Done, Hashed, Job, extract_to_store
from deepfishing.images.item import Item, Member
from deepfishing.networks.reference import NetworkRef
from deepfishing.networks.zoo import IMAGENET
from deepfishing.rank_one import Array
from deepfishing.settings import Settings
from deepfishing.store import Store

# a stand-in computes without a network
_NO_NETWORK = Settings(
    network=NetworkRef(name="", weights_sha256="", layers={}, preprocess=IMAGENET)
)
TIMED, TRACED = 8192, (1024, 4096)  # images of the runs that are measured


@dataclass
class StandIn:
    """A place for `extract_to_store` that reads no image and asks no network.

    Parameters
    ----------
    values : callable
        Gives the factors of the images from one number up to another.
    seconds : float
        What making and writing these factors took, so that it can be taken off.

    Examples
    --------
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     store, place = Store(folder, {}), StandIn(lambda a, b: {"x7": np.ones((b - a, 1))})
    ...     run_stand_in(store, place, images=3, factors=[Factor("input", 8)])
    ...     print(len(store.rows()), store.read([stand_in_key(2)], "x7"))
    3 [[1.]]
    """

    values: Callable[[int, int], Mapping[str, Array]]
    seconds: float = field(default=0.0, init=False)

    def hashes(self, items: Sequence[Item]) -> Iterator[tuple[int, list[Hashed]]]:
        """See `Place`."""
        yield 0, [(stand_in_key(number), "") for number in range(len(items))]

    def compute(
        self, job: Job, keys: Sequence[str], items: Sequence[Item]
    ) -> Generator[Done, None, None]:
        """See `Place`."""
        started = time.perf_counter()
        for start in range(0, len(keys), SHARD_IMAGES):
            some = keys[start : start + SHARD_IMAGES]
            job.store.append(some, self.values(start, start + len(some)))
            yield Done(len(some), {})
        job.store.look_again()  # as after a run on Ray, where others have written
        self.seconds += time.perf_counter() - started


def stand_in_key(number: int) -> str:
    """The hash of an image, as random as that of a real one."""
    return hashlib.sha256(str(number).encode()).hexdigest()


def run_stand_in(store: Store, place: StandIn, images: int, factors: Sequence[Factor]) -> None:
    """Fill a store as a run over so many images would, which are members of an empty tar."""
    with tempfile.NamedTemporaryFile(suffix=".tar") as tar:
        items = [
            Item(f"{n // 1000:04}/{n:09}.jpg", Path(tar.name), None, Member(f"{n:09}.jpg", 0, 1))
            for n in range(images)
        ]
        extract_to_store(store, items, factors, settings=_NO_NETWORK, on=place)


def bookkeeping(factors: int) -> tuple[float, float]:
    """Seconds, and bytes of memory, for each image of a run with so many factors.

    Examples
    --------
    >>> seconds, memory = bookkeeping(factors=1)
    >>> 0 < seconds < 0.01, 100 < memory < 100_000
    (True, True)
    """
    made = [Factor("output", str(number)) for number in range(factors)]

    def values(start: int, stop: int) -> dict[str, Array]:
        return {factor.name: np.ones((stop - start, 1), dtype=np.float32) for factor in made}

    def run(images: int) -> float:
        with tempfile.TemporaryDirectory() as folder:
            place = StandIn(values)
            started = time.perf_counter()
            run_stand_in(Store(folder, {}), place, images, made)
            return time.perf_counter() - started - place.seconds

    seconds = run(TIMED) / TIMED
    few, many = (_peak(lambda n=n: run(n)) for n in TRACED)  # type: ignore[misc]
    return seconds, (many - few) / (TRACED[1] - TRACED[0])


def _peak(run: Callable[[], object]) -> int:
    """The most bytes of Python objects that a function has at a time."""
    tracemalloc.start()
    try:
        run()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()

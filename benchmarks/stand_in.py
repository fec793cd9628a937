"""A run of `extract_to_store` whose images and factors are stand-ins: what the one process costs.

It lists all images, compares them with the store and writes the index, whoever computes the
factors: little beside a network, but with many workers it is what limits a run.
"""

from __future__ import annotations

import hashlib
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from deepfishing.core.features import Factor
from deepfishing.core.rank_one import Array
from deepfishing.extraction.settings import Settings
from deepfishing.extraction.to_store import (
    SHARD_IMAGES,
    Done,
    Hashed,
    Local,
    StartExtractor,
    extract_to_store,
)
from deepfishing.images.item import Item, Member
from deepfishing.networks.reference import NetworkRef
from deepfishing.networks.zoo import IMAGENET
from deepfishing.store import Store


@dataclass
class StandIn(Local):
    """A place for `extract_to_store` that reads no image and asks no network.

    `values` gives the factors of the images from one number up to another; `seconds` is what making
    and writing these took, so that it can be taken off.
    """

    values: Callable[[int, int], Mapping[str, Array]]
    seconds: float = 0.0

    def hashes(self, items: Sequence[Item]) -> Iterator[Hashed]:
        """See `Local`."""
        yield from ((stand_in_key(number), "") for number in range(len(items)))

    def compute(
        self,
        store: Store,
        start: StartExtractor,
        keys: Sequence[str],
        items: Sequence[Item],
    ) -> Iterator[Done]:
        """See `Local`."""
        started = time.perf_counter()
        for first in range(0, len(keys), SHARD_IMAGES):
            some = keys[first : first + SHARD_IMAGES]
            store.append(some, self.values(first, first + len(some)))
            yield Done(len(some), {})
        store.look_again()  # as after a run on Ray, where others have written
        self.seconds += time.perf_counter() - started


def stand_in_key(number: int) -> str:
    """The hash of an image, as random as that of a real one."""
    return hashlib.sha256(str(number).encode()).hexdigest()


def run_stand_in(
    store: Store, place: StandIn, images: int, factors: Sequence[Factor]
) -> None:
    """Fill a store as a run over so many images would, which are members of an empty tar."""
    network = NetworkRef(name="", weights_sha256="", layers={}, preprocess=IMAGENET)
    with tempfile.NamedTemporaryFile(suffix=".tar") as tar:
        items = [
            Item(
                f"{n // 1000:04}/{n:09}.jpg",
                Path(tar.name),
                None,
                Member(f"{n:09}.jpg", 0, 1),
            )
            for n in range(images)
        ]
        extract_to_store(
            store, items, factors, settings=Settings(network=network), on=place
        )

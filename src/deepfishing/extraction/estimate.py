"""Estimate of the time, disk and memory of an extraction, from a sample of its images."""

from __future__ import annotations

import math
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from deepfishing.core.features import needed_factors
from deepfishing.core.recipes import parse_recipes
from deepfishing.errors import ImageError
from deepfishing.extraction.options import Resources, check_features
from deepfishing.extraction.outliers import is_unmeasured, measure_precision
from deepfishing.extraction.pipeline import resolve_settings
from deepfishing.extraction.to_store import start_extractor, write_batches
from deepfishing.images.item import Item
from deepfishing.images.sources import find_images
from deepfishing.store import Store
from deepfishing.store.manifest import MANIFEST
from deepfishing.util import machine

WARM_UP, SAMPLE = 4, 32  # images that are run first, and then timed
KEY_BYTES = 76  # per row of a shard beside the values: the key and the scale
INDEX_BYTES = 120  # per image of index.parquet
# Memory per image of the process that keeps the index, measured at a million images, see
# `bookkeeping` in benchmarks/GROWTH.md.
INDEX_MEMORY = 2000


@dataclass(frozen=True)
class Estimate:
    """Time, disk and memory of an extraction on this computer."""

    images: int
    to_compute: int  # images that are not in the store
    seconds: float
    bytes: int  # on disk
    memory: int  # bytes


def estimate(
    store: str | Path,
    images: str | Path | Sequence[Item],
    *,
    features: str = "all",
    precision: str | None = None,
    resources: Resources | None = None,
    **options: Any,
) -> Estimate:
    """Estimate an extraction by running a sample of its images; nothing is kept.

    The parameters are those of `extract_to`. Images whose ids are in the store already are not
    counted, whether or not their files have changed.
    """
    resources = resources or Resources()
    if isinstance(images, str | Path):
        images = find_images(images)
    items = list(images)
    exists = (Path(store) / MANIFEST).exists()
    stored: set[str] = set()
    if exists:
        stored = {row.id for row in Store.open(store).usable()}
    todo = [item for item in items if item.id not in stored]
    if not todo:
        return Estimate(len(items), 0, 0.0, 0, machine.peak_memory())
    if not exists:
        check_features(options, features)
    settings, network = resolve_settings(options, store, device=resources.device)
    factors = tuple(needed_factors(parse_recipes(features, settings.network.layers)))
    sample = _spread(todo, WARM_UP + SAMPLE)
    warm_up, timed = sample[:WARM_UP], sample[WARM_UP:] or sample
    with tempfile.TemporaryDirectory() as folder:
        started = time.perf_counter()
        extractor = start_extractor(factors, settings, resources, network)
        first = list(extractor(warm_up))
        start_seconds = time.perf_counter() - started

        if precision is None and exists:
            precision = Store.open(store).precision
        elif precision is None and is_unmeasured(settings.network, factors):
            precision, _ = measure_precision(extractor, timed)
        scratch = Store(folder, settings.as_dict(), precision)
        keys = [f"{number:064x}" for number in range(len(timed))]
        started = time.perf_counter()
        parts = list(write_batches(extractor(timed), keys, timed, scratch.append))
        seconds_per_image = (time.perf_counter() - started) / len(timed)

        if all(len(part.errors) == part.images for part in parts):
            failures: list[str] = []
            for batch in first:
                failures += batch.failures.values()
            failures += parts[0].errors.values()
            raise ImageError(failures[0])
        bytes_per_image = INDEX_BYTES
        for name in scratch.factors():
            width = scratch.codec.width(scratch.shape(name))
            bytes_per_image += width * scratch.codec.dtype.itemsize + KEY_BYTES
    return Estimate(
        images=len(items),
        to_compute=len(todo),
        seconds=round(start_seconds + len(todo) * seconds_per_image, 1),
        bytes=len(todo) * bytes_per_image,
        memory=machine.peak_memory() + len(items) * INDEX_MEMORY,
    )


def _spread(items: Sequence[Item], n: int) -> list[Item]:
    """Return at most n items, evenly spaced."""
    step = max(1, math.ceil(len(items) / n))
    return list(items[::step])

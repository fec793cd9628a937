"""Stage 3, gradients: compute what a store lacks, and nothing else.

Comes in: a network, image files, a store. Goes out: the store with all factors of all readable
images, and a summary. Work is written every `SHARD_IMAGES` images, so it can be interrupted.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from deepfishing.errors import ImageError
from deepfishing.gradients.extract import extract_factors
from deepfishing.gradients.objective import Label
from deepfishing.networks.network import Network
from deepfishing.rank_one import Array
from deepfishing.store import Store

SHARD_IMAGES = 512

Progress = Callable[[int, int], None]  # images done, images to do


@dataclass(frozen=True)
class Extraction:
    """What came of it: a key per path (None for an unreadable file), and the reasons."""

    keys: tuple[str | None, ...]
    computed: int
    failures: dict[Path, str]


def extract_to_store(
    network: Network,
    paths: Sequence[Path],
    store: Store,
    factors: Sequence[str],
    tau: float = 2.0,
    label: Label = "uniform",
    batch_size: int = 32,
    progress: Progress | None = None,
) -> Extraction:
    """Bring the store up to date for these images; the same content is computed once."""
    keys, failures = _content_keys(paths)
    path_of = {key: path for path, key in zip(paths, keys, strict=True) if key}
    todo = store.missing((key for key in keys if key), factors)
    report = progress or (lambda done, total: None)
    report(0, len(todo))
    pending: list[tuple[list[str], dict[str, Array]]] = []
    waiting = done = 0
    unreadable: set[str] = set()

    def flush() -> None:
        shard_keys = [key for batch_keys, _ in pending for key in batch_keys]
        if shard_keys:
            joined = {f: np.concatenate([values[f] for _, values in pending]) for f in factors}
            store.append(shard_keys, [str(path_of[key]) for key in shard_keys], joined)
        pending.clear()

    try:
        images = [path_of[key] for key in todo]
        for batch in extract_factors(network, images, factors, tau, label, batch_size):
            if batch.indices:
                pending.append(([todo[i] for i in batch.indices], batch.factors))
            for i, reason in batch.failures.items():
                failures[images[i]] = reason
                unreadable.add(todo[i])
            waiting += len(batch.indices)
            done += len(batch.indices) + len(batch.failures)
            if waiting >= SHARD_IMAGES:
                flush()
                waiting = 0
            report(done, len(todo))
    finally:
        flush()  # also when interrupted: what is computed stays
    return Extraction(
        keys=tuple(None if key in unreadable else key for key in keys),
        computed=len(todo) - len(unreadable),
        failures=failures,
    )


def store_settings(network: Network, tau: float, label: Label) -> dict[str, Any]:
    """All that decides the value of a factor, for the store's manifest."""
    return {
        "network": network.name,
        "weights_sha256": network.weights_sha256,
        "preprocess": {k: _jsonable(v) for k, v in network.preprocess.as_dict().items()},
        "compute_dtype": str(network.dtype).removeprefix("torch."),
        "tau": float(tau),
        "label": label if isinstance(label, str | int) else [float(g) for g in label],
    }


def _jsonable(value: Any) -> Any:
    return list(value) if isinstance(value, tuple) else value


def _content_keys(paths: Iterable[Path]) -> tuple[list[str | None], dict[Path, str]]:
    """SHA-256 of every file, in threads; None and a reason where it cannot be read."""
    failures: dict[Path, str] = {}

    def key(path: Path) -> str | None:
        try:
            with path.open("rb") as file:
                return hashlib.file_digest(file, "sha256").hexdigest()
        except OSError as error:
            failures[path] = str(ImageError(f"image cannot be read: {path} ({error.strerror})"))
            return None

    with ThreadPoolExecutor(os.cpu_count() or 1) as pool:
        return list(pool.map(key, paths)), failures

"""Stage 3, gradients: compute what a store lacks, and nothing else.

Comes in: a network, images, a store. Goes out: the store with all factors of all usable images,
and a summary. Work is written every `SHARD_IMAGES` images, so a crash loses no more than that.
Torch is only loaded when there is something to compute.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from deepfishing.images.item import Item
from deepfishing.rank_one import Array
from deepfishing.store import Row, Store
from deepfishing.store.index import ERROR, OK, PENDING

if TYPE_CHECKING:
    from deepfishing.gradients.objective import Label
    from deepfishing.images.preprocess import Preprocess
    from deepfishing.networks.network import Network

SHARD_IMAGES = 512
HASH_IMAGES = 4096  # hashed between two reports

Progress = Callable[[str, int, int], None]  # "hashing" or "images", done, to do
OnFailure = Callable[[str, str], None]  # id, reason


@dataclass(frozen=True)
class Extraction:
    """What came of it.

    Parameters
    ----------
    keys : tuple of str or None
        Per image the key of its features in the store; None where it cannot be used.
    computed : int
        How many contents were computed now.
    failures : dict
        Id and reason of each image that cannot be used.
    removed : tuple of str
        Ids that are in the store and not among the images; pruned, if that was asked for.
    """

    keys: tuple[str | None, ...]
    computed: int
    failures: dict[str, str]
    removed: tuple[str, ...]


def extract_to_store(
    network: Network | Callable[[], Network],
    images: Sequence[Item | Path],
    store: Store,
    factors: Sequence[str],
    tau: float = 2.0,
    label: Label = "uniform",
    batch_size: int = 32,
    progress: Progress | None = None,
    on_failure: OnFailure | None = None,
    retry: bool = False,
    prune: bool = False,
    engine: str = "auto",
) -> Extraction:
    """Bring the store up to date for these images; the same content is computed once.

    Parameters
    ----------
    network : Network, or a function that loads it
        The function is called only if there is something to compute.
    images : sequence of Item or Path
        From `find_images`; the id of a path is the path itself.
    store : Store
        Made with `store_settings` of the network.
    factors : sequence of str
        From `needed_factors`.
    tau, label, batch_size, engine
        See `extract`.
    progress : callable
        Called with a stage, how much of it is done and how much there is.
    on_failure : callable
        Called with id and reason as soon as an image turns out to be unusable.
    retry : bool
        Try images again that could not be used before; otherwise they wait for another content.
    prune : bool
        Drop ids that are not among the images. Features that no id needs always go.
    """
    items = [Item(str(image), image) if isinstance(image, Path) else image for image in images]
    tell = progress or (lambda stage, done, total: None)
    with store.writing():
        old = store.rows()
        rows = _scan(items, old, tell)
        if retry:
            store.forget_errors({row.sha256 for row in rows if row.sha256})
        useless = store.errors()
        keys = [row.sha256 for row in rows]
        todo = store.missing((key for key in keys if key and key not in useless), factors)
        removed = tuple(sorted(old.keys() - {row.id for row in rows}))
        kept = [] if prune else [old[id_] for id_ in removed]
        rows = _judge(store, rows, factors)
        written = _update_index(store, [*kept, *rows], old)
        work = _Work(store, factors, dict(zip(keys, items, strict=True)), on_failure)
        tell("images", 0, len(todo))
        try:
            if todo:
                loaded = network() if callable(network) else network
                for done in work.batches(loaded, todo, tau, label, batch_size, engine):
                    tell("images", done, len(todo))
        finally:  # also when interrupted: what is computed stays
            work.flush()
            if todo:
                rows = _judge(store, rows, factors)
                _update_index(store, [*kept, *rows], written)
        store.compact({row.sha256 for row in [*kept, *rows] if row.sha256})
    return Extraction(
        keys=tuple(row.sha256 if row.status == OK else None for row in rows),
        computed=work.computed,
        failures={row.id: str(row.error) for row in rows if row.status == ERROR},
        removed=removed,
    )


def store_settings(network: Network, tau: float, label: Label) -> dict[str, Any]:
    """All that decides the value of a factor, for the store's manifest."""
    dtype = str(network.dtype).removeprefix("torch.")
    facts = network.name, network.weights_sha256, network.layers, network.preprocess, dtype
    return settings_of(*facts, tau, label)


def settings_of(
    name: str,
    weights_sha256: str,
    layers: Mapping[int, str],
    preprocess: Preprocess,
    dtype: str,
    tau: float,
    label: Label,
) -> dict[str, Any]:
    """The same from what is known of a network before it is loaded."""
    pixels = preprocess.as_dict().items()
    return {
        "network": name,
        "weights_sha256": weights_sha256,
        "layers": {str(k): path for k, path in layers.items()},
        "preprocess": {k: list(v) if isinstance(v, tuple) else v for k, v in pixels},
        "compute_dtype": dtype,
        "tau": float(tau),
        "label": label if isinstance(label, str | int) else [float(g) for g in label],
    }


class _Work:
    """Batches on their way to the disk.

    Batches depend on the order of the images alone: shards hold whole ones, and an image that
    cannot be used is on disk with its neighbours. So a run that goes on after a crash makes the
    same batches as one that was not interrupted, and the same features to the last bit.
    """

    def __init__(
        self,
        store: Store,
        factors: Sequence[str],
        item_of: Mapping[str | None, Item],
        on_failure: OnFailure | None,
    ) -> None:
        self.store, self.factors, self.item_of = store, factors, item_of
        self.on_failure = on_failure or (lambda id_, reason: None)
        self.computed = 0
        self._empty()

    def _empty(self) -> None:
        self.keys: list[str] = []
        self.values: list[dict[str, Array]] = []
        self.errors: dict[str, str] = {}

    def batches(self, network: Network, todo: list[str], *options: Any) -> Iterator[int]:
        """Compute these contents; give how many are done after each batch."""
        from deepfishing.gradients.extract import extract_factors

        images = [self.item_of[key] for key in todo]
        done = 0
        for batch in extract_factors(network, images, self.factors, *options):
            failures = dict(batch.failures)
            good = _finite(batch.factors, len(batch.indices))
            for row, index in enumerate(batch.indices):
                if not good[row]:
                    failures[index] = f"features are not finite: {images[index]}"
            if good.any():
                self.keys += [todo[i] for i, ok in zip(batch.indices, good, strict=True) if ok]
                all_good = good.all()
                self.values.append(
                    {f: v if all_good else v[good] for f, v in batch.factors.items()}
                )
            for index, reason in failures.items():
                self.errors[todo[index]] = reason
                self.on_failure(images[index].id, reason)
            done += len(batch.indices) + len(batch.failures)
            if len(self.keys) + len(self.errors) >= SHARD_IMAGES:
                self.flush()
            yield done

    def flush(self) -> None:
        """Write what is computed."""
        keys, values, errors = self.keys, self.values, self.errors
        self._empty()
        factors = self.factors if keys else ()
        joined = {f: np.concatenate([part[f] for part in values]) for f in factors}
        self.store.append(keys, joined, errors)
        self.computed += len(keys)


def _finite(factors: Mapping[str, Array], n: int) -> Array:
    """Which of n images have no NaN and no infinity in any factor."""
    good = np.ones(n, dtype=bool)
    for values in factors.values():
        good &= np.isfinite(values.reshape(n, -1)).all(axis=1)
    return good


def _scan(items: Sequence[Item], old: Mapping[str, Row], tell: Progress) -> list[Row]:
    """A row per image; only files that changed since they were seen are hashed."""
    rows: list[Row] = []
    new: list[tuple[int, Row]] = []
    for number, item in enumerate(items):
        path, before = str(item), old.get(item.id)
        try:
            size, mtime_ns = item.signature()
        except (OSError, ValueError) as error:
            rows.append(_unreadable(Row(item.id, path, labels=item.labels), error))
            continue
        if before and (before.path, before.size, before.mtime_ns) == (path, size, mtime_ns):
            row = before if before.labels == item.labels else replace(before, labels=item.labels)
        else:
            row = Row(item.id, path, None, size, mtime_ns, item.labels)
        rows.append(row)
        if row.sha256 is None:
            new.append((number, row))

    def hashed(place: tuple[int, Row]) -> Row:
        number, row = place
        try:
            return replace(row, sha256=items[number].sha256())
        except (OSError, ValueError) as error:
            return _unreadable(row, error)

    with ThreadPoolExecutor(os.cpu_count() or 1) as pool:
        for start in range(0, len(new), HASH_IMAGES):
            tell("hashing", start, len(new))
            part = new[start : start + HASH_IMAGES]
            for (number, _), row in zip(part, pool.map(hashed, part), strict=True):
                rows[number] = row
    return rows


def _unreadable(row: Row, error: Exception) -> Row:
    reason = getattr(error, "strerror", None) or error
    return replace(row, status=ERROR, error=f"image cannot be read: {row.path} ({reason})")


def _judge(store: Store, rows: Sequence[Row], factors: Sequence[str]) -> list[Row]:
    """The rows with what the store has for them now."""
    useless, asked = store.errors(), set(factors)
    there = {name: store.shards(name).keys() for name in store.factors()}
    every = tuple(there)
    whole = set.intersection(*map(set, there.values())) if there else set()
    judged = []
    for row in rows:
        if row.sha256 is None:
            judged.append(row)
            continue
        has = every
        if row.sha256 not in whole:
            has = tuple(name for name, keys in there.items() if row.sha256 in keys)
        error = None
        if asked.issubset(has):
            status = OK
        else:
            error = useless.get(row.sha256)
            status = ERROR if error else PENDING
        if (row.status, row.error, row.factors) != (status, error, has):
            row = replace(row, status=status, error=error, factors=has)
        judged.append(row)
    return judged


def _update_index(store: Store, rows: Sequence[Row], before: Mapping[str, Row]) -> dict[str, Row]:
    """Write the rows, unless they are what is there already."""
    after = {row.id: row for row in rows}
    if after != before:
        store.write_rows(rows)
    return after

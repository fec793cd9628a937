"""Extraction into a store: only missing factors are computed.

A crash loses `SHARD_IMAGES` images at most. Torch is loaded only if there is something to compute.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from deepfishing.core.features import Factor
from deepfishing.core.rank_one import Array
from deepfishing.extraction.batches import finite_rows, zero_gradients
from deepfishing.extraction.options import Resources
from deepfishing.extraction.settings import Settings
from deepfishing.images.item import Item, as_text
from deepfishing.images.matching import keep_known_ids
from deepfishing.images.preprocess import refuse_unreadable, unreadable
from deepfishing.store import Row, Store
from deepfishing.store.manifest import ERROR, OK, PENDING
from deepfishing.util.progress import Progress, silent

if TYPE_CHECKING:
    from deepfishing.extraction.batches import Batch
    from deepfishing.extraction.extract import Extractor
    from deepfishing.networks.network import Network

SHARD_IMAGES = 512
# hashed between two reports: of photos of 5 MB, some tenths of a second
HASH_IMAGES = 64

OnFailure = Callable[[str, str], None]  # id, reason
# keys, factors, errors
Append = Callable[[list[str], dict[str, Array], dict[str, str]], None]
Hashed = tuple[str | None, str]  # SHA-256, or None and the reason
StartExtractor = Callable[[], "Extractor"]


@dataclass(frozen=True, repr=False)
class Extraction:
    """Summary of an extraction."""

    # per image, of its features; None where it cannot be used
    keys: tuple[str | None, ...]
    computed: int  # contents, now
    failures: dict[str, str]  # id and reason of each image that cannot be used
    # ids in the store and not among the images; pruned, if asked for
    removed: tuple[str, ...]
    replaced: tuple[str, ...]  # ids that were another file's, whose features are gone
    factors: tuple[str, ...]
    # ids of images computed now whose gradient is zero
    zero_gradients: tuple[str, ...] = ()

    def __repr__(self) -> str:
        made, out = (
            f"{self.computed:,} computed now",
            f"{len(self.failures):,} left out",
        )
        return f"Extraction({len(self.keys):,} images, {made}, {out}: {', '.join(self.factors)})"


def start_extractor(
    factors: tuple[Factor, ...],
    settings: Settings,
    resources: Resources | None,
    network: Network | None,
) -> Extractor:
    """Return the network ready to work; without `network` the settings load it."""
    from deepfishing.extraction.extract import Extractor  # torch takes seconds to load

    resources = resources or Resources()
    network = network or settings.load_network(device=resources.device)
    return Extractor(network, factors, settings=settings, resources=resources)


@dataclass(frozen=True)
class Done:
    """Finished part of the work.

    How many images it has, which of their contents failed, and which have a zero gradient.
    """

    images: int
    errors: Mapping[str, str]
    zero_gradients: Sequence[str] = ()


class Local:
    """Reads images and computes factors in this process, on all cores.

    It keeps the network of the first call ready for the next ones; `OnRay` is the other place.
    """

    def __init__(self) -> None:
        self.extractor: Extractor | None = None

    def hashes(self, items: Sequence[Item]) -> Iterator[Hashed]:
        """Yield the hashes of all items, in their order."""
        with ThreadPoolExecutor(os.cpu_count() or 1) as pool:
            for start in range(0, len(items), HASH_IMAGES):
                yield from pool.map(_hashed, items[start : start + HASH_IMAGES])

    def compute(
        self,
        store: Store,
        start: StartExtractor,
        keys: Sequence[str],
        items: Sequence[Item],
    ) -> Generator[Done, None, None]:
        """Write the factors of these contents; when closed, everything computed is on disk."""
        if self.extractor is None:
            self.extractor = start()
        yield from write_batches(self.extractor(items), keys, items, store.append)


def extract_to_store(
    store: Store,
    images: Sequence[Item | Path],
    factors: Sequence[Factor],
    *,
    settings: Settings,
    network: Network | None = None,
    resources: Resources | None = None,
    on: Local | None = None,
    retry: bool = False,
    prune: bool = False,
    strict: bool = False,
    progress: Progress | None = None,
    on_failure: OnFailure | None = None,
) -> Extraction:
    """Compute the factors that the store lacks for these images; each content once.

    Parameters
    ----------
    images : sequence of Item or Path
        From `find_images`; the id of a path is the path itself.
    network : Network, optional
        The network of the settings, if it is loaded already. Without it the settings load it if
        there is something to compute.
    on : Local or OnRay, optional
        From `extraction.distributed.connect`; without it the work is done in this process.
    retry : bool
        Try images again that could not be used before; otherwise they wait for another content.
    prune : bool
        Drop ids that are not among the images. Features that no id needs always go.
    strict : bool
        Stop if an image cannot be used, before anything is computed; otherwise it is left out.
    progress, on_failure : callable
        Called with a stage, the finished amount and the total; and with id and reason of each
        image that turns out to be unusable.
    """
    report_progress = progress or silent
    place = on or Local()
    columns = tuple(factor.name for factor in factors)
    start = partial(start_extractor, tuple(factors), settings, resources, network)
    with store.writing():
        old = store.rows()
        items = keep_known_ids(_as_items(images), old)
        rows = _list_rows(items, old, report_progress, place)
        if retry:
            store.forget_errors({row.sha256 for row in rows if row.sha256})
        removed = tuple(sorted(old.keys() - {row.id for row in rows}))
        other_rows = [] if prune else [old[id_] for id_ in removed]
        rows = _with_status(store, rows, columns)
        written = _update_index(store, [*other_rows, *rows], old)
        todo = _unique_pending(rows, items)
        if strict:
            refused = {row.id: str(row.error) for row in rows if row.status == ERROR}
            if type(place) is Local:  # others may see files that this machine does not
                refused |= unreadable(list(todo.values()), report_progress)
            if on_failure is not None:
                for id_, reason in refused.items():
                    on_failure(id_, reason)
            refuse_unreadable(refused, len(items))
        total = Done(0, {})
        report_progress("images", 0, len(todo))
        if todo:
            try:
                total = _compute(store, place, start, todo, report_progress, on_failure)
            finally:  # also when interrupted: computed features stay
                rows = _with_status(store, rows, columns)
                _update_index(store, [*other_rows, *rows], written)
        store.compact({row.sha256 for row in [*other_rows, *rows] if row.sha256})
    zero = set(total.zero_gradients)
    return Extraction(
        keys=tuple(row.sha256 if row.status == OK else None for row in rows),
        computed=total.images - len(total.errors),
        failures={row.id: str(row.error) for row in rows if row.status == ERROR},
        removed=removed,
        replaced=tuple(row.id for row in rows if _is_replaced(row, old.get(row.id))),
        factors=columns,
        zero_gradients=tuple(row.id for row in rows if row.sha256 in zero),
    )


def _as_items(images: Sequence[Item | Path]) -> list[Item]:
    items = []
    for image in images:
        items.append(
            Item(as_text(str(image)), image) if isinstance(image, Path) else image
        )
    return items


def _unique_pending(rows: Sequence[Row], items: Sequence[Item]) -> dict[str, Item]:
    """Return one item for each content that is to be computed, by its key."""
    todo: dict[str, Item] = {}
    for row, item in zip(rows, items, strict=True):
        if row.status == PENDING:
            # of several files with this content the last is read
            todo[str(row.sha256)] = item
    return todo


def _compute(
    store: Store,
    place: Local,
    start: StartExtractor,
    todo: Mapping[str, Item],
    report_progress: Progress,
    on_failure: OnFailure | None,
) -> Done:
    """Compute the contents, report progress and failures, and return the sum of all parts."""
    images = 0
    errors: dict[str, str] = {}
    zero_gradients: list[str] = []
    with closing(place.compute(store, start, list(todo), list(todo.values()))) as parts:
        for part in parts:
            if on_failure is not None:
                for key, reason in part.errors.items():
                    on_failure(todo[key].id, reason)
            images += part.images
            errors.update(part.errors)
            zero_gradients += part.zero_gradients
            report_progress("images", images, len(todo))
    return Done(images, errors, zero_gradients)


def _is_replaced(row: Row, before: Row | None) -> bool:
    """Whether an id was that of another file with another content; a moved file is not replaced."""
    if before is None or before.sha256 is None:
        return False
    return row.path != before.path and row.sha256 != before.sha256


def write_batches(
    batches: Iterable[Batch], keys: Sequence[str], items: Sequence[Item], append: Append
) -> Generator[Done, None, None]:
    """Write batches of these contents by `append`, one shard at a time.

    Batches depend on the order of the images alone: shards hold whole ones, and an image that
    cannot be used is on disk with its neighbours. So a run that goes on after a crash makes the
    same batches as one that was not interrupted, and the same features to the last bit.
    """
    waiting: list[_Part] = []

    def flush() -> None:
        parts = waiting.copy()
        waiting.clear()
        append(*_joined(parts))

    try:
        for batch in batches:
            part = _usable_part(batch, keys, items)
            waiting.append(part)
            if (
                sum(len(part.keys) + len(part.errors) for part in waiting)
                >= SHARD_IMAGES
            ):
                flush()
            zero = [part.keys[i] for i in np.flatnonzero(zero_gradients(part.factors))]
            yield Done(len(batch.indices) + len(batch.failures), part.errors, zero)
    finally:
        flush()


class _Part(NamedTuple):
    """Factors of the usable images of a batch with their keys, and the errors of the others."""

    keys: list[str]
    factors: dict[str, Array]
    errors: dict[str, str]


def _usable_part(batch: Batch, keys: Sequence[str], items: Sequence[Item]) -> _Part:
    """Return a batch without the images whose factors are not finite."""
    finite = finite_rows(batch)
    errors = {keys[index]: reason for index, reason in batch.failures.items()}
    usable = []
    for index, is_finite in zip(batch.indices, finite, strict=True):
        if is_finite:
            usable.append(keys[index])
        else:
            errors[keys[index]] = f"features are not finite: {items[index]}"
    if finite.all():
        return _Part(usable, dict(batch.factors), errors)
    factors = {name: values[finite] for name, values in batch.factors.items()}
    return _Part(usable, factors, errors)


def _joined(parts: Sequence[_Part]) -> _Part:
    keys: list[str] = []
    errors: dict[str, str] = {}
    values: dict[str, list[Array]] = {}
    for part in parts:
        keys += part.keys
        errors |= part.errors
        if part.keys:
            for name, value in part.factors.items():
                values.setdefault(name, []).append(value)
    return _Part(
        keys, {name: np.concatenate(own) for name, own in values.items()}, errors
    )


def _list_rows(
    items: Sequence[Item],
    old: Mapping[str, Row],
    report_progress: Progress,
    place: Local,
) -> list[Row]:
    """Return a row per image; only files that changed since the last run are hashed."""
    rows: list[Row] = []
    changed: list[int] = []
    for number, item in enumerate(items):
        try:
            row = _list_row(item, old.get(item.id))
        except (OSError, ValueError) as error:
            row = Row(item.id, str(item), labels=item.labels)
            rows.append(_unreadable(row, _reason(error)))
            continue
        rows.append(row)
        if row.sha256 is None:
            changed.append(number)
    if not changed:
        return rows
    report_progress("hashing", 0, len(changed))
    hashes = place.hashes([items[number] for number in changed])
    for done, (number, (sha256, reason)) in enumerate(
        zip(changed, hashes, strict=True), 1
    ):
        row = rows[number]
        rows[number] = (
            replace(row, sha256=sha256) if sha256 else _unreadable(row, reason)
        )
        if done % HASH_IMAGES == 0 or done == len(changed):
            report_progress("hashing", done, len(changed))
    return rows


def _list_row(item: Item, before: Row | None) -> Row:
    """Return the row of an image as it was if its file is unchanged, else one without a hash."""
    path = str(item)
    size, stamp = item.signature()
    if before is None or (before.path, before.size, before.stamp) != (
        path,
        size,
        stamp,
    ):
        return Row(item.id, path, None, size, stamp, item.labels)
    if before.labels == item.labels:
        return before
    return replace(before, labels=item.labels)


def _hashed(item: Item) -> Hashed:
    try:
        return item.sha256(), ""
    except (OSError, ValueError) as error:
        return None, _reason(error)


def _reason(error: Exception) -> str:
    return str(getattr(error, "strerror", None) or error)


def _unreadable(row: Row, reason: str) -> Row:
    return replace(
        row, status=ERROR, error=f"image cannot be read: {row.path} ({reason})"
    )


def _with_status(
    store: Store, rows: Sequence[Row], columns: Sequence[str]
) -> list[Row]:
    """Return the rows with the status that their contents have in the store now."""
    errors = store.errors()
    wanted = set(columns)
    stored = {name: store.shards(name).keys() for name in store.factors()}
    every = tuple(stored)
    complete: set[str] = set()  # most contents have all factors
    if stored:
        complete = set.intersection(*map(set, stored.values()))
    updated = []
    for row in rows:
        if row.sha256 is None:
            updated.append(row)
            continue
        available = every
        if row.sha256 not in complete:
            available = tuple(
                name for name, keys in stored.items() if row.sha256 in keys
            )
        error = None
        status = OK
        if not wanted.issubset(available):
            error = errors.get(row.sha256)
            status = ERROR if error else PENDING
        if (row.status, row.error, row.factors) != (status, error, available):
            row = replace(row, status=status, error=error, factors=available)
        updated.append(row)
    return updated


def _update_index(
    store: Store, rows: Sequence[Row], before: Mapping[str, Row]
) -> dict[str, Row]:
    """Write the rows if they differ from those of the index."""
    after = {row.id: row for row in rows}  # an image may be given twice
    if after != before:
        store.write_rows(after.values())
    return after

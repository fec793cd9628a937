"""Extraction into a store: only missing factors are computed.

`extract_to_store` lists the images, finds out what the store lacks, and has an executor compute it:
`Local`, this process, or `OnRay`, a cluster. A crash loses `SHARD_IMAGES` images at
most. Torch is loaded only if there is something to compute.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from deepfishing.core.features import Factor
from deepfishing.core.rank_one import Array
from deepfishing.extraction.batches import drop_unusable, zero_gradients
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
    """Summary of an extraction.

    Attributes
    ----------
    keys : tuple of str or None
        The key of each image's features; None for an image that cannot be used.
    computed : int
        Number of contents that were computed now.
    failures : dict
        Id and reason of each image that cannot be used.
    removed : tuple of str
        Ids in the store that are not among the images; dropped if `prune` was asked for.
    replaced : tuple of str
        Ids that were those of other files, whose features are dropped.
    factors : tuple of str
        Names of the factors.
    zero_gradients : tuple of str
        Ids of images computed now whose gradient is zero.
    """

    keys: tuple[str | None, ...]
    computed: int
    failures: dict[str, str]
    removed: tuple[str, ...]
    replaced: tuple[str, ...]
    factors: tuple[str, ...]
    zero_gradients: tuple[str, ...] = ()

    def __repr__(self) -> str:
        images = f"{len(self.keys):,} images"
        computed = f"{self.computed:,} computed now"
        failed = f"{len(self.failures):,} left out"
        return f"Extraction({images}, {computed}, {failed}: {', '.join(self.factors)})"


@dataclass(frozen=True)
class Done:
    """Finished part of the work.

    `errors` has the reason for each content that cannot be used, `zero_gradients` the contents
    whose gradient is zero.
    """

    images: int
    errors: Mapping[str, str]
    zero_gradients: Sequence[str] = ()


class Local:
    """Reads images and computes factors in this process, on all cores.

    It keeps the network of the first call ready for the next ones; `OnRay` is the other executor.
    """

    def __init__(self) -> None:
        self.extractor: Extractor | None = None

    def hashes(self, items: Sequence[Item]) -> Iterator[Hashed]:
        """Yield the hashes of all items, in their order."""
        with ThreadPoolExecutor(os.cpu_count() or 1) as pool:
            for start in range(0, len(items), HASH_IMAGES):
                yield from pool.map(_hash, items[start : start + HASH_IMAGES])

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
    keep_labels: bool = True,
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
        Drop ids that are not among the images. Features that no id needs are always dropped.
    strict : bool
        Stop if an image cannot be used, before anything is computed; otherwise it is left out.
    keep_labels : bool
        An image that comes without labels keeps those that the store has of its content.
    progress, on_failure : callable
        Called with a stage, the finished amount and the total; and with id and reason of each
        image that turns out to be unusable.
    """
    report_progress = progress or silent
    executor = on or Local()
    columns = tuple(factor.name for factor in factors)
    start = partial(start_extractor, tuple(factors), settings, resources, network)
    with store.writing():
        old = store.rows()
        items = keep_known_ids(_as_items(images), old)
        rows = _list_rows(items, old, report_progress, executor)
        if keep_labels:
            rows = [_with_known_labels(row, old.get(row.id)) for row in rows]
        if retry:
            store.forget_errors({row.sha256 for row in rows if row.sha256})
        removed = tuple(sorted(old.keys() - {row.id for row in rows}))
        other_rows = [] if prune else [old[id_] for id_ in removed]
        rows, index = _update_index(store, rows, other_rows, columns, old)
        todo = _unique_pending(rows, items)
        if strict:
            _check_all(rows, todo, executor, report_progress, on_failure)
        total = Done(0, {})
        report_progress("images", 0, len(todo))
        if todo:
            try:
                total = _compute(
                    store, executor, start, todo, report_progress, on_failure
                )
            finally:  # also when interrupted: computed features stay
                rows, index = _update_index(store, rows, other_rows, columns, index)
        store.compact({row.sha256 for row in index.values() if row.sha256})
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
    """Return the images as items; the id of a path is the path itself."""
    items = []
    for image in images:
        if isinstance(image, Path):
            image = Item(as_text(str(image)), image)
        items.append(image)
    return items


def _list_rows(
    items: Sequence[Item],
    old: Mapping[str, Row],
    report_progress: Progress,
    executor: Local,
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
    hashes = executor.hashes([items[number] for number in changed])
    for done, (sha256, reason) in enumerate(hashes, start=1):
        number = changed[done - 1]
        row = rows[number]
        if sha256:
            rows[number] = replace(row, sha256=sha256)
        else:
            rows[number] = _unreadable(row, reason)
        if done % HASH_IMAGES == 0 or done == len(changed):
            report_progress("hashing", done, len(changed))
    return rows


def _list_row(item: Item, before: Row | None) -> Row:
    """Return the row of an image as it was if its file is unchanged, else one without a hash."""
    path = str(item)
    size, stamp = item.signature()
    file = (path, size, stamp)
    if before is None or (before.path, before.size, before.stamp) != file:
        return Row(item.id, path, None, size, stamp, item.labels)
    if before.labels == item.labels:
        return before
    return replace(before, labels=item.labels)


def _with_known_labels(row: Row, before: Row | None) -> Row:
    """Return a row without labels with those that the store has of the same content."""
    if row.labels is not None or before is None or before.labels is None:
        return row
    if row.sha256 is None or row.sha256 != before.sha256:
        return row
    return replace(row, labels=before.labels)


def _hash(item: Item) -> Hashed:
    """Return the hash of an item, or None and the reason."""
    try:
        return item.sha256(), ""
    except (OSError, ValueError) as error:
        return None, _reason(error)


def _reason(error: Exception) -> str:
    """Return the text of an error, without the path that Python adds."""
    return str(getattr(error, "strerror", None) or error)


def _unreadable(row: Row, reason: str) -> Row:
    return replace(
        row, status=ERROR, error=f"image cannot be read: {row.path} ({reason})"
    )


def _is_replaced(row: Row, before: Row | None) -> bool:
    """Whether an id was that of another file with another content; a moved file is not replaced."""
    if before is None or before.sha256 is None:
        return False
    return row.path != before.path and row.sha256 != before.sha256


def _update_index(
    store: Store,
    rows: Sequence[Row],
    other_rows: Sequence[Row],
    columns: Sequence[str],
    index: Mapping[str, Row],
) -> tuple[list[Row], dict[str, Row]]:
    """Return the rows with the status that their contents have now, and the index with them.

    `other_rows` are those of images that were not given this time. The index is written if it
    differs from `index`, which is on disk.
    """
    errors = store.errors()
    wanted = set(columns)
    stored = {name: store.shards(name).keys() for name in store.factors()}
    all_factors = tuple(stored)
    complete: set[str] = set()  # most contents have all factors
    if stored:
        complete = set.intersection(*map(set, stored.values()))
    updated = []
    for row in rows:
        if row.sha256 is None:
            updated.append(row)
            continue
        available = all_factors
        if row.sha256 not in complete:
            available = tuple(
                name for name, keys in stored.items() if row.sha256 in keys
            )
        error = None
        status = OK
        if not wanted.issubset(available):
            error = errors.get(row.sha256)
            status = PENDING
            if error:
                status = ERROR
        if (row.status, row.error, row.factors) != (status, error, available):
            row = replace(row, status=status, error=error, factors=available)
        updated.append(row)
    # by id, since an image may be given twice
    new_index = {row.id: row for row in [*other_rows, *updated]}
    if new_index != index:
        store.write_rows(new_index.values())
    return updated, new_index


def _unique_pending(rows: Sequence[Row], items: Sequence[Item]) -> dict[str, Item]:
    """Return one item for each content that is to be computed, by its key."""
    todo: dict[str, Item] = {}
    for row, item in zip(rows, items, strict=True):
        if row.status == PENDING:
            # of several files with this content the last is read
            todo[str(row.sha256)] = item
    return todo


def _check_all(
    rows: Sequence[Row],
    todo: Mapping[str, Item],
    executor: Local,
    report_progress: Progress,
    on_failure: OnFailure | None,
) -> None:
    """Refuse images that cannot be used, before anything is computed."""
    failures = {row.id: str(row.error) for row in rows if row.status == ERROR}
    if type(executor) is Local:  # others may see files that this machine does not
        failures |= unreadable(list(todo.values()), report_progress)
    if on_failure is not None:
        for id_, reason in failures.items():
            on_failure(id_, reason)
    refuse_unreadable(failures, len(rows))


def _compute(
    store: Store,
    executor: Local,
    start: StartExtractor,
    todo: Mapping[str, Item],
    report_progress: Progress,
    on_failure: OnFailure | None,
) -> Done:
    """Compute the contents, report progress and failures, and return the sum of all parts."""
    images = 0
    errors: dict[str, str] = {}
    zero_gradients: list[str] = []
    with closing(
        executor.compute(store, start, list(todo), list(todo.values()))
    ) as parts:
        for part in parts:
            if on_failure is not None:
                for key, reason in part.errors.items():
                    on_failure(todo[key].id, reason)
            images += part.images
            errors.update(part.errors)
            zero_gradients += part.zero_gradients
            report_progress("images", images, len(todo))
    return Done(images, errors, zero_gradients)


def write_batches(
    batches: Iterable[Batch], keys: Sequence[str], items: Sequence[Item], append: Append
) -> Generator[Done, None, None]:
    """Write batches of these contents by `append`, one shard at a time.

    Batches depend on the order of the images alone: shards hold whole ones, and an image that
    cannot be used is on disk with its neighbours. So a run that goes on after a crash makes the
    same batches as one that was not interrupted, and the same features to the last bit.
    """
    waiting: list[Batch] = []
    images_waiting = 0
    try:
        for batch in batches:
            batch = drop_unusable(batch, lambda index: str(items[index]))
            images = len(batch.indices) + len(batch.failures)
            waiting.append(batch)
            images_waiting += images
            if images_waiting >= SHARD_IMAGES:
                images_waiting = 0
                _write_waiting(waiting, keys, append)
            errors = {keys[index]: why for index, why in batch.failures.items()}
            zero = np.flatnonzero(zero_gradients(batch.factors))
            yield Done(images, errors, [keys[batch.indices[row]] for row in zero])
    finally:
        _write_waiting(waiting, keys, append)


def _write_waiting(waiting: list[Batch], keys: Sequence[str], append: Append) -> None:
    """Write the batches together, and empty the list."""
    batches = waiting.copy()
    waiting.clear()
    usable: list[str] = []
    errors: dict[str, str] = {}
    parts: dict[str, list[Array]] = {}
    for batch in batches:
        usable += [keys[index] for index in batch.indices]
        errors |= {keys[index]: why for index, why in batch.failures.items()}
        if batch.indices:
            for name, values in batch.factors.items():
                parts.setdefault(name, []).append(values)
    factors = {name: np.concatenate(values) for name, values in parts.items()}
    append(usable, factors, errors)

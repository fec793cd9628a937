"""Stage 3, gradients: compute what a store lacks, and nothing else.

Comes in: settings, images, a store. Goes out: the store with all factors of all usable images, and
a summary. A crash loses `SHARD_IMAGES` images at most. Torch is loaded if there is work for it.
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
HASH_IMAGES = 64  # hashed between two reports: of photos of 5 MB, some tenths of a second

OnFailure = Callable[[str, str], None]  # id, reason
Append = Callable[[list[str], dict[str, Array], dict[str, str]], None]  # keys, factors, errors
Hashed = tuple[str | None, str]  # SHA-256, or None and the reason
StartExtractor = Callable[[], "Extractor"]


@dataclass(frozen=True, repr=False)
class Extraction:
    """Summary of an extraction."""

    keys: tuple[str | None, ...]  # per image, of its features; None where it cannot be used
    computed: int  # contents, now
    failures: dict[str, str]  # id and reason of each image that cannot be used
    removed: tuple[str, ...]  # ids in the store and not among the images; pruned, if asked for
    replaced: tuple[str, ...]  # ids that were another file's, whose features are gone
    factors: tuple[str, ...]
    zero_gradients: tuple[str, ...] = ()  # ids of images computed now whose gradient is zero

    def __repr__(self) -> str:
        made, out = f"{self.computed:,} computed now", f"{len(self.failures):,} left out"
        return f"Extraction({len(self.keys):,} images, {made}, {out}: {', '.join(self.factors)})"


def start_extractor(
    factors: tuple[Factor, ...], settings: Settings, resources: Resources, network: Network | None
) -> Extractor:
    """Return the network ready to work; without `network` the settings load it."""
    from deepfishing.extraction.extract import Extractor  # torch takes seconds to load

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
        self, store: Store, start: StartExtractor, keys: Sequence[str], items: Sequence[Item]
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
    """Bring the store up to date for these images; the same content is computed once.

    Parameters
    ----------
    images : sequence of Item or Path
        From `find_images`; the id of a path is the path itself.
    network : Network, optional
        That of the settings, if it is loaded already. Without it the settings load it, and only if
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
        Told of a stage, how much of it is done and how much there is; and of the id and reason of
        an image as soon as it turns out to be unusable.
    """
    items = [Item(as_text(str(i)), i) if isinstance(i, Path) else i for i in images]
    tell = progress or silent
    tell_failure = on_failure or (lambda id_, reason: None)
    place = on or Local()
    columns = tuple(factor.name for factor in factors)
    with store.writing():
        old = store.rows()
        items = keep_known_ids(items, old)
        rows = _scan(items, old, tell, place)
        if retry:
            store.forget_errors({row.sha256 for row in rows if row.sha256})
        removed = tuple(sorted(old.keys() - {row.id for row in rows}))
        kept = [] if prune else [old[id_] for id_ in removed]
        rows = _judge(store, rows, columns)
        written = _update_index(store, [*kept, *rows], old)
        todo = list(dict.fromkeys(str(row.sha256) for row in rows if row.status == PENDING))
        item_of = {row.sha256: item for row, item in zip(rows, items, strict=True)}
        todo_items = [item_of[key] for key in todo]
        if strict:
            refused = {row.id: str(row.error) for row in rows if row.status == ERROR}
            if type(place) is Local:  # others may see files that this machine does not
                refused |= unreadable(todo_items, tell)
            for id_, reason in refused.items():
                tell_failure(id_, reason)
            refuse_unreadable(refused, len(items))
        done = failed = 0
        zero: set[str] = set()
        tell("images", 0, len(todo))
        if todo:
            start = partial(
                start_extractor, tuple(factors), settings, resources or Resources(), network
            )
            try:
                with closing(place.compute(store, start, todo, todo_items)) as parts:
                    for part in parts:
                        for key, reason in part.errors.items():
                            tell_failure(item_of[key].id, reason)
                        done += part.images
                        failed += len(part.errors)
                        zero.update(part.zero_gradients)
                        tell("images", done, len(todo))
            finally:  # also when interrupted: what is computed stays
                rows = _judge(store, rows, columns)
                _update_index(store, [*kept, *rows], written)
        store.compact({row.sha256 for row in [*kept, *rows] if row.sha256})
    seen = [(row, old[row.id]) for row in rows if row.id in old]
    return Extraction(
        keys=tuple(row.sha256 if row.status == OK else None for row in rows),
        computed=done - failed,
        failures={row.id: str(row.error) for row in rows if row.status == ERROR},
        removed=removed,
        replaced=tuple(  # of the same content, it was only moved
            row.id
            for row, before in seen
            if row.path != before.path and None is not before.sha256 != row.sha256
        ),
        factors=columns,
        zero_gradients=tuple(row.id for row in rows if row.sha256 in zero),
    )


def write_batches(
    batches: Iterable[Batch], keys: Sequence[str], items: Sequence[Item], append: Append
) -> Generator[Done, None, None]:
    """Have `append` write batches of these contents, a shard at a time.

    Batches depend on the order of the images alone: shards hold whole ones, and an image that
    cannot be used is on disk with its neighbours. So a run that goes on after a crash makes the
    same batches as one that was not interrupted, and the same features to the last bit.
    """
    waiting: list[tuple[list[str], dict[str, Array], dict[str, str]]] = []

    def flush() -> None:
        parts = waiting.copy()
        waiting.clear()
        filled = [values for own, values, _ in parts if own]
        append(
            [key for own, _, _ in parts for key in own],
            {f: np.concatenate([v[f] for v in filled]) for f in (filled[0] if filled else ())},
            {key: reason for _, _, errors in parts for key, reason in errors.items()},
        )

    try:
        for batch in batches:
            good = finite_rows(batch)
            bad = (i for i, fine in zip(batch.indices, good, strict=True) if not fine)
            failures = {i: f"features are not finite: {items[i]}" for i in bad}
            errors = {keys[i]: reason for i, reason in {**batch.failures, **failures}.items()}
            own = [keys[i] for i in batch.indices if i not in failures]
            values = {f: v[good] if failures else v for f, v in batch.factors.items()}
            waiting.append((own, values, errors))
            if sum(len(own) + len(errors) for own, _, errors in waiting) >= SHARD_IMAGES:
                flush()
            zero = [own[i] for i in np.flatnonzero(zero_gradients(values))]
            yield Done(len(batch.indices) + len(batch.failures), errors, zero)
    finally:
        flush()


def _scan(items: Sequence[Item], old: Mapping[str, Row], tell: Progress, place: Local) -> list[Row]:
    """A row per image; only files that changed since they were seen are hashed."""
    rows: list[Row] = []
    new: list[int] = []
    for number, item in enumerate(items):
        path, before = str(item), old.get(item.id)
        try:
            size, stamp = item.signature()
        except (OSError, ValueError) as error:
            rows.append(_unreadable(Row(item.id, path, labels=item.labels), _reason(error)))
            continue
        if before and (before.path, before.size, before.stamp) == (path, size, stamp):
            row = before if before.labels == item.labels else replace(before, labels=item.labels)
        else:
            row = Row(item.id, path, None, size, stamp, item.labels)
        rows.append(row)
        if row.sha256 is None:
            new.append(number)
    if new:
        tell("hashing", 0, len(new))
        hashes = zip(new, place.hashes([items[number] for number in new]), strict=True)
        for done, (number, (sha256, reason)) in enumerate(hashes, 1):
            row = rows[number]
            rows[number] = replace(row, sha256=sha256) if sha256 else _unreadable(row, reason)
            if done % HASH_IMAGES == 0 or done == len(new):
                tell("hashing", done, len(new))
    return rows


def _hashed(item: Item) -> Hashed:
    try:
        return item.sha256(), ""
    except (OSError, ValueError) as error:
        return None, _reason(error)


def _reason(error: Exception) -> str:
    return str(getattr(error, "strerror", None) or error)


def _unreadable(row: Row, reason: str) -> Row:
    return replace(row, status=ERROR, error=f"image cannot be read: {row.path} ({reason})")


def _judge(store: Store, rows: Sequence[Row], columns: Sequence[str]) -> list[Row]:
    """The rows with what the store has for them now."""
    useless, asked = store.errors(), set(columns)
    stored = {name: store.shards(name).keys() for name in store.factors()}
    every, whole = tuple(stored), set.intersection(*map(set, stored.values())) if stored else set()
    judged = []
    for row in rows:
        if row.sha256 is not None:
            has = every
            if row.sha256 not in whole:
                has = tuple(name for name, keys in stored.items() if row.sha256 in keys)
            error = None if asked.issubset(has) else useless.get(row.sha256)
            status = OK if asked.issubset(has) else ERROR if error else PENDING
            if (row.status, row.error, row.factors) != (status, error, has):
                row = replace(row, status=status, error=error, factors=has)
        judged.append(row)
    return judged


def _update_index(store: Store, rows: Sequence[Row], before: Mapping[str, Row]) -> dict[str, Row]:
    """Write the rows, unless they are what the index has already."""
    after = {row.id: row for row in rows}  # an image may be given twice
    if after != before:
        store.write_rows(after.values())
    return after

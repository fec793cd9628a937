"""Past one machine: extraction as a pipeline of Ray Data.

Comes in: the work list. Goes out: the same shards that a local run writes, to the last bit on the
same kind of machine. A row of the data set is a chunk of the list, a task is a row; which worker
gets it, when, and what happens if one dies is Ray's business: a chunk of a dead worker is given
out again without limit, and gives the same shards under the same names. The process that started it
only counts.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import ray
import ray.data

import deepfishing.gradients.to_store as to_store
from deepfishing import errors
from deepfishing.errors import DeepFishingError, StoreError, one_line
from deepfishing.gradients.to_store import Done, Hashed, Job, Local, write_batches
from deepfishing.images.item import Item
from deepfishing.store import Store

if TYPE_CHECKING:
    from deepfishing.gradients.extract import Extractor

HASH_IMAGES = 256  # that a task hashes
Rows = Mapping[str, Sequence[Any]]  # columns of Ray's rows


@dataclass(frozen=True)
class Chunk:
    """Images that follow each other in the work list: a whole number of batches."""

    items: tuple[Item, ...]
    keys: tuple[str, ...] = ()  # their contents; unknown while they are hashed
    there: Mapping[str, frozenset[str]] = field(default_factory=dict)  # keys by factor


class OnRay(Local):
    """A Ray that this process is connected to, as a place for `extract_to_store`.

    With `gpu` each worker takes a GPU. A `client` of Ray cannot stream: then the pipeline is driven
    from inside the cluster.
    """

    def __init__(self, gpu: bool = False, client: bool = False) -> None:
        self.gpu, self.client = gpu, client

    def hashes(self, items: Sequence[Item]) -> Iterator[Hashed]:
        """See `Local`."""
        starts = range(0, len(items), HASH_IMAGES)
        chunks = [Chunk(tuple(items[start : start + HASH_IMAGES])) for start in starts]
        work = partial(_hash_chunks, folder=_folder(items))
        for found in self._run(chunks, work, {"num_cpus": 1}, ordered=True):
            yield from ((sha256, reason) for sha256, reason in found)

    def compute(
        self, job: Job, keys: Sequence[str], items: Sequence[Item]
    ) -> Generator[Done, None, None]:
        """See `Local`."""
        batch_size = job.resources.batch_size
        if not isinstance(batch_size, int):
            batch_size = 1  # chosen by the worker, a power of two
        size = -(-to_store.SHARD_IMAGES // batch_size) * batch_size  # whole batches, as in a shard
        columns = {f.name: job.store.shards(f.name).keys() for f in job.factors}
        chunks = []
        for start in range(0, len(keys), size):
            part = tuple(keys[start : start + size])
            there = {name: frozenset(known & set(part)) for name, known in columns.items()}
            chunks.append(Chunk(tuple(items[start : start + size]), part, there))
        # the store by its place, without what was read of it
        store = Store(job.store.folder.resolve(), job.store.settings, job.store.precision)
        threads, pool = self._workers(len(chunks))
        options = {
            "fn_constructor_args": (replace(job, store=store), _folder(items), threads),
            "compute": pool,
            "num_cpus": threads,
            **({"num_gpus": 1} if self.gpu else {}),
        }
        try:
            for images, failed in self._run(chunks, Worker, options):
                yield Done(images, failed)
        finally:
            job.store.look_again()

    def _workers(self, chunks: int) -> tuple[int, ray.data.ActorPoolStrategy]:
        """Threads of a worker, and how many workers there are to begin with and at most."""
        # a worker has as many threads as a local run, unless no machine has so many: it rounds as
        # a local run does
        import torch

        kind = "GPU" if self.gpu else "CPU"
        cluster: list[dict[str, Any]] = ray.nodes()  # type: ignore[no-untyped-call]
        nodes = [node["Resources"] for node in cluster if node["Alive"]]
        able = [node for node in nodes if kind in node]
        shares = [node.get("CPU", 1) / (node["GPU"] if self.gpu else 1) for node in able]
        threads = max(1, min(torch.get_num_threads(), *map(int, shares or [1])))
        fit = sum(node["GPU"] if self.gpu else node["CPU"] // threads for node in able)
        first = max(1, min(chunks, int(fit)))
        return threads, ray.data.ActorPoolStrategy(min_size=first, max_size=max(first, chunks))

    def _run(
        self, chunks: Sequence[Chunk], work: Any, options: dict[str, Any], ordered: bool = False
    ) -> Iterator[Any]:
        """What workers make of the chunks, as they are ready or in their order."""
        pipeline = chunks, work, options, ordered
        try:
            if not self.client:
                yield from map(read_answer, _rows(*pipeline))
                return
            # the same from an actor of the cluster, which is asked row by row
            actor: Any = ray.remote(num_cpus=0)(_Driver)
            driver, row = actor.remote(*pipeline), None
            while (row := ray.get(driver.next_row.remote())) is not None:
                yield read_answer(row)
        except (ray.exceptions.RayActorError, ray.exceptions.RaySystemError) as error:
            raise DeepFishingError(
                f"Ray was lost ({one_line(error)}); what is computed stays, run the command again "
                "to go on"
            ) from None


def _rows(
    chunks: Sequence[Chunk], work: Any, options: dict[str, Any], ordered: bool
) -> Iterator[dict[str, Any]]:
    context = ray.data.DataContext.get_current().copy()
    context.enable_progress_bars = False
    context.print_on_execution_start = False
    context.execution_options.preserve_order = ordered
    with ray.data.DataContext.current(context):
        # a block a chunk, so that no task has more than one of them to do again
        data = ray.data.from_items([{"chunk": c} for c in chunks], override_num_blocks=len(chunks))
        yield from data.map_batches(work, batch_size=1, **options).iter_rows()


class _Driver:
    def __init__(self, *pipeline: Any) -> None:
        self.rows = _rows(*pipeline)

    def next_row(self) -> dict[str, Any] | None:
        return next(self.rows, None)


class Worker:
    """A worker that lasts: it loads network and engine when its first chunk comes."""

    def __init__(self, job: Job, folder: Path | None, threads: int) -> None:
        self.job, self.folder, self.threads = job, folder, threads

    @cached_property
    def extractor(self) -> Extractor:
        """Made here, not in `__init__`, where an error would count as a death."""
        _enter(self.folder)
        return self.job.extractor()

    def __call__(self, rows: Rows) -> Rows:
        """Compute the chunks of some rows and write them."""
        return _answers(rows, self._extract)

    def _extract(self, chunk: Chunk) -> tuple[int, dict[str, str]]:
        """How many images are done, and which contents failed."""
        import torch

        torch.set_num_threads(self.threads)  # counts for this thread alone; others round otherwise
        append = partial(self.job.store.append, there=chunk.there)
        batches = self.extractor(chunk.items)
        parts = list(write_batches(batches, chunk.keys, chunk.items, append))
        failed = {key: reason for part in parts for key, reason in part.errors.items()}
        return sum(part.images for part in parts), failed


def _hash_chunks(rows: Rows, folder: Path | None) -> Rows:
    """Read the images of some rows and give their hashes."""

    def work(chunk: Chunk) -> list[Hashed]:
        _enter(folder)
        return list(Local().hashes(chunk.items))

    return _answers(rows, work)


def _folder(items: Sequence[Item]) -> Path | None:
    """The current folder, if a path is relative to it."""
    local = (item.path for item in items if isinstance(item.path, Path))
    return None if all(path.is_absolute() for path in local) else Path.cwd()


def _enter(folder: Path | None) -> None:
    try:
        if folder:
            os.chdir(folder)
    except OSError as error:
        raise StoreError(
            f"workers must see the folders of the command, got none at {folder} on "
            f"{os.uname().nodename} ({error.strerror}); start it in a shared folder"
        ) from None


def _answers(rows: Rows, work: Callable[[Chunk], Any]) -> Rows:
    """Per chunk what `work` gives, or our own error; Ray would only bring its text."""
    answers = []
    for chunk in rows["chunk"]:
        try:
            answer = {"result": work(chunk)}
        except DeepFishingError as error:
            answer = {"error": [type(error).__name__, str(error)]}
        answers.append(json.dumps(answer))
    return {"answer": answers}


def read_answer(row: Mapping[str, str]) -> Any:
    """What a chunk gave; an error is raised here."""
    answer = json.loads(row["answer"])
    if "error" in answer:
        name, message = answer["error"]
        raise getattr(errors, name)(message)
    return answer["result"]

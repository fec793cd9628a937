"""Past one machine: extraction as a pipeline of Ray Data.

Comes in: the work list. Goes out: the same shards that a local run writes, to the last bit on the
same kind of machine. A row of the data set is a chunk of the list, a task is a row; which worker
gets it, when, and what happens if one dies is Ray's business: a chunk of a dead worker is given
out again without limit. The process that started it only counts.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import ray
import ray.data

import deepfishing.gradients.to_store as to_store
from deepfishing.distributed.worker import (
    Chunk,
    Site,
    Worker,
    hash_chunks,
    read_answer,
    worker_job,
)
from deepfishing.errors import DeepFishingError, one_line
from deepfishing.gradients.to_store import Done, Hashed, Job
from deepfishing.images.item import Item

HASH_IMAGES = 256  # that a task hashes


class OnRay:
    """A Ray that this process is connected to, as a place for `extract_to_store`.

    Parameters
    ----------
    gpu : bool
        Whether each worker takes a GPU.
    client : bool
        Whether the connection is Ray's client, which cannot stream: then the pipeline is driven
        from inside the cluster.
    """

    def __init__(self, gpu: bool = False, client: bool = False) -> None:
        self.gpu, self.client = gpu, client

    def hashes(self, items: Sequence[Item]) -> Iterator[tuple[int, list[Hashed]]]:
        """See `Place`."""
        starts = range(0, len(items), HASH_IMAGES)
        chunks = [Chunk(start, tuple(items[start : start + HASH_IMAGES])) for start in starts]
        work = partial(hash_chunks, site=Site(_folder(items), threads=1))
        for start, found in self._run(chunks, work, {"num_cpus": 1}):
            yield start, [(sha256, reason) for sha256, reason in found]

    def compute(
        self, job: Job, keys: Sequence[str], items: Sequence[Item]
    ) -> Generator[Done, None, None]:
        """See `Place`."""
        size = _chunk_images(job)
        chunks = []
        for start in range(0, len(keys), size):
            part = tuple(keys[start : start + size])
            mine = set(part)
            columns = {f.name: job.store.shards(f.name).keys() for f in job.factors}
            there = {name: frozenset(keys_there & mine) for name, keys_there in columns.items()}
            chunks.append(Chunk(start, tuple(items[start : start + size]), part, there))
        threads, pool = self._workers(len(chunks))
        options = {
            "fn_constructor_args": (worker_job(job), Site(_folder(items), threads)),
            "compute": pool,
            "num_cpus": threads,
            **({"num_gpus": 1} if self.gpu else {}),
        }
        try:
            for images, errors in self._run(chunks, Worker, options):
                yield Done(images, errors)
        finally:
            job.store.look_again()

    def _workers(self, chunks: int) -> tuple[int, ray.data.ActorPoolStrategy]:
        """Threads of a worker, and how many of them there are to begin with and at most.

        A worker is what a local run would be: it has as many threads as torch has here, unless no
        machine has so many. So it rounds as a local run does.
        """
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

    def _run(self, chunks: Sequence[Chunk], work: Any, options: dict[str, Any]) -> Iterator[Any]:
        """What workers make of the chunks, in the order in which they are ready."""
        rows = self._remote_rows if self.client else _rows
        try:
            yield from map(read_answer, rows(chunks, work, options))
        except (ray.exceptions.RayActorError, ray.exceptions.RaySystemError) as error:
            raise DeepFishingError(
                f"Ray was lost ({one_line(error)}); what is computed stays, run the command "
                "again to go on"
            ) from None

    def _remote_rows(self, *pipeline: Any) -> Iterator[dict[str, Any]]:
        actor: Any = ray.remote(num_cpus=0)(_Driver)
        driver = actor.remote(*pipeline)
        row: Any
        while (row := ray.get(driver.next_row.remote())) is not None:
            yield row


class _Driver:
    """The pipeline in an actor of the cluster, for a client that asks row by row."""

    def __init__(self, *pipeline: Any) -> None:
        self.rows = _rows(*pipeline)

    def next_row(self) -> dict[str, Any] | None:
        return next(self.rows, None)


def _rows(chunks: Sequence[Chunk], work: Any, options: dict[str, Any]) -> Iterator[dict[str, Any]]:
    context = ray.data.DataContext.get_current().copy()
    context.enable_progress_bars = False
    context.print_on_execution_start = False
    with ray.data.DataContext.current(context):
        # a block a chunk, so that no task has more than one of them to do again
        data = ray.data.from_items([{"chunk": c} for c in chunks], override_num_blocks=len(chunks))
        yield from data.map_batches(work, batch_size=1, **options).iter_rows()


def _chunk_images(job: Job) -> int:
    """Images a chunk: whole batches, as many as a local run has in a shard."""
    batch_size = job.resources.batch_size
    if not isinstance(batch_size, int):
        return to_store.SHARD_IMAGES  # chosen by the worker, a power of two
    return -(-to_store.SHARD_IMAGES // batch_size) * batch_size


def _folder(items: Sequence[Item]) -> Path | None:
    """The current folder, if a path is relative to it."""
    local = (item.path for item in items if isinstance(item.path, Path))
    return None if all(path.is_absolute() for path in local) else Path.cwd()

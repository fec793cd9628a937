"""Extraction on a Ray cluster.

The work is a pipeline of Ray Data: a row of its data set is a chunk of the work list, a task is one
row. Ray assigns tasks to workers; the chunk of a dead worker is assigned again, without limit, and
gives the same shards under the same names. The shards equal those of a local run to the last bit on
the same kind of machine. Messages, dashboards and reports of Ray are switched off, and Ray is
imported only when it is used.
"""

from __future__ import annotations

import contextlib
import importlib.util
import json
import logging
import os
import platform
import re
import socket
import tempfile
import warnings
from collections.abc import Callable, Collection, Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil

import deepfishing.extraction.to_store as to_store
from deepfishing import errors
from deepfishing.errors import (
    DeepFishingError,
    MissingDependencyError,
    OptionError,
    StoreError,
    explained,
    one_line,
    pip_install,
)
from deepfishing.extraction.options import LOCAL, RAY, BatchSize
from deepfishing.extraction.to_store import (
    Done,
    Hashed,
    Local,
    StartExtractor,
    write_batches,
)
from deepfishing.images.item import Item
from deepfishing.store import Store

if TYPE_CHECKING:
    import ray.data

    from deepfishing.extraction.extract import Extractor

WAIT = 10.0  # seconds for an address to answer
TERMINATE_SECONDS = 10.0  # until a process of a failed start is killed
QUIET = {  # read when Ray is imported or started
    "RAY_USAGE_STATS_ENABLED": "0",  # nothing is sent anywhere
    "RAY_BACKEND_LOG_LEVEL": "fatal",
    "RAY_DEDUP_LOGS_SKIP_REGEX": ".",  # what was retried would stand between our JSON lines
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",  # else it prints a tip
}
# Ray gives its parts half a minute to start, and gives up where a machine is busy
PATIENT = {
    "RAY_raylet_start_wait_time_s": "60",
    "RAY_gcs_server_port_wait_time_s": "120",
    "RAY_gcs_server_request_timeout_seconds": "120",
    "RAY_worker_register_timeout_seconds": "300",
    "RAY_agent_register_timeout_ms": "300000",
}
ATTEMPTS = 3  # one of its limits, 15 s for a process in Python, cannot be set
_ADDRESS = re.compile(r"(ray://)?(?P<host>[^/:]+|\[[^/\]]+\]):(?P<port>\d{1,5})")
HASH_IMAGES = 256  # that a task hashes
Rows = Mapping[str, Sequence[Any]]  # columns of Ray's rows


def check_place(on: str) -> None:
    """Refuse an invalid place, a missing package, or an unreachable address."""
    client = on.startswith("ray://")
    if on != RAY and not (client and _ADDRESS.fullmatch(on)):
        raise OptionError(f"on must be local, ray or ray://HOST:PORT, got {on!r}")
    needed = ["ray", "grpc"] if client else ["ray"]
    if absent := [name for name in needed if importlib.util.find_spec(name) is None]:
        raise MissingDependencyError(
            f"--on {on} needs the package {' and '.join(absent)}; run "
            f"`{pip_install(extra='ray')}`, or take --on local"
        )
    address = _address(on)
    if found := _ADDRESS.fullmatch(address):
        # fail now instead of after minutes of Ray's attempts
        do = "; start it with `ray start --head`, or correct the address"
        what = f"Ray must answer at {address}, got no connection"
        with explained(OptionError, what, do, (OSError, OverflowError)):
            place = found["host"].strip("[]"), int(found["port"])
            socket.create_connection(place, timeout=WAIT).close()


@contextmanager
def connect(
    on: str, gpu: bool = False, batch_size: BatchSize = "auto"
) -> Iterator[OnRay]:
    """A place to work, as long as the block lasts; with `gpu` each worker on Ray needs a GPU.

    `ray` is the Ray that this process has, else the cluster that RAY_ADDRESS names, else one that
    is started on this machine and ends with the block. `ray://HOST:PORT` is a cluster reached by
    Ray's client.
    """
    check_place(on)
    for name, value in {**QUIET, **PATIENT}.items():
        os.environ.setdefault(name, value)
    import ray
    import ray.data  # sets up its own log when it is imported, so this comes first

    logging.getLogger("ray.data").setLevel(logging.ERROR)
    logging.getLogger("ray").setLevel(logging.ERROR)
    if on == RAY and ray.is_initialized():
        yield OnRay(gpu, batch_size=batch_size)
        return
    start(_address(on), ATTEMPTS)
    try:
        yield OnRay(gpu, client=on != RAY, batch_size=batch_size)
    finally:
        ray.shutdown()


def start(address: str, attempts: int, **options: Any) -> None:
    """Connect this process to a cluster, or start one here; starting is tried several times.

    `options` are those of `ray.init`, beside those that keep it quiet.
    """
    if address not in ("", LOCAL):
        if problem := _init(address, options):
            raise OptionError(
                f"Ray must answer at {address}, got {problem}; if the cluster asks for a "
                "token, set RAY_AUTH_MODE=token and RAY_AUTH_TOKEN"
            )
        return
    for left in reversed(range(attempts)):
        problem = _init(LOCAL, {"include_dashboard": False, **options})
        if not problem:
            return
        if left:
            warnings.warn(
                f"Ray did not start ({problem}); it is tried again", stacklevel=2
            )
    raise OptionError(
        f"Ray must start on this machine, got {problem}; its logs are in "
        f"{Path(tempfile.gettempdir(), 'ray/session_latest/logs')}; or take --on local"
    )


def _init(address: str, options: dict[str, Any]) -> str:
    """Return the reason of a failure, or "" if Ray has started and this process is connected."""
    import ray

    before = set(psutil.Process().children(recursive=True))
    try:
        with _without_stderr():  # Ray's own side tells there that it will be quiet
            ray.init(
                address, logging_level=logging.ERROR, log_to_driver=False, **options
            )
    except Exception as error:
        # of a part that does not start Ray raises the plain class
        ray.shutdown()
        # Ray does not know of the processes of a node that was never made
        _end(set(psutil.Process().children(recursive=True)) - before)
        return one_line(error)
    return ""


def _end(processes: Collection[psutil.Process]) -> None:
    """Terminate processes; kill those that are still alive after a while."""
    for process in processes:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.terminate()
    _, alive = psutil.wait_procs(processes, timeout=TERMINATE_SECONDS)
    for process in alive:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.kill()


@contextmanager
def _without_stderr() -> Iterator[None]:
    """Discard everything that is written to the process's standard error."""
    kept = os.dup(2)
    try:
        with Path(os.devnull).open("w") as nowhere:
            os.dup2(nowhere.fileno(), 2)
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)


def _address(on: str) -> str:
    """Return the address of the cluster, or ""."""
    return os.environ.get("RAY_ADDRESS", "") if on == RAY else on


@dataclass(frozen=True)
class Chunk:
    """Images that follow each other in the work list: a whole number of batches."""

    items: tuple[Item, ...]
    keys: tuple[str, ...] = ()  # their contents; unknown while they are hashed
    known: Mapping[str, frozenset[str]] = field(default_factory=dict)  # keys by factor


class OnRay(Local):
    """A Ray that this process is connected to, as a place for `extract_to_store`."""

    def __init__(
        self, gpu: bool = False, client: bool = False, batch_size: BatchSize = "auto"
    ) -> None:
        self.gpu = gpu  # whether each worker takes one
        # a worker that chooses it takes a power of two, as a shard has images
        self.batch_size = batch_size if isinstance(batch_size, int) else 1
        # which cannot stream: the pipeline is driven from inside the cluster
        self.client = client

    def hashes(self, items: Sequence[Item]) -> Iterator[Hashed]:
        """See `Local`."""
        starts = range(0, len(items), HASH_IMAGES)
        chunks = [Chunk(tuple(items[start : start + HASH_IMAGES])) for start in starts]
        work = partial(_hash_chunks, folder=_folder(items))
        for found in self._run(chunks, work, {"num_cpus": 1}, ordered=True):
            yield from ((sha256, reason) for sha256, reason in found)

    def compute(
        self,
        store: Store,
        start: StartExtractor,
        keys: Sequence[str],
        items: Sequence[Item],
    ) -> Generator[Done, None, None]:
        """See `Local`."""
        # whole batches, as in a shard
        size = -(-to_store.SHARD_IMAGES // self.batch_size) * self.batch_size
        columns = {name: store.shards(name).keys() for name in store.factors()}
        chunks = []
        for first in range(0, len(keys), size):
            part = tuple(keys[first : first + size])
            known = {
                name: frozenset(stored & set(part)) for name, stored in columns.items()
            }
            chunks.append(Chunk(tuple(items[first : first + size]), part, known))
        # the store by its place, without what was read of it
        sent = Store(store.folder.resolve(), store.settings, store.precision)
        threads, pool = self._workers(len(chunks))
        options = {
            "fn_constructor_args": (sent, start, _folder(items), threads),
            "compute": pool,
            "num_cpus": threads,
            **({"num_gpus": 1} if self.gpu else {}),
        }
        try:
            for images, failed, zero in self._run(chunks, Worker, options):
                yield Done(images, failed, zero)
        finally:
            store.look_again()

    def _workers(self, chunks: int) -> tuple[int, ray.data.ActorPoolStrategy]:
        """Threads of a worker, and how many workers there are to begin with and at most."""
        # a worker has as many threads as a local run, unless no machine has that many: it rounds as
        # a local run does
        import ray.data
        import torch

        kind = "GPU" if self.gpu else "CPU"
        cluster: list[dict[str, Any]] = ray.nodes()  # type: ignore[no-untyped-call]
        nodes = [node["Resources"] for node in cluster if node["Alive"]]
        able = [node for node in nodes if kind in node]
        shares = [
            node.get("CPU", 1) / (node["GPU"] if self.gpu else 1) for node in able
        ]
        threads = max(1, min(torch.get_num_threads(), *map(int, shares or [1])))
        fit = sum(node["GPU"] if self.gpu else node["CPU"] // threads for node in able)
        first = max(1, min(chunks, int(fit)))
        return threads, ray.data.ActorPoolStrategy(
            min_size=first, max_size=max(first, chunks)
        )

    def _run(
        self,
        chunks: Sequence[Chunk],
        work: Any,
        options: dict[str, Any],
        ordered: bool = False,
    ) -> Iterator[Any]:
        """Yield the results of the chunks, as they are ready or in their order."""
        import ray

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
    import ray.data

    context = ray.data.DataContext.get_current().copy()
    context.enable_progress_bars = False
    context.print_on_execution_start = False
    context.execution_options.preserve_order = ordered
    with ray.data.DataContext.current(context):
        # a block a chunk, so that no task has more than one of them to do again
        data = ray.data.from_items(
            [{"chunk": c} for c in chunks], override_num_blocks=len(chunks)
        )
        yield from data.map_batches(work, batch_size=1, **options).iter_rows()


class _Driver:
    def __init__(self, *pipeline: Any) -> None:
        self.rows = _rows(*pipeline)

    def next_row(self) -> dict[str, Any] | None:
        return next(self.rows, None)


class Worker:
    """A worker process, which loads network and engine when its first chunk arrives."""

    def __init__(
        self, store: Store, start: StartExtractor, folder: Path | None, threads: int
    ) -> None:
        self.store, self.start, self.folder, self.threads = (
            store,
            start,
            folder,
            threads,
        )

    @cached_property
    def extractor(self) -> Extractor:
        """Made here, not in `__init__`, where an error would count as a death."""
        _enter(self.folder)
        return self.start()

    def __call__(self, rows: Rows) -> Rows:
        """Compute the chunks of some rows and write them."""
        return _answers(rows, self._extract)

    def _extract(self, chunk: Chunk) -> tuple[int, dict[str, str], list[str]]:
        """Return the number of images, the failed contents, and those with a zero gradient."""
        import torch

        # counts for this thread alone; others round otherwise
        torch.set_num_threads(self.threads)
        append = partial(self.store.append, known=chunk.known)
        batches = self.extractor(chunk.items)
        parts = list(write_batches(batches, chunk.keys, chunk.items, append))
        failed = {key: reason for part in parts for key, reason in part.errors.items()}
        zero = [key for part in parts for key in part.zero_gradients]
        return sum(part.images for part in parts), failed, zero


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
    here = f"{folder} on {platform.node()}"
    what = f"workers must see the folders of the command, got none at {here}"
    with explained(StoreError, what, "; start it in a shared folder", OSError):
        if folder:
            os.chdir(folder)


def _answers(rows: Rows, work: Callable[[Chunk], Any]) -> Rows:
    """Return the result of `work` per chunk, or our own error as name and text."""
    answers = []
    for chunk in rows["chunk"]:
        try:
            answer = {"result": work(chunk)}
        except DeepFishingError as error:
            answer = {"error": [type(error).__name__, str(error)]}
        answers.append(json.dumps(answer))
    return {"answer": answers}


def read_answer(row: Mapping[str, str]) -> Any:
    """Return the result of a chunk, or raise its error."""
    answer = json.loads(row["answer"])
    if "error" in answer:
        name, message = answer["error"]
        raise getattr(errors, name)(message)
    return answer["result"]

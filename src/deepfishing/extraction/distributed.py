"""Extraction on a Ray cluster.

The images are cut into chunks, and Ray Data processes them as the rows of a data set, one per task.
Ray assigns tasks to workers; the chunk of a dead worker is assigned again, without limit, and gives
the same shards under the same names. The shards equal those of a local run to the last bit on
computers of the same kind. Messages, dashboards and reports of Ray are switched off, and Ray is
imported only when it is used. A local run does not pass through this file.
"""

from __future__ import annotations

import contextlib
import gc
import importlib.util
import json
import logging
import math
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
    one_line,
    pip_install,
    reraise_as,
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

ANSWER_SECONDS = 10.0  # for an address to answer
TERMINATE_SECONDS = 10.0  # until a process of a failed start is killed
# Environment variables that Ray reads when it is imported or started.
NO_MESSAGES = {
    "RAY_USAGE_STATS_ENABLED": "0",  # nothing is sent anywhere
    "RAY_BACKEND_LOG_LEVEL": "fatal",
    "RAY_DEDUP_LOGS_SKIP_REGEX": ".",  # notes on retries would be among our JSON lines
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",  # else it prints a tip
}
# Ray gives its parts half a minute to start, and gives up where a computer is busy.
LONG_TIMEOUTS = {
    "RAY_raylet_start_wait_time_s": "60",
    "RAY_gcs_server_port_wait_time_s": "120",
    "RAY_gcs_server_request_timeout_seconds": "120",
    "RAY_worker_register_timeout_seconds": "300",
    "RAY_agent_register_timeout_ms": "300000",
}
ATTEMPTS = 3  # to start; one of its limits, 15 s for a process in Python, cannot be set
_ADDRESS = re.compile(r"(ray://)?(?P<host>[^/:]+|\[[^/\]]+\]):(?P<port>\d{1,5})")
HASH_IMAGES = 256  # that a task hashes
RayRows = Mapping[str, Sequence[Any]]  # columns of rows of a Ray data set


def check_cluster(on: str) -> None:
    """Refuse an invalid `on`, a missing package, or an unreachable address."""
    is_client = on.startswith("ray://")
    if on != RAY and not (is_client and _ADDRESS.fullmatch(on)):
        raise OptionError(f"on must be local, ray or ray://HOST:PORT, got {on!r}")
    needed = ["ray", "grpc"] if is_client else ["ray"]
    absent = [name for name in needed if importlib.util.find_spec(name) is None]
    if absent:
        raise MissingDependencyError(
            f"--on {on} needs the package {' and '.join(absent)}; run "
            f"`{pip_install(extra='ray')}`, or take --on local"
        )
    address = _address(on)
    match = _ADDRESS.fullmatch(address)
    if match:
        # fail now instead of after minutes of Ray's attempts
        do = "; start it with `ray start --head`, or correct the address"
        what = f"Ray must answer at {address}, got no connection"
        with reraise_as(OptionError, what, do, (OSError, OverflowError)):
            host_and_port = match["host"].strip("[]"), int(match["port"])
            socket.create_connection(host_and_port, timeout=ANSWER_SECONDS).close()


@contextmanager
def connect(
    on: str, gpu: bool = False, batch_size: BatchSize = "auto"
) -> Iterator[OnRay]:
    """Yield an executor on a Ray cluster, which is connected while the block runs.

    Parameters
    ----------
    on : str
        `ray` is the Ray that this process is connected to, else the cluster that RAY_ADDRESS names,
        else one that is started on this computer and stopped after the block. `ray://HOST:PORT` is
        a cluster reached by Ray's client.
    gpu : bool
        Whether each worker takes a GPU.
    batch_size : int or "auto"
        See `Resources`.
    """
    check_cluster(on)
    for name, value in {**NO_MESSAGES, **LONG_TIMEOUTS}.items():
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
    for attempt in range(1, attempts + 1):
        problem = _init(LOCAL, {"include_dashboard": False, **options})
        if not problem:
            return
        if attempt < attempts:
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
        with _without_stderr():  # where Ray's own processes announce their log level
            ray.init(
                address, logging_level=logging.ERROR, log_to_driver=False, **options
            )
        return ""
    except Exception as error:
        # where a part of it does not start, Ray raises the plain class
        ray.shutdown()
        # it does not stop the processes of a node that was never made
        _end(set(psutil.Process().children(recursive=True)) - before)
        reason = one_line(error)
    # nor does it ask whether they have ended, of which Python warns when it forgets them
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        gc.collect()
    return reason


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
    stderr = os.dup(2)
    try:
        with Path(os.devnull).open("w") as null:
            os.dup2(null.fileno(), 2)
        yield
    finally:
        os.dup2(stderr, 2)
        os.close(stderr)


def _address(on: str) -> str:
    """Return the address of the cluster, or ""."""
    return os.environ.get("RAY_ADDRESS", "") if on == RAY else on


@dataclass(frozen=True)
class Chunk:
    """Consecutive images: a whole number of batches."""

    items: tuple[Item, ...]
    keys: tuple[str, ...] = ()  # their contents; empty while they are hashed
    # by factor, the keys that the store has already
    known: Mapping[str, frozenset[str]] = field(default_factory=dict)


class OnRay(Local):
    """Executor for `extract_to_store` on the cluster that this process is connected to.

    Parameters
    ----------
    gpu : bool
        Whether each worker takes a GPU.
    client : bool
        Whether the cluster is reached by Ray's client. That cannot stream results, so an actor of
        the cluster runs the pipeline.
    batch_size : int or "auto"
        See `Resources`.
    """

    def __init__(
        self, gpu: bool = False, client: bool = False, batch_size: BatchSize = "auto"
    ) -> None:
        self.gpu = gpu
        self.client = client
        # a batch size that workers choose is a power of two, and divides the size of a shard
        self.batch_size = batch_size if isinstance(batch_size, int) else 1

    def hashes(self, items: Sequence[Item]) -> Iterator[Hashed]:
        """See `Local`."""
        chunks = []
        for start in range(0, len(items), HASH_IMAGES):
            chunks.append(Chunk(tuple(items[start : start + HASH_IMAGES])))
        work = partial(_hash_chunks, folder=_working_folder(items))
        for hashes in self._run(chunks, work, {"num_cpus": 1}, ordered=True):
            yield from map(tuple, hashes)

    def compute(
        self,
        store: Store,
        start: StartExtractor,
        keys: Sequence[str],
        items: Sequence[Item],
    ) -> Generator[Done, None, None]:
        """See `Local`."""
        chunks = self._chunks(store, keys, items)
        # the store by its folder, without what was read of it
        sent = Store(store.folder.resolve(), store.settings, store.precision)
        threads, workers = self._workers(len(chunks))
        options = {
            "fn_constructor_args": (sent, start, _working_folder(items), threads),
            "compute": workers,
            "num_cpus": threads,
        }
        if self.gpu:
            options["num_gpus"] = 1
        try:
            for images, errors, zero_gradients in self._run(chunks, Worker, options):
                yield Done(images, errors, zero_gradients)
        finally:
            store.look_again()

    def _chunks(
        self, store: Store, keys: Sequence[str], items: Sequence[Item]
    ) -> list[Chunk]:
        """Return the images in chunks of whole batches, about as large as a shard."""
        size = math.ceil(to_store.SHARD_IMAGES / self.batch_size) * self.batch_size
        stored = {name: store.shards(name).keys() for name in store.factors()}
        chunks = []
        for first in range(0, len(keys), size):
            part = tuple(keys[first : first + size])
            known = {}
            for name, stored_keys in stored.items():
                known[name] = frozenset(stored_keys & set(part))
            chunks.append(Chunk(tuple(items[first : first + size]), part, known))
        return chunks

    def _workers(self, chunks: int) -> tuple[int, ray.data.ActorPoolStrategy]:
        """Return the threads of a worker, and the number of workers at the start and at most.

        A worker has as many threads as a local run, unless no computer has that many, so that it
        rounds as a local run does.
        """
        import ray.data
        import torch

        cluster: list[dict[str, Any]] = ray.nodes()  # type: ignore[no-untyped-call]
        threads = torch.get_num_threads()
        suitable = []
        for node in cluster:
            if not node["Alive"]:
                continue
            resources = node["Resources"]
            if ("GPU" if self.gpu else "CPU") not in resources:
                continue
            suitable.append(resources)
            workers_here = resources["GPU"] if self.gpu else 1
            threads = min(threads, int(resources.get("CPU", 1) / workers_here))
        threads = max(1, threads) if suitable else 1
        fitting = 0
        for resources in suitable:
            fitting += resources["GPU"] if self.gpu else resources["CPU"] // threads
        first = max(1, min(chunks, int(fitting)))
        most = max(first, chunks)
        return threads, ray.data.ActorPoolStrategy(min_size=first, max_size=most)

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
                yield from map(read_result, _rows(*pipeline))
                return
            # the same from an actor of the cluster, which returns row by row
            actor: Any = ray.remote(num_cpus=0)(_Driver)
            driver = actor.remote(*pipeline)
            row = ray.get(driver.next_row.remote())
            while row is not None:
                yield read_result(row)
                row = ray.get(driver.next_row.remote())
        except (ray.exceptions.RayActorError, ray.exceptions.RaySystemError) as error:
            raise DeepFishingError(
                f"Ray was lost ({one_line(error)}); what is computed stays, run the command again "
                "to go on"
            ) from None


def _rows(
    chunks: Sequence[Chunk], work: Any, options: dict[str, Any], ordered: bool
) -> Iterator[dict[str, Any]]:
    """Yield the rows of the pipeline: the results of the chunks as JSON."""
    import ray.data

    context = ray.data.DataContext.get_current().copy()
    context.enable_progress_bars = False
    context.print_on_execution_start = False
    context.execution_options.preserve_order = ordered
    with ray.data.DataContext.current(context):
        # a block per chunk, so that a task that fails repeats only one of them
        rows = [{"chunk": chunk} for chunk in chunks]
        data = ray.data.from_items(rows, override_num_blocks=len(chunks))
        yield from data.map_batches(work, batch_size=1, **options).iter_rows()


class _Driver:
    """Actor that runs the pipeline inside the cluster."""

    def __init__(self, *pipeline: Any) -> None:
        self.rows = _rows(*pipeline)

    def next_row(self) -> dict[str, Any] | None:
        return next(self.rows, None)


class Worker:
    """A worker process, which loads network and engine for its first chunk."""

    def __init__(
        self, store: Store, start: StartExtractor, folder: Path | None, threads: int
    ) -> None:
        self.store = store
        self.start = start
        self.folder = folder
        self.threads = threads

    @cached_property
    def extractor(self) -> Extractor:
        """Made at the first use: Ray takes an error in `__init__` for the death of the worker."""
        _change_folder(self.folder)
        return self.start()

    def __call__(self, rows: RayRows) -> RayRows:
        """Compute the chunks of some rows and write them."""
        return _results(rows, self._extract)

    def _extract(self, chunk: Chunk) -> tuple[int, dict[str, str], list[str]]:
        """Return the number of images, the failed contents, and those with a zero gradient."""
        import torch

        # a setting of this thread alone; another number of threads rounds otherwise
        torch.set_num_threads(self.threads)
        append = partial(self.store.append, known=chunk.known)
        images = 0
        errors: dict[str, str] = {}
        zero_gradients: list[str] = []
        batches = self.extractor(chunk.items)
        for part in write_batches(batches, chunk.keys, chunk.items, append):
            images += part.images
            errors.update(part.errors)
            zero_gradients += part.zero_gradients
        return images, errors, zero_gradients


def _hash_chunks(rows: RayRows, folder: Path | None) -> RayRows:
    """Return the hashes of the images of some rows."""

    def work(chunk: Chunk) -> list[Hashed]:
        _change_folder(folder)
        return list(Local().hashes(chunk.items))

    return _results(rows, work)


def _working_folder(items: Sequence[Item]) -> Path | None:
    """Return the current folder if a path is relative to it."""
    for item in items:
        if isinstance(item.path, Path) and not item.path.is_absolute():
            return Path.cwd()
    return None


def _change_folder(folder: Path | None) -> None:
    """Work in the folder of the command, which this computer must have, too."""
    computer = f"{folder} on {platform.node()}"
    what = f"workers must see the folders of the command, got none at {computer}"
    with reraise_as(StoreError, what, "; start it in a shared folder", OSError):
        if folder:
            os.chdir(folder)


def _results(rows: RayRows, work: Callable[[Chunk], Any]) -> RayRows:
    """Return the result of `work` for each chunk, or our own error as name and text."""
    results = []
    for chunk in rows["chunk"]:
        try:
            result = {"value": work(chunk)}
        except DeepFishingError as error:
            result = {"error": [type(error).__name__, str(error)]}
        results.append(json.dumps(result))
    return {"result": results}


def read_result(row: Mapping[str, str]) -> Any:
    """Return the result of a chunk, or raise its error."""
    result = json.loads(row["result"])
    if "error" in result:
        name, message = result["error"]
        raise getattr(errors, name)(message)
    return result["value"]

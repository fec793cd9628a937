"""Past one machine: where the work is done, by name.

Comes in: `local`, `ray` or the address of a cluster. Goes out: a place for `extract_to_store`. What
Ray prints, serves or reports by itself is switched off; what it schedules and retries is not.
"""

from __future__ import annotations

import importlib.util
import logging
import os
import re
import socket
import tempfile
import traceback
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from deepfishing.errors import MissingDependencyError, OptionError, one_line, pip_install
from deepfishing.gradients.to_store import Local

LOCAL, RAY = "local", "ray"
WAIT = 10.0  # seconds for an address to answer
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


def check_place(on: str) -> None:
    """Refuse what is no place, what needs a package that is missing, or where nobody answers."""
    client = on.startswith("ray://")
    if on not in (LOCAL, RAY) and not (client and _ADDRESS.fullmatch(on)):
        raise OptionError(f"on must be local, ray or ray://HOST:PORT, got {on!r}")
    needed = [] if on == LOCAL else ["ray", *(["grpc"] if client else [])]
    if absent := [name for name in needed if importlib.util.find_spec(name) is None]:
        raise MissingDependencyError(
            f"--on {on} needs the package {' and '.join(absent)}; run "
            f"`{pip_install(extra='ray')}`, or take --on local"
        )
    address = _address(on)
    if found := _ADDRESS.fullmatch(address):  # tell at once what Ray would try for minutes
        try:
            place = found["host"].strip("[]"), int(found["port"])
            socket.create_connection(place, timeout=WAIT).close()
        except (OSError, OverflowError) as error:
            raise OptionError(
                f"Ray must answer at {address}, got no connection ({error}); start it with "
                "`ray start --head`, or correct the address"
            ) from None


@contextmanager
def connect(on: str, gpu: bool = False) -> Iterator[Local]:
    """A place to work, as long as the block lasts; with `gpu` each worker on Ray needs a GPU.

    `local` is this process. `ray` is the Ray that this process has, else the cluster that
    RAY_ADDRESS names, else one that is started on this machine and ends with the block.
    `ray://HOST:PORT` is a cluster reached by Ray's client.
    """
    check_place(on)
    if on == LOCAL:
        yield Local()
        return
    for name, value in {**QUIET, **PATIENT}.items():
        os.environ.setdefault(name, value)
    import ray

    from deepfishing.distributed.on_ray import OnRay

    logging.getLogger("ray.data").setLevel(logging.ERROR)
    logging.getLogger("ray").setLevel(logging.ERROR)
    if on == RAY and ray.is_initialized():
        yield OnRay(gpu)
        return
    start(_address(on), ATTEMPTS)
    try:
        yield OnRay(gpu, client=on != RAY)
    finally:
        ray.shutdown()


def start(address: str, attempts: int, **options: Any) -> None:
    """Connect this process to a cluster, or start one here in so many attempts.

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
            warnings.warn(f"Ray did not start ({problem}); it is tried again", stacklevel=2)
    raise OptionError(
        f"Ray must start on this machine, got {problem}; its logs are in "
        f"{Path(tempfile.gettempdir(), 'ray/session_latest/logs')}; or take --on local"
    )


def _init(address: str, options: dict[str, Any]) -> str:
    """What was wrong, or nothing; then Ray has started and this process is connected."""
    import ray

    try:
        with _without_stderr():  # Ray's own side tells there that it will be quiet
            ray.init(address, logging_level=logging.ERROR, log_to_driver=False, **options)
    except Exception as error:  # of a part that does not start Ray raises the plain class
        # end what was begun: Ray does not know of it, since its node was never made
        for frame, _ in traceback.walk_tb(error.__traceback__):
            if end := getattr(frame.f_locals.get("self"), "kill_all_processes", None):
                end(check_alive=False, allow_graceful=True)
        ray.shutdown()
        return one_line(error)
    return ""


@contextmanager
def _without_stderr() -> Iterator[None]:
    """Let nothing out on the process's standard error, whoever writes there."""
    kept = os.dup(2)
    try:
        with Path(os.devnull).open("w") as nowhere:
            os.dup2(nowhere.fileno(), 2)
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)


def _address(on: str) -> str:
    """Where a cluster is, or nothing."""
    return os.environ.get("RAY_ADDRESS", "") if on == RAY else on

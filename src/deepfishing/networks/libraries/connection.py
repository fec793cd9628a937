"""The hub that publishes weights, with and without a connection.

Without one its library tries for half a minute per file, also for files in its cache.
"""

from __future__ import annotations

import importlib
import importlib.util
import logging
import socket
import urllib.parse
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from deepfishing.errors import one_line

SECONDS = 3.0  # for a connection
MAX_REASON = 200  # characters of a library's explanation


@contextmanager
def hub_or_cache() -> Iterator[None]:
    """Let libraries read their cache alone if the hub cannot be reached."""
    constants = _constants()
    if constants is None:
        yield
        return
    before = constants.HF_HUB_OFFLINE
    constants.HF_HUB_OFFLINE = before or not _is_reachable(constants.ENDPOINT)
    try:
        yield
    finally:
        constants.HF_HUB_OFFLINE = before


def reason_of(error: Exception) -> str:
    """Return why a file of the hub cannot be had."""
    constants = _constants()
    if constants is not None and constants.HF_HUB_OFFLINE:
        host = urllib.parse.urlsplit(constants.ENDPOINT).hostname
        return f"not in the cache, and {host} cannot be reached"
    return one_line(error)[:MAX_REASON]


@contextmanager
def without_log() -> Iterator[None]:
    """Leave out the log of a library that also raises what it logs."""
    before = logging.root.manager.disable
    logging.disable(logging.ERROR)
    try:
        yield
    finally:
        logging.disable(before)


def _constants() -> Any:
    """Return the settings of the hub's library, which timm and transformers bring, or None."""
    if importlib.util.find_spec("huggingface_hub") is None:
        return None
    return importlib.import_module("huggingface_hub.constants")


def _is_reachable(address: str) -> bool:
    parts = urllib.parse.urlsplit(address)
    if {parts.scheme, "all"} & urllib.request.getproxies().keys():
        return True  # a proxy's connection cannot be judged from here
    port = parts.port or socket.getservbyname(parts.scheme)
    try:
        socket.create_connection((parts.hostname, port), SECONDS).close()
    except OSError:
        return False
    return True

"""Stage 3, gradients: how many images go through the head at a time, within a memory budget.

Comes in: what the head needs for one input, and a budget. Goes out: a batch size.

`auto` must give the same answer whenever a run is resumed, since another batch size may change the
last bit of a feature. So it does not look at what happens to be free: it is the largest power of
two whose inputs (images times views) are at most `MOST_INPUTS`, unless the budget demands a smaller
one. The budget that is used when none is given is a share of the memory that the machine or the
control group of this process has, capped, and so the same on every machine with 8 GB and more.
Where stores of different machines must agree to the last bit, give a number instead.
"""

from __future__ import annotations

import re
from typing import Literal

from deepfishing.errors import OptionError
from deepfishing.machine import memory_limits

BatchSize = int | Literal["auto"]

MOST_INPUTS = 32  # with more the head is hardly faster
SHARE = 1 / 4  # of the machine's memory,
CAP = 2 * 2**30  # and never more than this

_UNITS = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "ki": 2**10, "mi": 2**20, "gi": 2**30}


def check_batch_size(batch_size: BatchSize) -> None:
    """Refuse a batch without images."""
    if batch_size != "auto" and (not isinstance(batch_size, int) or batch_size < 1):
        raise OptionError(f"batch size must be auto or at least 1, got {batch_size!r}")


def parse_batch_size(text: str) -> BatchSize:
    """Read a batch size as the command line takes it.

    Examples
    --------
    >>> parse_batch_size("auto"), parse_batch_size("8")
    ('auto', 8)
    """
    if text == "auto":
        return "auto"
    try:
        batch_size = int(text)
    except ValueError:
        raise OptionError(f"batch size must be auto or a whole number, got {text!r}") from None
    check_batch_size(batch_size)
    return batch_size


def parse_memory(memory: int | str | None) -> int:
    """Bytes of a budget: a number, text such as `500MB` or `2GiB`, or None for the default.

    Examples
    --------
    >>> parse_memory("1.5 GB"), parse_memory("1GiB"), parse_memory(1000)
    (1500000000, 1073741824, 1000)
    """
    if memory is None:
        return default_memory()
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([kmg]i?)?b?", str(memory).strip().lower())
    amount = float(match[1]) * _UNITS[match[2] or ""] if match else 0
    if amount < 1:
        raise OptionError(f"memory must be bytes or text such as 2GB, got {memory!r}")
    return int(amount)


def default_memory() -> int:
    """A quarter of the memory that this process may use at most, and never more than 2 GiB."""
    return min([CAP, *(int(limit * SHARE) for limit in memory_limits())])


def choose_batch_size(bytes_per_input: int, views: int, memory: int | str | None = None) -> int:
    """The batch size that `auto` stands for: a power of two, at least 1.

    Parameters
    ----------
    bytes_per_input : int
        What one more input needs while the head works.
    views : int
        Inputs an image.
    memory : int, str or None
        The budget, see `parse_memory`.

    Examples
    --------
    >>> choose_batch_size(2_000_000, views=1, memory="1GB")
    32
    >>> choose_batch_size(2_000_000, views=1, memory="20MB"), choose_batch_size(1, views=6)
    (8, 4)
    """
    inputs = min(MOST_INPUTS, parse_memory(memory) // max(bytes_per_input, 1))
    images = max(1, inputs // views)
    return 1 << (images.bit_length() - 1)

"""Stage 3, gradients: what decides how fast factors are computed, and none of their numbers.

Comes in: what a user says of batch size, memory, engine and device. Goes out: `Resources`, and the
batch size that `auto` stands for. That must be the same whenever a run is resumed, since another
one may change the last bit of a feature, so it does not look at what happens to be free. Where
stores of different machines must agree to the last bit, give a number instead.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Annotated, Literal

from deepfishing.errors import OptionError
from deepfishing.machine import memory as machine_memory

BatchSize = Literal["auto"] | int  # the command line reads the first

MOST_INPUTS = 32  # images times views; with more the head is hardly faster
SHARE = 1 / 4  # of the machine's memory,
CAP = 2 * 2**30  # and never more than this

_UNITS = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "ki": 2**10, "mi": 2**20, "gi": 2**30}


@dataclass(frozen=True, kw_only=True)
class Resources:
    """What the work may use.

    Parameters
    ----------
    batch_size : int or "auto"
        Images per pass; the result does not depend on it, except for the last bits. `auto` is 32
        divided by the number of views, as a power of two, or what `memory` allows.
    memory : int or str, optional
        What a batch may need, in bytes or as `2GB`; by default a quarter of the memory of the
        machine, at most 2 GiB. Only `batch_size="auto"` looks at it.
    engine : "auto", "torch", "onnxruntime" or "openvino"
        What runs the network below the lowest layer asked for; `auto` is the fastest installed.
    device : str
        Where a network is put that is loaded for the work: cpu, cuda, cuda:1, mps.

    Examples
    --------
    >>> Resources(batch_size=8).engine
    'auto'
    >>> Resources(batch_size=0)
    Traceback (most recent call last):
    deepfishing.errors.OptionError: batch size must be auto or a number from 1, got 0
    """

    batch_size: Annotated[BatchSize, "Images per pass; auto is what memory allows."] = "auto"
    memory: Annotated[str | int | None, "What a batch may need, such as 2GB."] = None
    device: Annotated[str, "cpu, cuda, cuda:1, mps."] = "cpu"
    engine: Annotated[str, "What runs the trunk: auto, torch, onnxruntime or openvino."] = "auto"

    def __post_init__(self) -> None:
        object.__setattr__(self, "batch_size", parse_batch_size(self.batch_size))
        parse_memory(self.memory)


def parse_batch_size(batch_size: str | int) -> BatchSize:
    """A number, also as text; or `auto`."""
    if batch_size == "auto":
        return "auto"
    number = int(batch_size) if str(batch_size).isdecimal() else 0
    if number < 1:
        raise OptionError(f"batch size must be auto or a number from 1, got {batch_size!r}")
    return number


def parse_memory(memory: int | str | None) -> int:
    """Bytes of a budget; None is a share of what this process may use at most.

    >>> parse_memory("1.5 GB"), parse_memory("1GiB"), parse_memory(1000)
    (1500000000, 1073741824, 1000)
    """
    if memory is None:
        return min(CAP, int(machine_memory() * SHARE))
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([kmg]i?)?b?", str(memory).strip().lower())
    amount = float(match[1]) * _UNITS[match[2] or ""] if match else 0
    if amount < 1:
        raise OptionError(f"memory must be bytes or text such as 2GB, got {memory!r}")
    return int(amount)


def choose_batch_size(bytes_per_input: int, views: int, memory: int | str | None = None) -> int:
    """The batch size that `auto` stands for: a power of two, at least 1.

    >>> choose_batch_size(2_000_000, views=1, memory="1GB")
    32
    >>> choose_batch_size(2_000_000, views=1, memory="20MB"), choose_batch_size(1, views=6)
    (8, 4)
    """
    inputs = min(MOST_INPUTS, parse_memory(memory) // max(bytes_per_input, 1))
    images = max(1, inputs // views)
    return 1 << (images.bit_length() - 1)

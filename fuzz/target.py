"""What a target is: a reader, sound inputs for it, and what is known of their format."""

from __future__ import annotations

import os
import random
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

Run = Callable[[bytes], None]
Mutate = Callable[[bytes, random.Random], bytes]


@dataclass(frozen=True)
class Target:
    """One reader.

    Parameters
    ----------
    reads : str
        What it reads, in a few words.
    prepare : callable
        Takes an empty folder and returns what is done with each input there.
    seeds : callable
        Makes sound inputs.
    parts : int
        How many files an input is made of, see `parts`.
    tokens : tuple of bytes
        Words of the format.
    mutate : callable, optional
        A change that keeps the format: lengths, checksums.
    """

    reads: str
    prepare: Callable[[Path], Run]
    seeds: Callable[[], list[bytes]]
    parts: int = 1
    tokens: tuple[bytes, ...] = ()
    mutate: Mutate | None = None


def put(path: Path, content: bytes) -> Path:
    """Write a file as a new one: what is mapped into memory of an old one stays as it was."""
    path.unlink(missing_ok=True)
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT)
    try:
        os.write(descriptor, content)
    finally:
        os.close(descriptor)
    return path


def one_of(data: bytes, n: int) -> int:
    """A number below n that depends on the input alone, to choose between several ways."""
    return sum(data[-64:]) % n if data else 0

"""Writing files so that a reader, or a crash, never sees half of one; and telling a changed one."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

SEAL = "seal"


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """A temporary name beside `path` that takes its place when the block ends without error.

    Examples
    --------
    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     target = Path(folder, "a.txt")
    ...     with replacing(target) as partial:
    ...         _ = partial.write_text("whole")
    ...     print(target.read_text(), len(list(Path(folder).iterdir())))
    whole 1
    """
    partial = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        yield partial
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)


def sealed(facts: Mapping[str, Any]) -> dict[str, Any]:
    """Facts for a JSON file with a hash of themselves, so that a changed one can be told.

    Examples
    --------
    >>> facts = sealed({"tau": 2.0})
    >>> is_intact(facts), is_intact({**facts, "tau": 3.0})
    (True, False)
    """
    return {**facts, SEAL: _hash(facts)}


def is_intact(facts: Mapping[str, Any]) -> bool:
    """Whether facts are as they were sealed; those without a seal, of an older version, count so.

    A single flipped bit cannot take the seal away and change something else too.
    """
    rest = {name: value for name, value in facts.items() if name != SEAL}
    return SEAL not in facts or facts[SEAL] == _hash(rest)


def _hash(facts: Mapping[str, Any]) -> str:
    """Of the values alone: spaces and the order of names do not matter."""
    as_read = json.loads(json.dumps(facts))
    return hashlib.sha256(json.dumps(as_read, sort_keys=True).encode()).hexdigest()

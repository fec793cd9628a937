"""Writing files so that a reader, or a crash, never sees half of one."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


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

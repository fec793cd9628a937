"""`deepfish`, which tells what it has in use when it is asked.

    python benchmarks/watched.py FILE serve STORE

At SIGUSR1 it writes to FILE how many blocks of memory Python has in use and how many bytes the C
library has given out, in JSON. The resident set also has what was freed and is kept for later.
"""

from __future__ import annotations

import ctypes
import gc
import json
import signal
import sys
from pathlib import Path

from deepfishing.cli import main

COUNTS = "arena ordblks smblks hblks hblkhd usmblks fsmblks uordblks fordblks keepcost"


class Malloc(ctypes.Structure):
    """The answer of glibc's mallinfo2."""

    _fields_ = tuple((name, ctypes.c_size_t) for name in COUNTS.split())


def in_use() -> dict[str, int | None]:
    gc.collect()
    blocks, ask = (
        sys.getallocatedblocks(),
        getattr(ctypes.CDLL(None), "mallinfo2", None),
    )
    if ask is None:  # a C library that does not tell
        return {"blocks": blocks, "bytes": None}
    ask.restype = Malloc
    told = ask()
    return {"blocks": blocks, "bytes": told.uordblks + told.hblkhd}


def tell(file: Path) -> None:
    part = file.with_suffix(".part")
    part.write_text(json.dumps(in_use()))
    part.replace(file)


if __name__ == "__main__":
    given = Path(sys.argv.pop(1))
    signal.signal(signal.SIGUSR1, lambda *_: tell(given))
    main()

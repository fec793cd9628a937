"""Several files as one input, for readers of folders.

Comes in: the contents of a fixed number of files. Goes out: bytes; and back, whatever has become
of the bytes in between.
"""

from __future__ import annotations

from collections.abc import Sequence

_DIGITS = 3  # bytes of a length


def join(parts: Sequence[bytes]) -> bytes:
    """One input of several files.

    Examples
    --------
    >>> split(join([b"one", b"", b"three"]), 3)
    [b'one', b'', b'three']
    """
    return b"".join(len(part).to_bytes(_DIGITS, "big") + part for part in parts)


def split(data: bytes, n: int) -> list[bytes]:
    """Exactly n files of any input; where a length is damaged, the rest moves to another file.

    Examples
    --------
    >>> split(b"\\xff\\xff\\xffx", 2)
    [b'x', b'']
    """
    found = []
    for _ in range(n):
        size = int.from_bytes(data[:_DIGITS], "big")
        found.append(data[_DIGITS : _DIGITS + size])
        data = data[_DIGITS + size :]
    return found

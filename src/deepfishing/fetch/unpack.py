"""Before stage 1, fetching: tar archives become a folder, whole or not at all.

Comes in: verified archives. Goes out: a folder that holds what they hold and `fetched.json`,
which says what it was made of. Everything is unpacked beside the folder, which gets its name
last; what an interrupted run left is thrown away. An archive is untrusted all the same: only
plain files and folders that stay inside, no more of them than a data set has, and no more bytes
than the archive itself is long.
"""

from __future__ import annotations

import json
import shutil
import tarfile
from collections.abc import Iterator, Sequence
from pathlib import Path, PurePosixPath
from typing import Any

from deepfishing.errors import FetchError
from deepfishing.fetch.download import Progress, disk_errors

RECORD = "fetched.json"
_MOST_MEMBERS = 100_000  # VOC2012, the largest, has 40 thousand
# what the reader raises for damaged bytes, found by damaging archives at random places
_DAMAGED = (
    *(tarfile.TarError, EOFError, OverflowError, RecursionError, ValueError, LookupError),
    MemoryError,
)


def unpack(
    archives: Sequence[Path],
    folder: Path,
    made_of: dict[str, str],
    progress: Progress,
    most_members: int = _MOST_MEMBERS,
) -> None:
    """Unpack archives into a new folder.

    Parameters
    ----------
    archives : sequence of Path
        Uncompressed tar files.
    folder : Path
        Must not be there yet.
    made_of : dict from str to str
        File name and digest of each archive, for the record.
    progress : callable
        Told "unpacking", the bytes that are done and the bytes there are.
    most_members : int
        How many files and folders an archive may hold.
    """
    if not hasattr(tarfile, "data_filter"):
        raise FetchError(f"unpacking to {folder} needs Python 3.11.4 or newer, for its safe tar")
    partial = folder.with_name(f".{folder.name}.unpacking")
    with disk_errors(folder):
        if partial.exists():
            shutil.rmtree(partial)
        partial.mkdir(parents=True)
        total = sum(path.stat().st_size for path in archives)
        before = 0
        for path in archives:
            for done in _unpack_one(path, partial, most_members):
                progress("unpacking", before + done, total)
            before += path.stat().st_size
        record = {"archives": made_of, **_extent(partial)}
        (partial / RECORD).write_text(json.dumps(record, indent=1))
        partial.rename(folder)


def difference(folder: Path, made_of: dict[str, str]) -> str:
    """What tells a folder from one that `unpack` made; empty if nothing does.

    Counts files and bytes; that there are more of them than there were is no harm.
    """
    try:
        record: Any = json.loads((folder / RECORD).read_bytes())
    except FileNotFoundError:
        return f"was not made by `deepfish fetch`: it has no {RECORD}"
    except (ValueError, RecursionError):
        return f"has a damaged {RECORD}"
    if not isinstance(record, dict) or record.get("archives") != made_of:
        return "was made of other archives than the published ones"
    # without the record itself, which was written after the count
    own = {"files": 1, "bytes": (folder / RECORD).stat().st_size}
    for what, found in _extent(folder).items():
        expected = record.get(what)
        if not isinstance(expected, int) or found - own[what] < expected:
            return f"must hold {expected} {what}, got {found - own[what]}"
    return ""


def _unpack_one(path: Path, folder: Path, most_members: int) -> Iterator[int]:
    """Unpack an archive; yields how many bytes of it are done."""
    length = path.stat().st_size
    written = 0
    try:
        with tarfile.open(path, "r:") as archive:  # "r:" takes no compressed archive
            for number, member in enumerate(archive, start=1):
                written += member.size
                problem = _problem(member)
                if number > most_members:
                    problem = f"is one of more than {most_members} members"
                elif written > length:  # a plain archive cannot hold more than its own length
                    problem = f"brings the content to {written} bytes in an archive of {length}"
                if problem:
                    raise FetchError(f"{path} cannot be unpacked: {member.name!r} {problem}")
                # no owner, mode or date of the archive is taken over
                archive.extract(member, folder, set_attrs=False, filter="data")
                yield member.offset_data + member.size
            # the reader takes a damaged header for the end; the real end is a block of zeros
            with path.open("rb") as file:
                file.seek(archive.offset)
                if file.read(tarfile.BLOCKSIZE) != bytes(tarfile.BLOCKSIZE):
                    raise tarfile.ReadError("no end of archive")
    except _DAMAGED as error:
        reason = " ".join(repr(str(error)).split())[:100].strip("'\"")
        raise FetchError(f"{path} is damaged or not a tar archive ({reason})") from None


def _problem(member: tarfile.TarInfo) -> str:
    """Why a member is refused; empty if it is not."""
    name = PurePosixPath(member.name)
    if name.is_absolute() or ".." in name.parts or "\\" in member.name:
        return "must be a path inside the folder"
    if member.size < 0:  # the reader would go back and find it again, without end
        return "must have a size, got a negative one"
    if not (member.isreg() or member.isdir()) or member.issparse():
        return "must be a plain file or folder, not a link, a device or a sparse file"
    return ""


def _extent(folder: Path) -> dict[str, int]:
    sizes = [path.stat().st_size for path in folder.rglob("*") if path.is_file()]
    return {"files": len(sizes), "bytes": sum(sizes)}

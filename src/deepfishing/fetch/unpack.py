"""Unpacking of archives (.tar, .tar.gz, .zip) into a folder, completely or not at all.

The folder holds the contents of the archives, the other files, and `fetched.json`, which lists
their origin. Everything is unpacked beside the folder, which gets its name last; leftovers of an
interrupted run are removed. Archives are untrusted: only plain files and folders that stay inside,
a bounded number of them, and at most as many bytes as the archive has, or ten times that if it is
compressed.
"""

from __future__ import annotations

import gzip
import json
import shutil
import tarfile
import zipfile
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path, PurePosixPath, PureWindowsPath
from typing import IO, Any

from deepfishing.errors import FetchError
from deepfishing.fetch.download import disk_errors
from deepfishing.util.progress import Progress

RECORD = "fetched.json"
_MOST_MEMBERS = 150_000  # SUN397, the largest, has 110 thousand
# how much larger than a compressed archive its content may be: pictures hardly shrink
_LARGER = 10

# name, size, why it is refused if it is, and how to unpack it
_Member = tuple[str, int, str, Callable[[], object]]


def unpack(
    archives: Sequence[Path],
    folder: Path,
    made_of: dict[str, str],
    progress: Progress,
    inner: Sequence[str] = (),
) -> None:
    """Unpack archives, and then those `inner` ones that they hold, into a new folder.

    A file that is not an archive by its name is copied. `made_of` has the digest of each file.
    """
    if not hasattr(tarfile, "data_filter"):
        raise FetchError(
            f"unpacking to {folder} needs Python 3.11.4 or newer, for its safe tar"
        )
    beside = folder.with_name(f".{folder.name}.unpacking")
    with disk_errors(folder):
        if beside.exists():
            shutil.rmtree(beside)
        beside.mkdir(parents=True)
        sizes = [path.stat().st_size for path in archives]
        total = sum(sizes)
        for number, path in enumerate(archives):
            for done in _unpack_one(path, beside):
                progress("unpacking", sum(sizes[:number]) + done, total)
        for path in (beside / name for name in inner):
            for _ in _unpack_one(path, path.parent):
                progress("unpacking", total, total)
            path.unlink()
        record = {"archives": made_of, **_extent(beside)}
        (beside / RECORD).write_text(json.dumps(record, indent=1), encoding="utf-8")
        beside.rename(folder)


def difference(folder: Path, made_of: dict[str, str]) -> str:
    """Return the difference between a folder and one that `unpack` made, or "".

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
    added = {"files": 1, "bytes": (folder / RECORD).stat().st_size}
    for what, found in _extent(folder).items():
        expected = record.get(what)
        if not isinstance(expected, int) or found - added[what] < expected:
            return f"must hold {expected} {what}, got {found - added[what]}"
    return ""


def _unpack_one(path: Path, folder: Path) -> Iterator[int]:
    """Unpack an archive, or copy another file; yields how many bytes of it are done."""
    length = path.stat().st_size
    packed = path.name.endswith((".tar.gz", ".tgz", ".zip"))
    if not packed and path.suffix != ".tar":
        shutil.copyfile(path, folder / path.name)
        yield length
        return
    # a plain archive cannot hold more than its length
    most = length * (_LARGER if packed else 1)
    written = 0
    try:
        with path.open("rb") as file:
            members = enumerate(_members(path, file, folder), start=1)
            for number, (name, size, problem, extract) in members:
                written += size
                if number > _MOST_MEMBERS:
                    problem = f"is one of more than {_MOST_MEMBERS} members"
                elif written > most:
                    problem = f"brings the content to {written} bytes in an archive of {length}"
                if problem:
                    raise FetchError(f"{path} cannot be unpacked: {name!r} {problem}")
                extract()
                yield file.tell()
    except Exception as error:  # damaged bytes make the readers raise almost anything
        if isinstance(error, OSError) and not isinstance(error, gzip.BadGzipFile):
            raise
        reason = " ".join(repr(str(error)).split())[:100].strip("'\"")
        kind = "zip" if path.suffix == ".zip" else "tar"
        raise FetchError(
            f"{path} is damaged or not a {kind} archive ({reason})"
        ) from None


def _members(path: Path, file: IO[bytes], folder: Path) -> Iterator[_Member]:
    if path.suffix == ".zip":
        with zipfile.ZipFile(file) as archive:
            for entry in archive.infolist():
                extract = partial(archive.extract, entry, folder)
                yield entry.filename, entry.file_size, _outside(entry.filename), extract
        return
    # no "r:*", which would take what another name promises
    plain = path.suffix == ".tar"
    with tarfile.open(fileobj=file, mode="r:" if plain else "r:gz") as tar:
        for member in tar:
            # no owner, mode or date of the archive is taken over
            unpack = partial(
                tar.extract, member, folder, set_attrs=False, filter="data"
            )
            yield member.name, member.size, _problem(member), unpack
        if plain:
            # the reader takes a damaged header for the end; the real end is a block of zeros
            file.seek(tar.offset)
            if file.read(tarfile.BLOCKSIZE) != bytes(tarfile.BLOCKSIZE):
                raise tarfile.ReadError("no end of archive")
        else:
            while tar.fileobj and tar.fileobj.read(1 << 20):
                # up to the checksum at the end
                pass


def _outside(member: str) -> str:
    name = PurePosixPath(member)
    escapes = name.is_absolute() or ".." in name.parts or "\\" in member
    has_drive = any(PureWindowsPath(part).drive for part in name.parts)
    if escapes or has_drive:
        return "must be a path inside the folder"
    return ""


def _problem(member: tarfile.TarInfo) -> str:
    """Return why a member of an archive is refused, or ""."""
    problem = _outside(member.name)
    if problem:
        return problem
    if member.size < 0:  # the reader would go back and find it again, without end
        return "must have a size, got a negative one"
    if not (member.isreg() or member.isdir()) or member.issparse():
        return "must be a plain file or folder, not a link, a device or a sparse file"
    return ""


def _extent(folder: Path) -> dict[str, int]:
    sizes = [path.stat().st_size for path in folder.rglob("*") if path.is_file()]
    return {"files": len(sizes), "bytes": sum(sizes)}

"""Transactions: several files are written and deleted together, or none of them.

All new files are written under temporary names. Then the list of changes, `.journal-*`, is put in
place, and only then they are made. A process killed before that point changes nothing; after it,
the next writer finishes. Every transaction has its own journal and temporary names, so several
processes, also on several machines, may add files at the same time.
"""

from __future__ import annotations

import json
import os
import re
import secrets
from pathlib import Path

from deepfishing.errors import StoreError
from deepfishing.util.files import read_regular, remove_file, rename_file, replacing

JOURNALS = ".journal*"
MAX_JOURNAL_BYTES = 1 << 28
LEFTOVER = re.compile(
    r"\.(shard-\w+\.parquet|index\.parquet|store\.json|\.journal-\d+)\.\d+"
)


class Journal:
    """One change of a folder.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     journal = Journal(Path(folder))
    ...     journal.write(Path(folder, "x7", "shard-0.parquet"), b"rows")
    ...     before = Path(folder, "x7", "shard-0.parquet").exists()
    ...     journal.commit()
    ...     print(before, Path(folder, "x7", "shard-0.parquet").read_bytes())
    False b'rows'
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._number = secrets.randbits(63)  # process ids repeat on other machines
        self._file = folder / f".journal-{self._number}"
        self._new: dict[str, str] = {}  # temporary name -> name, both below the folder
        self._old: list[str] = []

    def write(self, path: Path, content: bytes) -> None:
        """Add a file to be written; its folder is made."""
        partial = path.with_name(f".{path.name}.{self._number}")
        self._new[self._name(partial)] = self._name(path)
        check_no_link(path.parent)
        path.parent.mkdir(exist_ok=True)
        partial.write_bytes(content)

    def remove(self, path: Path) -> None:
        """Add a file to be deleted."""
        self._old.append(self._name(path))

    def commit(self) -> None:
        """Make all changes."""
        if self._new or self._old:
            with replacing(self._file) as partial:
                changes = json.dumps({"rename": self._new, "remove": self._old})
                partial.write_text(changes, encoding="utf-8")
            _finish(self._file)

    def discard(self) -> None:
        """Roll back."""
        if not self._file.exists():
            for name in self._new:
                (self.folder / name).unlink(missing_ok=True)

    def _name(self, path: Path) -> str:
        return path.relative_to(self.folder).as_posix()


def finish(folder: Path) -> None:
    """Finish the changes of killed writers; changes that were made already are skipped."""
    for journal in sorted(folder.glob(JOURNALS)):
        _finish(journal)


def _finish(journal: Path) -> None:
    folder = journal.parent
    try:
        todo = json.loads(read_regular(journal, MAX_JOURNAL_BYTES))
        new = []
        for partial, path in todo["rename"].items():
            new.append((_file_below(folder, partial), _file_below(folder, path)))
        old = [_file_below(folder, name) for name in todo["remove"]]
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
        raise StoreError(
            f"journal is damaged: {journal}; delete it and extract again"
        ) from None
    for partial, path in new:
        try:
            rename_file(partial, path)
        except FileNotFoundError:
            continue  # renamed already
        except PermissionError:
            # Windows keeps a shard that is in use; of the same name, it has the same content
            if not path.exists():
                raise
            partial.unlink()
    for path in old:
        # one that Windows keeps has rows of no image, which the next run drops
        remove_file(path)
    journal.unlink(missing_ok=True)


def recover(folder: Path) -> None:
    """Finish the changes of killed writers, and delete the temporary files that they left.

    Only for the one writer of a folder.
    """
    finish(folder)
    for path in leftovers(folder):
        remove_file(path)


def leftovers(folder: Path) -> list[Path]:
    """Return the temporary files of writers at work and of killed ones."""
    return sorted(p for p in folder.rglob(".*") if LEFTOVER.fullmatch(p.name))


def check_no_link(folder: Path) -> None:
    """Refuse a folder inside a store that is a link: it could lead anywhere."""
    if folder.is_symlink():
        raise StoreError(
            f"a folder in a store must not be a link, got {folder}; put the folder itself there"
        )


def _file_below(folder: Path, name: str) -> Path:
    """Return the path of a file in a store; refuse a name that could lead elsewhere.

    A store may come from anywhere, and so may its journal.
    """
    relative = Path(name)
    is_outside = ".." in relative.parts or relative.is_absolute() or relative.drive
    is_too_long = any(len(part) > 255 for part in os.fsencode(name).split(b"/"))
    if not relative.parts or is_outside or is_too_long or "\0" in name:
        raise ValueError(name)
    path = folder / relative
    # also through a link
    is_elsewhere = not path.parent.resolve().is_relative_to(folder.resolve())
    if path.is_dir() or is_elsewhere:
        raise ValueError(name)
    return path

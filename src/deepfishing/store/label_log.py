"""Append-only log of the labels that people give to the images of a store.

`labels.jsonl` is in the store's folder beside the index. Each line is one act, such as fifty
photos that were labelled at once: its id, time, author and origin, and per image the content hash,
the path and the labels before and after. Labels belong to the content of an image, so they stay
when the file is moved. Nothing in the file is ever changed; an act is undone by another line.

A writer holds `.labels.lock`, which is not the lock of the features, so labels can be written while
an extraction runs. Readers need no lock: a line counts as soon as it ends with a line break. The
end of a line that a killed writer left is ignored, and the next writer cuts it off.
"""

from __future__ import annotations

import contextlib
import errno
import getpass
import json
import os
import secrets
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from deepfishing.errors import OptionError, StoreError, reraise_as
from deepfishing.store.manifest import Row
from deepfishing.util.files import check_regular, is_intact, sealed
from deepfishing.util.locks import hold_lock

LOG = "labels.jsonl"
LOG_LOCK = ".labels.lock"
MAX_LOG_BYTES = 4 * 2**30
# an act takes milliseconds, so that a longer wait means that something hangs
LOCK_SECONDS = 30.0

# Kinds of acts
SET, ADD_CLASS, RENAME_CLASS, PIXELS, UNDO = (
    "set",
    "add class",
    "rename class",
    "pixels",
    "undo",
)

Labels = tuple[str, ...] | None  # () for "none of the classes", None for "not labelled"


@dataclass(frozen=True)
class Change:
    """New labels of one image.

    `content` is its SHA-256 and `path` is where it was seen, for people to read. `labels` are all
    labels that the image has from now on: () if it shows none of the classes, None if it is not
    labelled. `before` are the labels that were replaced; the log adds them where it has them.
    """

    content: str
    path: str
    labels: Labels
    before: Labels = None


@dataclass(frozen=True)
class Act:
    """One line of the log."""

    id: str
    time: str  # ISO 8601, UTC
    kind: str
    origin: str  # the program or page that wrote it
    author: str
    changes: tuple[Change, ...] = ()  # of "set"
    # the new one of "add class"; old and new of "rename class"
    classes: tuple[str, ...] = ()
    # of "pixels": hash by content
    pixels: Mapping[str, str] = field(default_factory=dict)
    undoes: str = ""  # of "undo": the id of an act

    def as_dict(self) -> dict[str, Any]:
        """Return the act as it is written to the log."""
        about = {
            "id": self.id,
            "time": self.time,
            "origin": self.origin,
            "author": self.author,
        }
        document: dict[str, Any] = {**about, "kind": self.kind}
        if self.kind == SET:
            document["changes"] = [
                {
                    "content": change.content,
                    "path": change.path,
                    "before": _as_list(change.before),
                    "after": _as_list(change.labels),
                }
                for change in self.changes
            ]
        elif self.kind == PIXELS:
            document["pixels"] = dict(self.pixels)
        elif self.kind == UNDO:
            document["undoes"] = self.undoes
        else:
            document["classes"] = list(self.classes)
        return document

    @classmethod
    def from_dict(cls, document: Mapping[str, Any]) -> Act:
        """Return the act of a line; raise an error if it is not one."""
        changes = []
        for entry in document.get("changes", ()):
            labels, before = _as_tuple(entry["after"]), _as_tuple(entry["before"])
            changes.append(
                Change(str(entry["content"]), str(entry["path"]), labels, before)
            )
        about = {
            name: str(document[name])
            for name in ("id", "time", "kind", "origin", "author")
        }
        return cls(
            **about,
            changes=tuple(changes),
            classes=tuple(map(str, document.get("classes", ()))),
            pixels={str(k): str(v) for k, v in document.get("pixels", {}).items()},
            undoes=str(document.get("undoes", "")),
        )


@dataclass
class _State:
    """Labels after some acts."""

    labels: dict[str, Labels] = field(default_factory=dict)  # by content
    classes: dict[str, None] = field(default_factory=dict)  # declared, in order
    # of labels that the log does not hold
    renamed: dict[str, str] = field(default_factory=dict)
    # hash of the pixels by content
    pixels: dict[str, str] = field(default_factory=dict)

    def apply(self, act: Act) -> None:
        if act.kind == SET:
            for change in act.changes:
                self.labels[change.content] = change.labels
                self.classes.update(dict.fromkeys(change.labels or ()))
        elif act.kind == ADD_CLASS:
            self.classes.update(dict.fromkeys(act.classes))
        elif act.kind == RENAME_CLASS:
            self._rename(*act.classes)
        elif act.kind == PIXELS:
            self.pixels.update(act.pixels)

    def _rename(self, old: str, new: str) -> None:
        mapping = {old: new}
        for content, labels in self.labels.items():
            if labels is not None and old in labels:
                self.labels[content] = _renamed(labels, mapping)
        self.renamed = {name: mapping.get(to, to) for name, to in self.renamed.items()}
        self.renamed.setdefault(old, new)
        self.classes = dict.fromkeys(
            mapping.get(name, name) for name in (*self.classes, new)
        )


class LabelLog:
    """The labels that people gave to the images of a store.

    Several processes may write at the same time. Every method that reads sees what others have
    written in the meantime.

    Examples
    --------
    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     log = LabelLog.open(folder)
    ...     act = log.append([Change("c0ffee", "a.jpg", ("cat",))], origin="example")
    ...     _ = log.edit({"c0ffee": "a.jpg"}, add=["indoors"], origin="example")
    ...     print(log.current())
    ...     _ = log.undo(origin="example")
    ...     print(log.current())
    {'c0ffee': ('cat', 'indoors')}
    {'c0ffee': ('cat',)}
    """

    def __init__(self, folder: str | Path) -> None:
        self.folder = Path(folder)
        self.path = self.folder / LOG
        self._acts: list[Act] = []
        self._state = _State()
        self._read_bytes = 0
        self._file_number = -1
        self._threads = threading.RLock()

    @classmethod
    def open(cls, folder: str | Path) -> LabelLog:
        """Open the log of a store; it may be empty. The file is made by the first change."""
        log = cls(folder)
        log._refresh()
        return log

    def __repr__(self) -> str:
        return f"LabelLog({str(self.path)!r}: {len(self.current()):,} images)"

    def current(self) -> dict[str, Labels]:
        """Return the labels by content hash.

        () means that the image shows none of the classes, None that it is not labelled, whatever
        its folder is called. Images that are not in the log keep the labels of their source.
        """
        self._refresh()
        return dict(self._state.labels)

    def apply(self, content: str | None, labels: Labels) -> Labels:
        """Return the labels of an image whose source gives it `labels`.

        Acts that other processes wrote since the last call of another method are not seen.
        """
        state = self._state
        if content in state.labels:
            return state.labels[content]
        if labels is None or not state.renamed:
            return labels
        return _renamed(labels, state.renamed)

    def refresh(self) -> None:
        """Read what other processes have written since."""
        self._refresh()

    def classes(self, labels: Iterable[Labels] = ()) -> tuple[str, ...]:
        """Return all class names in order: those of the log, and those in `labels` of images."""
        self._refresh()
        names = dict(self._state.classes)
        for one in labels:
            names.update(dict.fromkeys(one or ()))
        return tuple(sorted(names))

    def pixels(self) -> dict[str, str]:
        """Return the hash of the pixels by content hash, where it was recorded."""
        self._refresh()
        return dict(self._state.pixels)

    def history(self) -> list[Act]:
        """Return the acts that were not undone, the oldest first."""
        self._refresh()
        return [act for act in _active(self._acts) if act.kind not in (UNDO, PIXELS)]

    def lines(self, start: int = 0) -> list[Act]:
        """Return all acts from the number `start` on, also those that were undone, as written."""
        self._refresh()
        return self._acts[start:]

    def append(
        self,
        changes: Iterable[Change],
        *,
        origin: str,
        author: str | None = None,
        base: Mapping[str, Labels] | None = None,
    ) -> Act | None:
        """Give images new labels, all of them at once; the result is on disk when this returns.

        Parameters
        ----------
        changes : iterable of Change
            Of two changes of one content the last counts.
        origin : str
            The program or page that they come from.
        author : str, optional
            The name of the user by default.
        base : mapping, optional
            Labels by content that the source of the images gives them, to fill in `before`.

        Returns
        -------
        act : Act or None
            None if all images have these labels already.
        """
        by_content = {change.content: change for change in changes}
        with self._writing():
            effective = []
            for change in by_content.values():
                before = self._before(change, base or {})
                labels = _checked(change.labels)
                known = change.content in self._state.labels
                if not (known and self._state.labels[change.content] == labels):
                    effective.append(
                        Change(change.content, change.path, labels, before)
                    )
            if not effective:
                return None
            return self._write(SET, origin, author, changes=tuple(effective))

    def edit(
        self,
        images: Mapping[str, str],
        *,
        origin: str,
        add: Sequence[str] = (),
        remove: Sequence[str] = (),
        author: str | None = None,
        base: Mapping[str, Labels] | None = None,
    ) -> Act | None:
        """Add and remove labels of images, given as path by content; others stay.

        Nothing that another process adds to the same image in the meantime is lost.
        """
        added = _checked(tuple(add)) or ()
        with self._writing():
            changes = []
            for content, path in images.items():
                before = self.apply(content, (base or {}).get(content))
                kept = [label for label in before or () if label not in remove]
                labels = tuple(dict.fromkeys([*kept, *added]))
                if labels != before:
                    changes.append(Change(content, path, labels, before))
            if not changes:
                return None
            return self._write(SET, origin, author, changes=tuple(changes))

    def add_class(
        self, name: str, *, origin: str, author: str | None = None
    ) -> Act | None:
        """Declare a class that no image has yet."""
        checked = _checked((name,)) or ()
        with self._writing():
            if checked[0] in self._state.classes:
                return None
            return self._write(ADD_CLASS, origin, author, classes=checked)

    def rename_class(
        self, old: str, new: str, *, origin: str, author: str | None = None
    ) -> Act | None:
        """Rename a class, also in labels that come from folder names; or merge it into another.

        If `new` exists the two classes are one from now on.
        """
        names = *(_checked((old,)) or ()), *(_checked((new,)) or ())
        with self._writing():
            if names[0] == names[1]:
                return None
            return self._write(RENAME_CLASS, origin, author, classes=names)

    def record_pixels(self, pixels: Mapping[str, str], *, origin: str) -> Act | None:
        """Record the hash of the pixels by content, so that a re-saved file is found again."""
        with self._writing():
            known = self._state.pixels
            new = {
                key: value for key, value in pixels.items() if known.get(key) != value
            }
            return self._write(PIXELS, origin, None, pixels=new) if new else None

    def undo(
        self, id_: str | None = None, *, origin: str, author: str | None = None
    ) -> Act | None:
        """Undo an act, by default the last one that counts; return it, or None if there is none.

        Acts that came later keep their effect. Undoing again undoes the act before.
        """
        with self._writing():
            candidates = [
                act for act in _active(self._acts) if act.kind not in (UNDO, PIXELS)
            ]
            if id_ is not None:
                candidates = [act for act in candidates if act.id == id_]
                if not candidates:
                    raise OptionError(
                        f"an act to undo must be in {self.path} and count, got {id_!r}; see "
                        "`deepfish label STORE --log`"
                    )
            if not candidates:
                return None
            self._write(UNDO, origin, author, undoes=candidates[-1].id)
            return candidates[-1]

    def redo(self, *, origin: str, author: str | None = None) -> Act | None:
        """Undo the last undo if no other act came after it; return the act that counts again."""
        with self._writing():
            undos = {act.id for act in self._acts if act.kind == UNDO}
            counting = [
                act
                for act in _active(self._acts)
                if act.kind != PIXELS and act.undoes not in undos
            ]
            if not counting or counting[-1].kind != UNDO:
                return None
            self._write(UNDO, origin, author, undoes=counting[-1].id)
            return next(act for act in self._acts if act.id == counting[-1].undoes)

    def _before(self, change: Change, base: Mapping[str, Labels]) -> Labels:
        if change.before is not None:
            return change.before
        return self.apply(change.content, base.get(change.content))

    @contextlib.contextmanager
    def _writing(self) -> Iterator[None]:
        """Hold the lock of the log, and see all acts of others."""
        if not self.folder.is_dir():
            raise StoreError(
                f"a label log must be in a store's folder, got {self.folder}"
            )
        busy = StoreError(
            f"labels cannot be written: {self.path} (another process has held its lock for "
            f"{LOCK_SECONDS:.0f} seconds); stop that process"
        )
        do = "; make the folder writable"
        with contextlib.ExitStack() as stack:
            with reraise_as(
                StoreError, f"labels cannot be written: {self.path}", do, OSError
            ):
                lock = hold_lock(
                    self.folder / LOG_LOCK, seconds=LOCK_SECONDS, busy=busy
                )
                stack.enter_context(lock)
            stack.enter_context(self._threads)
            self._refresh()
            yield

    def _write(self, kind: str, origin: str, author: str | None, **content: Any) -> Act:
        """Append one act; the caller holds the lock."""
        act = Act(
            id=secrets.token_hex(8),
            time=datetime.now(UTC).isoformat(timespec="milliseconds"),
            kind=kind,
            origin=origin,
            author=_user() if author is None else author,
            **content,
        )
        line = json.dumps(sealed(act.as_dict()), ensure_ascii=False).encode() + b"\n"
        do = "; nothing was changed, free some space or make it writable and try again"
        with reraise_as(
            StoreError, f"labels cannot be written: {self.path}", do, OSError
        ):
            is_new = not self.path.exists()
            with self.path.open("ab") as file:
                if file.tell() > self._read_bytes:
                    # the end of a line of a killed writer
                    file.truncate(self._read_bytes)
                try:
                    file.write(line)
                    file.flush()
                    os.fsync(file.fileno())
                except OSError:
                    with contextlib.suppress(OSError):
                        os.truncate(self.path, self._read_bytes)
                    raise
            if is_new:
                _sync_folder(self.folder)
        self._refresh()
        return act

    def _refresh(self) -> None:
        with self._threads:
            self._read_new_lines()

    def _read_new_lines(self) -> None:
        try:
            if check_regular(self.path).st_size > MAX_LOG_BYTES:
                raise OSError(errno.EFBIG, f"it has more than {MAX_LOG_BYTES:,} bytes")
            with self.path.open("rb") as file:
                about = os.fstat(file.fileno())
                if (
                    about.st_ino != self._file_number
                    or about.st_size < self._read_bytes
                ):
                    self._forget()
                    self._file_number = about.st_ino
                file.seek(self._read_bytes)
                content = file.read()
        except FileNotFoundError:
            self._forget()
            return
        except OSError as error:
            raise StoreError(
                f"labels cannot be read: {self.path} ({error.strerror})"
            ) from None
        whole = content[: content.rfind(b"\n") + 1]
        if not whole:
            return
        acts = [
            self._parse(line, number)
            for number, line in enumerate(whole.splitlines(), start=len(self._acts) + 1)
        ]
        self._acts += acts
        self._read_bytes += len(whole)
        if any(act.kind == UNDO for act in acts):
            self._state = _State()
            acts = _active(self._acts)
        for act in acts:
            self._state.apply(act)

    def _parse(self, line: bytes, number: int) -> Act:
        try:
            document = json.loads(line)
            if not is_intact(document):
                raise ValueError("it is not as it was written")
            return Act.from_dict(document)
        except (ValueError, LookupError, TypeError, AttributeError, RecursionError):
            raise StoreError(
                f"label log is damaged: line {number} of {self.path}; put a copy of the file back, "
                "or delete this line to lose one act"
            ) from None

    def _forget(self) -> None:
        self._acts, self._state = [], _State()
        self._read_bytes, self._file_number = 0, -1


def with_current_labels(rows: Iterable[Row], log: LabelLog) -> list[Row]:
    """Return rows of a store with the labels of the log, where it has some."""
    current = []
    for row in rows:
        labels = log.apply(row.sha256, row.labels)
        current.append(row if labels == row.labels else replace(row, labels=labels))
    return current


def _active(acts: Sequence[Act]) -> list[Act]:
    """Return the acts that no later act undoes, in their order."""
    undone: set[str] = set()
    active = []
    for act in reversed(acts):
        if act.id in undone:
            continue
        active.append(act)
        if act.kind == UNDO:
            undone.add(act.undoes)
    return active[::-1]


def _checked(labels: Labels) -> Labels:
    """Return labels without repetition and outer blanks; refuse what a table cannot hold."""
    if labels is None:
        return None
    if isinstance(labels, str):
        raise OptionError(
            f"labels must be a sequence of names, got {labels!r}; write ({labels!r},)"
        )
    names = [str(label).strip() for label in labels]
    for name in names:
        if not name or not name.isprintable() or ";" in name:
            raise OptionError(
                f"a label must be a name without ; and line breaks, got {name!r}"
            )
    return tuple(dict.fromkeys(names))


def _renamed(labels: tuple[str, ...], mapping: Mapping[str, str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(mapping.get(label, label) for label in labels))


def _as_list(labels: Labels) -> list[str] | None:
    return None if labels is None else list(labels)


def _as_tuple(labels: Any) -> Labels:
    if labels is None:
        return None
    if not isinstance(labels, list):
        raise TypeError(labels)
    return tuple(map(str, labels))


def _user() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError, ImportError):
        return ""


def _sync_folder(folder: Path) -> None:
    """Make sure that a new name in a folder survives a crash; Windows cannot and need not."""
    if os.name == "nt":
        return
    number = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(number)
    finally:
        os.close(number)

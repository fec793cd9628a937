"""Labels that visitors of the page give to the images of a store.

All of them go to the store's label log, so that they are on disk when a request is answered, can be
undone, and several tabs or people do not lose each other's labels.
"""

from __future__ import annotations

import tempfile
import threading
from pathlib import Path
from typing import Annotated, Any

import numpy as np
from pydantic import AfterValidator, BaseModel, ConfigDict, Field, model_validator
from pydantic_core import PydanticCustomError

from deepfishing.core.rank_one import Array
from deepfishing.errors import DatasetError
from deepfishing.extraction.relabel import export_labels, label_images
from deepfishing.store.label_log import Act, Change, Labels
from deepfishing.web.gallery import MAX_TEXT, Filter, Gallery, Only
from deepfishing.web.guard import RefusedError
from deepfishing.web.learner import Learner

ORIGIN = "page"
MAX_IDS = 5_000
MAX_AT_ONCE = 200_000  # photos of a selection that are labelled in one act
MAX_LABELS = 50
MAX_TABLE_BYTES = 64 << 20


def check_name(name: str) -> str:
    """Return a class name without outer blanks; refuse what the label log cannot hold."""
    name = name.strip()
    if not name or not name.isprintable() or ";" in name:
        line = "a class needs a name without ; and line breaks"
        raise PydanticCustomError("name", line)
    return name


Text = Annotated[str, Field(min_length=1, max_length=MAX_TEXT)]
Name = Annotated[str, Field(max_length=100), AfterValidator(check_name)]
Names = Annotated[list[Name], Field(max_length=MAX_LABELS)]


class _Body(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)


class Nothing(_Body):
    """A request with an empty body."""


class FilterBody(_Body):
    """The filter of all views, in a body."""

    labels: Annotated[
        list[Annotated[str, Field(max_length=MAX_TEXT)]], Field(max_length=20)
    ] = []
    text: Annotated[str, Field(max_length=MAX_TEXT)] = ""
    selection: Annotated[str, Field(max_length=MAX_TEXT)] = ""
    only: Only = ""

    @property
    def value(self) -> Filter:
        """The filter as one value."""
        return Filter(tuple(self.labels), self.text, self.selection, self.only)


class LabelChange(_Body):
    """New labels of some images, which are named one by one or by a selection.

    `labels` replaces all labels: [] if the images show none of the classes, null to remove them.
    `add` and `remove` change single labels. `seen` are the labels that the visitor saw: if one
    image has others by now, nothing is changed.
    """

    ids: Annotated[list[Text], Field(max_length=MAX_IDS)] = []
    selection: Annotated[str, Field(max_length=100)] = ""
    labels: Names | None = None
    add: Names = []
    remove: Names = []
    seen: Names | None = None

    @model_validator(mode="after")
    def _has_one(self) -> LabelChange:
        if bool(self.ids) is bool(self.selection):
            raise PydanticCustomError(
                "images", "images must be named by ids or by a selection"
            )
        is_edit = bool(self.add or self.remove)
        if is_edit is ("labels" in self.model_fields_set):
            raise PydanticCustomError(
                "labels", "a change has either labels, or add and remove"
            )
        return self


class NextQuestion(FilterBody):
    """Images to pass over when the next one to label is asked for, and the filter."""

    skip: Annotated[list[Text], Field(max_length=1000)] = []


class UndoQuestion(_Body):
    """The act to undo, as `POST /api/labels` names it."""

    act: Annotated[str, Field(min_length=1, max_length=100)]


class ClassChange(_Body):
    """A class to add, or one to rename; two become one if the new name exists."""

    add: Name | None = None
    rename: Name | None = None
    to: Name | None = None

    @model_validator(mode="after")
    def _is_complete(self) -> ClassChange:
        if (self.add is None) is (self.rename is None) or (self.rename is None) != (
            self.to is None
        ):
            raise PydanticCustomError(
                "class", "a class is added, or renamed to another name"
            )
        return self


class Labelling:
    """The label log of a gallery; may be used from several threads."""

    def __init__(self, gallery: Gallery, learner: Learner) -> None:
        self.gallery = gallery
        self.learner = learner
        self.live = gallery.live
        self.log = gallery.live.log
        self._lock = threading.Lock()

    def summary(self, conditions: Filter) -> dict[str, Any]:
        """Return the classes with their numbers of images, and how many images are labelled.

        Only images that pass the filter are counted.
        """
        rows = self.gallery.rows(conditions)
        if rows is None:
            rows = np.arange(len(self.gallery.collection))
        counts = self.live.counts(rows)
        return {
            "classes": [{"name": name, "images": n} for name, n in counts.items()],
            "labelled": int(self.live.is_labelled()[rows].sum()),
            "none": int(self.live.is_none_of_these()[rows].sum()),
            "images": len(rows),
            "from_folders": self._rows_of_source().size,
        }

    def change(self, body: LabelChange) -> dict[str, Any]:
        """Write new labels; return the id of the act, or None if nothing changed."""
        rows = self._rows_of(body)
        with self._lock:
            self._check_seen(body, rows)
            images = dict(map(self._content_of, rows))
            base = self._labels_of_source(rows)
            if body.add or body.remove:
                act = self.log.edit(
                    images, add=body.add, remove=body.remove, origin=ORIGIN, base=base
                )
            else:
                labels = None
                if body.labels is not None:
                    labels = tuple(body.labels)
                changes = [
                    Change(content, path, labels) for content, path in images.items()
                ]
                act = self.log.append(changes, origin=ORIGIN, base=base)
        return self._answer(act)

    def undo(self, body: UndoQuestion) -> dict[str, Any]:
        """Undo an act; return the ids of the images that it changed."""
        act = self.log.undo(body.act, origin=ORIGIN)
        self.learner.nudge()
        contents: set[str] = set()
        if act is not None:
            contents = {change.content for change in act.changes}
        return {"ids": self.gallery.ids_of(contents)}

    def change_class(self, body: ClassChange) -> dict[str, Any]:
        """Add, rename or merge classes."""
        if body.add is not None:
            return self._answer(self.log.add_class(body.add, origin=ORIGIN))
        rename, to = body.rename or "", body.to or ""
        if rename not in self.live.counts():
            raise RefusedError(
                404, f"there is no class {rename!r} to rename; reload the page"
            )
        return self._answer(self.log.rename_class(rename, to, origin=ORIGIN))

    def forget_folders(self) -> dict[str, Any]:
        """Remove all labels that come from names of folders or from lists, as one act."""
        rows = self._rows_of_source()
        if len(rows) > MAX_AT_ONCE:
            raise RefusedError(
                400,
                f"at most {MAX_AT_ONCE:,} labels can be removed at once, got {len(rows):,}",
            )
        images = dict(map(self._content_of, rows))
        changes = [Change(content, path, None) for content, path in images.items()]
        base = self._labels_of_source(rows)
        return self._answer(self.log.append(changes, origin=ORIGIN, base=base))

    def labels_of(self, id_: str) -> dict[str, Any]:
        """Return the labels of one image, null if it is not labelled, and suggestions."""
        row = self.gallery.row(id_)
        self.live.refresh()
        return self._about(row)

    def next(self, body: NextQuestion) -> dict[str, Any]:
        """Return the image to label next, or null if all others are labelled."""
        self.live.refresh()
        self.learner.nudge()
        rows = self.gallery.rows(body.value)
        is_open = ~self.live.is_labelled()
        skipped = [self.gallery.collection.row_of(id_) for id_ in body.skip]
        passed_over = [row for row in skipped if row is not None]
        is_open[passed_over] = False
        if rows is None:
            left = int(is_open.sum())
            open_rows = [row for row in self.learner.next_rows() if is_open[row]]
        else:
            candidates = rows[is_open[rows]]
            left = len(candidates)
            open_rows = self.learner.choose_among(candidates, passed_over)
        if not open_rows and left:  # the queue is used up, or not made yet
            open_rows = self.learner.choose_among(np.flatnonzero(is_open), passed_over)
        if not open_rows:
            return {"id": None, "left": left}
        return {
            **self._about(open_rows[0]),
            "left": left,
            "then": self._ids(open_rows[1:4]),
        }

    def table(self) -> bytes:
        """Return labels.csv."""
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder, "labels.csv")
            export_labels(self.gallery.store, path)
            return path.read_bytes()

    def read_table(self, content: bytes) -> dict[str, Any]:
        """Take over the labels of a table."""
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder, "labels.csv")
            path.write_bytes(content)
            try:
                done = label_images(self.gallery.store, path, origin=ORIGIN)
            except DatasetError as error:
                raise RefusedError(
                    400, str(error).replace(str(path), "the file")
                ) from None
        unmatched = [
            f"{name} ({reason})" for name, reason in list(done.unmatched.items())[:5]
        ]
        return {
            **self._answer(done.act),
            "changed": done.changed,
            "same": done.same,
            "unmatched": len(done.unmatched),
            "such_as": unmatched,
        }

    def _answer(self, act: Act | None) -> dict[str, Any]:
        self.learner.nudge()
        if act is None:
            return {"act": None, "changed": 0}
        return {"act": act.id, "changed": len(act.changes)}

    def _about(self, row: int) -> dict[str, Any]:
        id_, labels = self.gallery.id_of(row), self.live.of_row(row)
        return {
            "id": id_,
            "labels": labels,
            "suggestions": self.learner.suggestions(row),
        }

    def _ids(self, rows: list[int]) -> list[str]:
        return [self.gallery.id_of(row) for row in rows]

    def _rows_of(self, body: LabelChange) -> Array:
        if body.ids:
            return np.array([self.gallery.row(id_) for id_ in dict.fromkeys(body.ids)])
        rows = self.gallery.selections.get(body.selection).rows
        if len(rows) > MAX_AT_ONCE:
            raise RefusedError(
                400,
                f"at most {MAX_AT_ONCE:,} photos are labelled at once, got {len(rows):,}",
            )
        return rows

    def _check_seen(self, body: LabelChange, rows: Array) -> None:
        """Refuse a change that is based on labels that others have changed since."""
        if "seen" not in body.model_fields_set:
            return
        self.live.refresh()
        seen = None
        if body.seen is not None:
            seen = tuple(body.seen)
        for labels in self.live.of_rows(rows):
            if labels != seen:
                now = "without a label"
                if labels is not None:
                    now = ", ".join(labels) or "none of these"
                raise RefusedError(
                    409, f"somebody has changed the labels meanwhile, to: {now}"
                )

    def _content_of(self, row: int) -> tuple[str, str]:
        return self.gallery.key_of_row(row), self.gallery.path_of(row)

    def _labels_of_source(self, rows: Array) -> dict[str, Labels]:
        """Return the labels that the source of the images gives them, by content."""
        base: dict[str, Labels] = {}
        for row in rows.tolist():
            base[self.gallery.key_of_row(row)] = self.live.of_source(row)
        return base

    def _rows_of_source(self) -> Array:
        """Return the rows whose labels come from their source alone."""
        return self.live.from_source()

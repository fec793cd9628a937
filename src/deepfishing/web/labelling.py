"""Labels that visitors of the page give to the images of a store.

All of them go to the store's label log, so that they are on disk when a request is answered, can be
undone, and several tabs or people do not lose each other's labels.
"""

from __future__ import annotations

import threading
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field

from deepfishing.curate.selection import EXACT_IMAGES, choosing
from deepfishing.store.label_log import Change
from deepfishing.web.gallery import MAX_TEXT, Gallery

ORIGIN = "page"
MAX_CHOSEN = 200  # photos that are chosen to be labelled first; the others follow by name
MAX_IDS = 500
MAX_LABELS = 50

Text = Annotated[str, Field(min_length=1, max_length=MAX_TEXT)]
Name = Annotated[str, Field(min_length=1, max_length=100)]


class LabelChange(BaseModel):
    """New labels of some images: [] if they show none of the classes, null to remove them."""

    model_config = ConfigDict(extra="forbid", strict=True)
    ids: Annotated[list[Text], Field(min_length=1, max_length=MAX_IDS)]
    labels: Annotated[list[Name], Field(max_length=MAX_LABELS)] | None


class NextQuestion(BaseModel):
    """Images to pass over when the next one to label is asked for."""

    model_config = ConfigDict(extra="forbid", strict=True)
    skip: Annotated[list[Text], Field(max_length=1000)] = []


class UndoQuestion(BaseModel):
    """The act to undo, as `POST /api/labels` names it."""

    model_config = ConfigDict(extra="forbid", strict=True)
    act: Name


class Labelling:
    """The label log of a gallery; may be used from several threads."""

    def __init__(self, gallery: Gallery) -> None:
        self.gallery = gallery
        self.live = gallery.live
        self.log = gallery.live.log
        self._lock = threading.Lock()
        self._order: list[int] | None = None

    def summary(self) -> dict[str, Any]:
        """Return the classes with their numbers of images, and how many images are labelled."""
        counts = self.live.counts()
        classes = [{"name": name, "images": images} for name, images in counts.items()]
        labelled = self.live.is_labelled()
        return {"classes": classes, "labelled": int(labelled.sum()), "images": len(labelled)}

    def change(self, asked: LabelChange) -> dict[str, Any]:
        """Write new labels; return the id of the act, or None if nothing changed."""
        labels = None if asked.labels is None else tuple(asked.labels)
        changes, base = [], {}
        for id_ in dict.fromkeys(asked.ids):
            path, content = self.gallery.content(id_)
            changes.append(Change(content, path, labels))
            base[content] = self.gallery.collection[self.gallery.row(id_)].labels
        act = self.log.append(changes, origin=ORIGIN, base=base)
        return {"act": None if act is None else act.id}

    def undo(self, asked: UndoQuestion) -> dict[str, Any]:
        """Undo an act; return the ids of the images that it changed."""
        act = self.log.undo(asked.act, origin=ORIGIN)
        contents = {change.content for change in act.changes} if act is not None else set()
        return {"ids": self.gallery.ids_of(contents)}

    def labels_of(self, id_: str) -> dict[str, Any]:
        """Return the labels of one image; null if it is not labelled."""
        row = self.gallery.row(id_)
        self.live.refresh()
        return {"id": id_, "labels": self.live.of_row(row)}

    def next(self, asked: NextQuestion) -> dict[str, Any]:
        """Return the image to label next, or null if all others are labelled."""
        passed_over = set(asked.skip)
        self.live.refresh()
        labelled = self.live.is_labelled()
        with self._lock:
            for row in self._rows_in_order():
                if labelled[row]:
                    continue
                id_ = self.gallery.id_of(row)
                if id_ not in passed_over:
                    return {"id": id_}
        return {"id": None}

    def _rows_in_order(self) -> list[int]:
        """Return all rows: first those that represent the others best, then the rest."""
        if self._order is None:
            collection = self.gallery.collection
            order: dict[int, None] = {}
            searcher = self.gallery.first_searcher
            if len(searcher.features) <= EXACT_IMAGES:
                for step in choosing(searcher.features, MAX_CHOSEN):
                    order[int(searcher.collection.rows_of(step.number)[0])] = None
            order.update(dict.fromkeys(range(len(collection))))
            self._order = list(order)
        return self._order

"""Orders in which photos are shown, and names for groups of neighbours in them."""

from __future__ import annotations

import datetime
import threading
from collections.abc import Callable
from pathlib import PurePosixPath
from typing import Any, Literal, get_args

import numpy as np
import pyarrow as pa

from deepfishing.core.rank_one import Array, l2_normalize
from deepfishing.curate.neighbours import EXACT_CONTENTS
from deepfishing.curate.outliers import oddness
from deepfishing.learn.expected import margins
from deepfishing.util.progress import Progress
from deepfishing.web.dates import UNKNOWN, Dates
from deepfishing.web.gallery import Filter, Gallery
from deepfishing.web.guard import RefusedError
from deepfishing.web.jobs import Jobs
from deepfishing.web.learner import Learner

Order = Literal["", "folder", "label", "date", "doubt", "odd", "similar", "random"]
ORDERS: tuple[Order, ...] = get_args(Order)
PER_CLUSTER = 12  # photos, on average, that "similar" keeps together
DATES_JOB = "dates"
AT_ONCE = 2_000  # photos whose dates are read before the answer; more by a job
LAST = np.iinfo(np.int64).max


class Orders:
    """The orders of a gallery's photos; may be used from several threads."""

    def __init__(self, gallery: Gallery, learner: Learner, jobs: Jobs) -> None:
        self.gallery = gallery
        self.learner = learner
        self.jobs = jobs
        self.dates = Dates(gallery.store.folder, gallery.keys)
        self._lock = threading.Lock()
        self._kept: dict[str, Array] = {}  # ranks that do not depend on labels

    def images(
        self, conditions: Filter, order: Order, offset: int, limit: int
    ) -> dict[str, Any]:
        """Return some of the images that pass a filter, in an order, with their groups."""
        rows = self.sort(self.gallery.rows(conditions), order)
        answer = self.gallery.images_of(rows, offset, limit)
        if order:
            for image in answer["images"]:
                image["group"] = self.group_of(self.gallery.row(image["id"]), order)
        return answer

    def sort(self, rows: Array | None, order: Order) -> Array | None:
        """Return rows in an order; None for all of them as they are."""
        if not order or order == "folder":
            return rows  # by name, which begins with the folder
        rows = np.arange(len(self.gallery.collection)) if rows is None else rows
        ranks = self._ranks(order)[rows]
        sorted_rows: Array = rows[np.argsort(ranks, kind="stable")]
        return sorted_rows

    def group_of(self, row: int, order: Order) -> str:
        """Return the name of the group that a row belongs to; "" where there are none."""
        if order == "folder":
            return str(PurePosixPath(self.gallery.id_of(row)).parent)
        if order == "label":
            labels = self.gallery.live.of_row(row)
            if labels is None:
                return "not labelled"
            return ", ".join(labels) or "none of these"
        if order == "date":
            return self._month(row)
        return ""

    def _ranks(self, order: Order) -> Array:
        """Return a number for each row, the first one the smallest."""
        if order == "label":
            return self._by_label()
        if order == "doubt":
            return self._by_doubt()
        makers: dict[str, Callable[[], Array]] = {
            "date": self._by_date,
            "odd": self._by_oddness,
            "similar": self._by_similarity,
            "random": lambda: np.random.default_rng(0).permutation(
                len(self.gallery.collection)
            ),
        }
        with self._lock:  # one thread computes, the others wait for it
            if order not in self._kept:
                self._kept[order] = makers[order]()
            return self._kept[order]

    def _by_label(self) -> Array:
        labels = self.gallery.live.of_rows(np.arange(len(self.gallery.collection)))
        names = [(one is None, one or ("\uffff",)) for one in labels]
        rank = {name: number for number, name in enumerate(sorted(set(names)))}
        return np.array([rank[name] for name in names])

    def _by_doubt(self) -> Array:
        """Return rows by certainty, the least certain first; those without a prediction last."""
        taught, prepared = self.learner.taught, self.learner.prepared
        self.learner.nudge()
        if taught is None or prepared is None or taught.learned is None:
            raise RefusedError(
                409, "there are no suggestions yet; label some photos of two classes"
            )
        ahead = np.append(margins(taught.learned.scores), np.inf)
        ranks: Array = ahead[prepared.number_of_row]  # -1, the last one, for none
        return ranks

    def _month(self, row: int) -> str:
        rank = int(self._ranks("date")[row])
        if rank == LAST:
            return "no date"
        date = datetime.datetime.fromtimestamp(-rank, datetime.UTC)
        return date.strftime("%Y-%m")

    def _by_date(self) -> Array:
        """Return rows by date, the newest first; those without a date last."""
        seconds = self.dates.seconds()
        if seconds is None and self.dates.missing() <= AT_ONCE:
            self.dates.read(self._paths_of_contents())
            seconds = self.dates.seconds()
        if seconds is None:
            self.jobs.start(DATES_JOB, self._read_dates)
            raise RefusedError(
                409, "the dates of the photos are being read; wait a moment"
            )
        newest_first = np.where(seconds == UNKNOWN, LAST, -np.maximum(seconds, -LAST))
        by_row: Array = newest_first[self.gallery.collection.content]
        return by_row

    def _read_dates(self, progress: Progress) -> None:
        self.dates.read(self._paths_of_contents(), progress)

    def _paths_of_contents(self) -> list[str]:
        """Return the path of the first row of each content; "" of one without a row."""
        collection = self.gallery.collection
        contents, first_rows = np.unique(collection.content, return_index=True)
        paths = np.full(len(self.gallery.keys), "", dtype=object)
        column = collection.table.column("path")
        paths[contents] = column.take(pa.array(first_rows)).to_pylist()
        listed: list[str] = paths.tolist()
        return listed

    def _by_oddness(self) -> Array:
        searcher = self.gallery.first_searcher
        if len(searcher.contents) > EXACT_CONTENTS and searcher.index is None:
            raise RefusedError(
                409, "there are too many photos; use `deepfish curate odd`"
            )
        odd = oddness(searcher)
        ranks: Array = -odd[searcher.collection.content]
        return ranks

    def _by_similarity(self) -> Array:
        """Clusters of similar photos, each beside a cluster that is like it."""
        import faiss  # half a second to load, which other orders need not wait for

        prepared = self.learner.prepared
        self.learner.nudge()
        if prepared is None:
            raise RefusedError(409, "the photos are being compared; wait a moment")
        vectors = np.ascontiguousarray(prepared.pool.few.vectors, dtype=np.float32)
        count = max(1, len(vectors) // PER_CLUSTER)
        kmeans = faiss.Kmeans(
            vectors.shape[1],
            min(count, 1000),
            niter=8,
            seed=0,
            min_points_per_centroid=1,
        )
        kmeans.train(vectors)
        near, cluster = kmeans.index.search(vectors, 1)
        rank_of_cluster = _chain(l2_normalize(np.asarray(kmeans.centroids)))
        ranks = rank_of_cluster[cluster[:, 0]] + near[:, 0] / (near.max() + 1.0)
        by_row: Array = np.append(ranks, np.inf)[prepared.number_of_row]
        return by_row


def _chain(centroids: Array) -> Array:
    """Return the place of each centroid in a chain in which the nearest one is always next."""
    left = np.ones(len(centroids), dtype=bool)
    place = np.zeros(len(centroids))
    at = 0
    for step in range(len(centroids)):
        place[at] = step
        left[at] = False
        at = int(np.where(left, centroids @ centroids[at], -np.inf).argmax())
    return place

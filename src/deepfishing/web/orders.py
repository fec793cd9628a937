"""Orders in which photos are shown, and names for groups of neighbours in them."""

from __future__ import annotations

import datetime
import threading
from collections.abc import Callable
from pathlib import PurePosixPath
from typing import Literal, get_args

import numpy as np
import pyarrow.compute as pc
import pyarrow.parquet as pq

from deepfishing.core.rank_one import Array, l2_normalize
from deepfishing.curate.label_session import margins
from deepfishing.curate.neighbours import EXACT_CONTENTS
from deepfishing.curate.outliers import oddness
from deepfishing.store.manifest import INDEX
from deepfishing.util.files import check_regular
from deepfishing.web.gallery import Gallery
from deepfishing.web.guard import RefusedError
from deepfishing.web.learner import Learner

Order = Literal["", "folder", "label", "date", "doubt", "odd", "similar", "random"]
ORDERS: tuple[Order, ...] = get_args(Order)
MODIFIED = "mtime_ns"
PER_CLUSTER = 12  # photos, on average, that "similar" keeps together
SECONDS = 1_000_000_000  # nanoseconds


class Orders:
    """The orders of a gallery's photos; may be used from several threads."""

    def __init__(self, gallery: Gallery, learner: Learner) -> None:
        self.gallery = gallery
        self.learner = learner
        self._lock = threading.Lock()
        self._kept: dict[str, Array] = {}  # ranks that do not depend on labels

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
            return (
                "not labelled"
                if labels is None
                else ", ".join(labels) or "none of these"
            )
        if order == "date":
            seconds = int(self._ranks("date")[row]) // -SECONDS
            return datetime.datetime.fromtimestamp(seconds, datetime.UTC).strftime(
                "%Y-%m"
            )
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
        """The least certain first; those without a prediction last."""
        taught, prepared = self.learner.taught, self.learner.prepared
        self.learner.nudge()
        if taught is None or prepared is None or taught.learned is None:
            raise RefusedError(
                409, "there are no suggestions yet; label some photos of two classes"
            )
        ahead = np.append(margins(taught.learned.scores), np.inf)
        ranks: Array = ahead[prepared.number_of_row]  # -1, the last one, for none
        return ranks

    def _by_date(self) -> Array:
        """The newest file first."""
        path = self.gallery.store.folder / INDEX
        check_regular(path)
        with pq.ParquetFile(path) as file:
            table = file.read(columns=["id", MODIFIED])
        place = pc.index_in(
            self.gallery.collection.table.column("id"), value_set=table["id"]
        )
        stamps = pc.fill_null(table[MODIFIED].take(place), 0)
        newest_first: Array = -stamps.to_numpy().astype(np.int64)
        return newest_first

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
            raise RefusedError(
                409, "the photos are being compared; try again in a moment"
            )
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

"""The classifier that learns in a background thread while photos are labelled.

It takes the vectors of `learn.label_pool`, which are made once and kept with the store, and all
labels of the log. After every label it learns again, in a fraction of a second, and what it has
learned replaces what there was before as one value.
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pyarrow as pa

from deepfishing.core.rank_one import Array
from deepfishing.curate.label_session import (
    NONE,
    QUEUE,
    Advice,
    CurvePoint,
    Labels,
    Learned,
    advice_in_words,
    advise,
    choose_next,
    learn,
    learning_curve,
)
from deepfishing.errors import DeepFishingError, StoreError
from deepfishing.learn.folds import read_groups
from deepfishing.learn.label_pool import (
    EMBEDDING,
    MAX_CONTENTS,
    LabelPool,
    make_label_pool,
    open_label_pool,
)
from deepfishing.store.contents import Contents
from deepfishing.store.label_log import SET
from deepfishing.util.machine import release_memory
from deepfishing.util.progress import Progress
from deepfishing.web.apart import run_apart
from deepfishing.web.gallery import Gallery
from deepfishing.web.jobs import RUNNING, Jobs
from deepfishing.web.messages import message_for_page

JOB = "label pool"
SUGGESTIONS = 5
SMALL = 2_000  # contents whose vectors are made at once; more in a process of their own
MAX_GROUPED = 30_000  # contents that are compared with all others to find copies

_log = logging.getLogger("deepfishing.web")


@dataclass(frozen=True, eq=False)
class Taught:
    """Result of learning from the labels at one moment."""

    version: int  # of the labels
    labelled: int
    learned: Learned | None  # None with fewer than two classes
    queue: Array  # numbers in the pool of the photos to label next
    curve: tuple[CurvePoint, ...] = ()
    advice: Advice | None = None
    is_whole: bool = False  # whether curve and advice are of these labels, too


@dataclass(frozen=True, eq=False)
class Prepared:
    """The vectors of all photos, and where they are in the gallery."""

    pool: LabelPool
    groups: Array  # of each photo of the pool: copies have the same number
    number_of_row: Array  # in the pool, of each row of the gallery; -1 for none
    row_of_number: Array  # the first row of the gallery that has the photo


class Learner:
    """Learns from the labels of a gallery; may be used from several threads."""

    def __init__(self, gallery: Gallery, jobs: Jobs) -> None:
        self.gallery = gallery
        self.jobs = jobs
        self.prepared: Prepared | None = None
        self.error = ""
        self.taught: Taught | None = None
        self._wake = threading.Event()
        self._start = threading.Lock()
        self._thread: threading.Thread | None = None

    # ---- preparing ----

    def nudge(self) -> None:
        """Learn again if labels have changed; the first call prepares the photos."""
        with self._start:
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, daemon=True)
                self._thread.start()
        self._wake.set()

    def _run(self) -> None:
        try:
            prepared = self.prepared = self._prepare()
            release_memory()
        except (DeepFishingError, OSError) as error:
            folders = {"the store": self.gallery.store.folder}
            self.error = message_for_page(error, "preparing the photos", folders)
            return
        except Exception:
            _log.exception("deepfish: suggestions cannot be made")
            self.error = (
                "suggestions cannot be made; the terminal of the server says why"
            )
            return
        while True:
            self._wake.wait()
            self._wake.clear()
            try:
                self._learn(prepared)
                prepared.pool.release()
            except Exception:
                _log.exception("deepfish: learning from the labels failed")
                self.error = "learning failed; the terminal of the server says why"

    def _prepare(self) -> Prepared:
        pool = open_label_pool(self.gallery.store)
        if pool is None or not self._has_all(pool):
            pool = self._make_pool()
        numbers = pool.numbers_of(self.gallery.keys)[self.gallery.collection.content]
        rows = np.zeros(len(pool), dtype=np.int64)
        pool_rows = np.flatnonzero(numbers >= 0)[::-1]
        rows[numbers[pool_rows]] = pool_rows  # the first row of each content
        return Prepared(pool, self._find_groups(pool), numbers, rows)

    def _has_all(self, pool: LabelPool) -> bool:
        """Return whether the vectors cover all photos; those of a large store are a sample."""
        in_pool = pool.numbers_of(self.gallery.keys) >= 0
        return bool(in_pool.all()) or len(pool) >= MAX_CONTENTS

    def _make_pool(self) -> LabelPool:
        """Describe all photos, as a job that can be cancelled."""
        store = self.gallery.store
        pools: list[LabelPool] = []

        def work(progress: Progress) -> None:
            if len(self.gallery.keys) > SMALL:
                run_apart(JOB, [str(store.folder)], progress)
            else:
                keep = os.access(store.folder, os.W_OK)
                pools.append(make_label_pool(store, progress, keep=keep))

        job = self.jobs.start(JOB, work)
        self.jobs.wait(JOB)
        pool = pools[0] if pools else open_label_pool(store)
        if pool is None:
            raise StoreError(job.error or "the photos were not described; try again")
        return pool

    def _find_groups(self, pool: LabelPool) -> Array:
        """Return the group of each photo of the pool: copies and similar scenes."""
        if len(pool) > MAX_GROUPED:
            return np.arange(len(pool))
        contents = Contents.of(self.gallery.store, [EMBEDDING], pool.keys)
        keys = pool.keys.to_pylist()
        return read_groups(lambda rows: contents.read(rows, [EMBEDDING]), keys)

    # ---- learning ----

    def _learn(self, prepared: Prepared) -> None:
        live = self.gallery.live
        version = live.version
        if self.taught is not None and self.taught.version == version:
            return
        few = prepared.pool.few
        numbers, labels = self._labelled(prepared)
        learned = learn(few, numbers, labels, prepared.groups)
        queue = choose_next(few, numbers, learned)
        before = self.taught
        previous: tuple[Any, Any] = ((), None)
        if before is not None:
            previous = (before.curve, before.advice)
        self.taught = Taught(version, len(numbers), learned, queue, *previous)

        def is_last() -> bool:
            return live.version == version

        groups = prepared.groups  # the curve can wait for the last label
        curve = tuple(learning_curve(few, numbers, labels, groups, is_last))
        if not is_last():
            return
        advice = None
        if learned is not None:
            advice = advise(few, learned)
        self.taught = replace(self.taught, curve=curve, advice=advice, is_whole=True)

    def _labelled(self, prepared: Prepared) -> tuple[list[int], list[Labels]]:
        """Return the labelled photos of the pool, in the order in which they were labelled."""
        live, number_of_row = self.gallery.live, prepared.number_of_row
        rows = np.flatnonzero(live.is_labelled() & (number_of_row >= 0))
        by_number = dict(
            zip(number_of_row[rows].tolist(), live.of_rows(rows), strict=True)
        )
        order: dict[int, None] = {}
        first: dict[str, None] = {}
        for act in live.log.history():
            if act.kind == SET:
                first.update(dict.fromkeys(change.content for change in act.changes))
        in_log = prepared.pool.numbers_of(pa.array(list(first), pa.string())).tolist()
        from_source = by_number.keys() - set(in_log)
        order.update(dict.fromkeys(sorted(from_source)))
        order.update(dict.fromkeys(number for number in in_log if number in by_number))
        return list(order), [by_number[number] for number in order]

    # ---- answers ----

    def state(self) -> dict[str, Any]:
        """Return the state of the learner and its latest results."""
        self.nudge()
        taught = self.taught
        job = self.jobs.get(JOB)
        state = "ready"
        if self.error:
            state = "failed"
        elif self.prepared is None:
            state = "preparing"
        about: dict[str, Any] = {
            "state": state,
            "error": self.error,
            "job": None,
            "version": self.gallery.live.version,
        }
        if job is not None and job.state == RUNNING:
            about["job"] = job.as_dict()
        if taught is None:
            return about
        about |= {
            "learned": taught.version,
            "is_whole": taught.is_whole,
            "labelled": taught.labelled,
            "estimate": None,
            "curve": [_point(point) for point in taught.curve],
            "advice": None,
            "enough": False,
        }
        if taught.learned is not None:
            estimate = taught.learned.estimate()
            if estimate is not None:
                about["estimate"] = _point(estimate)
        if taught.advice is not None:
            about["advice"] = advice_in_words(taught.advice)
            about["enough"] = taught.advice.verdict == "enough"
        return about

    def suggestions(self, row: int) -> list[dict[str, Any]]:
        """Return the most likely classes of a photo; a probability with the first one if known."""
        taught, prepared = self.taught, self.prepared
        if taught is None or taught.learned is None or prepared is None:
            return []
        number = int(prepared.number_of_row[row])
        if number < 0:
            return []
        learned = taught.learned
        scores = learned.scores[[number]]
        confidence = learned.confidence(scores)
        best = np.argsort(-scores[0], kind="stable")[:SUGGESTIONS]
        found = [
            {"name": learned.classes[c], "none": learned.classes[c] == NONE}
            for c in best
        ]
        if confidence is not None:
            found[0]["probability"] = round(float(confidence[0]), 3)
        return found

    def next_rows(self) -> list[int]:
        """Return rows of the gallery to label next, the most useful first."""
        taught, prepared = self.taught, self.prepared
        if taught is None or prepared is None:
            return []
        return [int(row) for row in prepared.row_of_number[taught.queue]]

    def choose_among(self, rows: Array, passed_over: Sequence[int]) -> list[int]:
        """Return some of these rows to label next; a random choice while nothing is prepared."""
        taught, prepared = self.taught, self.prepared
        if taught is None or prepared is None:
            n = len(self.gallery.collection)
            rank = np.random.default_rng(0).permutation(n)  # always the same
            return [int(row) for row in rows[np.argsort(rank[rows])[:QUEUE]]]
        numbers = prepared.number_of_row[rows]
        skipped = prepared.number_of_row[np.asarray(passed_over, dtype=np.int64)]
        done, _ = self._labelled(prepared)
        passed = np.concatenate(
            [np.asarray(done, dtype=np.int64), skipped[skipped >= 0]]
        )
        among = np.unique(numbers[numbers >= 0])
        chosen = choose_next(prepared.pool.few, passed, taught.learned, among)
        row_of = dict(zip(numbers[::-1].tolist(), rows[::-1].tolist(), strict=True))
        chosen_rows = [int(row_of[number]) for number in chosen.tolist()]
        return chosen_rows or [int(row) for row in rows[:QUEUE]]


def _point(point: CurvePoint) -> dict[str, Any]:
    low, high = point.interval
    return {
        "labels": point.labels,
        "accuracy": round(point.accuracy, 1),
        "interval": [round(low, 1), round(high, 1)],
    }

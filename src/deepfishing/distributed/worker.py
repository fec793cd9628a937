"""Past one machine: what a worker does with the chunk of the work that Ray gives to it.

Comes in: a chunk, which is a whole number of batches in the order of the work list. Goes out: its
shards in the store, all or none of them, and one row that says what came of it. A chunk that is
given out again, since its worker died, gives the same shards under the same names.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from deepfishing import errors
from deepfishing.errors import DeepFishingError, StoreError
from deepfishing.gradients.to_store import Hashed, Job, Local, write_batches
from deepfishing.images.item import Item
from deepfishing.store import Store

if TYPE_CHECKING:
    from deepfishing.gradients.extract import Extractor

Rows = Mapping[str, Sequence[Any]]  # columns of Ray's rows


@dataclass(frozen=True)
class Chunk:
    """Images that follow each other in the work list.

    Parameters
    ----------
    start : int
        Number of the first one.
    items : tuple of Item
        The images.
    keys : tuple of str
        Their contents; unknown while they are hashed.
    there : mapping
        By factor, the keys that have it already.
    """

    start: int
    items: tuple[Item, ...]
    keys: tuple[str, ...] = ()
    there: Mapping[str, frozenset[str]] = field(default_factory=dict)


@dataclass(frozen=True)
class Site:
    """What a worker must find where it runs, to be what a local run would be.

    Parameters
    ----------
    folder : Path or None
        The current folder, if the work list has paths relative to it.
    threads : int
        Of torch: another number may round differently.
    """

    folder: Path | None
    threads: int

    def enter(self) -> None:
        """Go there."""
        try:
            if self.folder:
                os.chdir(self.folder)
        except OSError as error:
            raise StoreError(
                f"workers must see the folders of the command, got none at {self.folder} on "
                f"{os.uname().nodename} ({error.strerror}); start it in a shared folder"
            ) from None


class Worker:
    """A worker that lasts: it loads network and engine when its first chunk comes."""

    def __init__(self, job: Job, site: Site) -> None:
        self.job, self.site = job, site

    @cached_property
    def extractor(self) -> Extractor:
        """Made here, not in `__init__`, where an error would count as a death."""
        self.site.enter()
        return self.job.extractor()

    def __call__(self, rows: Rows) -> Rows:
        """Compute the chunks of some rows and write them."""
        return _answers(rows, self._extract)

    def _extract(self, chunk: Chunk) -> tuple[int, dict[str, str]]:
        """How many images are done, and which contents failed."""
        import torch

        torch.set_num_threads(self.site.threads)  # counts for this thread alone
        append = partial(self.job.store.append, there=chunk.there)
        batches = self.extractor(chunk.items)
        parts = list(write_batches(batches, chunk.keys, chunk.items, append))
        errors = {key: reason for part in parts for key, reason in part.errors.items()}
        return sum(part.images for part in parts), errors


def hash_chunks(rows: Rows, site: Site) -> Rows:
    """Read the images of some rows and give their hashes."""

    def work(chunk: Chunk) -> tuple[int, list[Hashed]]:
        site.enter()
        return chunk.start, [one for _, part in Local().hashes(chunk.items) for one in part]

    return _answers(rows, work)


def _answers(rows: Rows, work: Callable[[Chunk], Any]) -> Rows:
    """Per chunk what `work` gives, or our own error; Ray would only bring its text."""
    answers = []
    for chunk in rows["chunk"]:
        try:
            answer = {"result": work(chunk)}
        except DeepFishingError as error:
            answer = {"error": [type(error).__name__, str(error)]}
        answers.append(json.dumps(answer))
    return {"answer": answers}


def read_answer(row: Mapping[str, str]) -> Any:
    """What a chunk gave; an error is raised here.

    Examples
    --------
    >>> read_answer({"answer": '{"result": [4, {}]}'})
    [4, {}]
    >>> read_answer({"answer": '{"error": ["StoreError", "store cannot be written: s"]}'})
    Traceback (most recent call last):
    deepfishing.errors.StoreError: store cannot be written: s
    """
    answer = json.loads(row["answer"])
    if "error" in answer:
        name, message = answer["error"]
        raise getattr(errors, name)(message)
    return answer["result"]


def worker_job(job: Job) -> Job:
    """The job as it is sent to workers: the store by its place, without what was read of it."""
    store = Store(job.store.folder.resolve(), job.store.settings, job.store.precision)
    return replace(job, store=store)

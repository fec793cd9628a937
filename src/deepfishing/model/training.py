"""Stage 6, models: from labelled images, or from a store of their features, to a `Model`.

Comes in: images and their labels, or the store of their features. Goes out: a `Model` and the
images that had to be left out, with the reasons.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np

from deepfishing.errors import DatasetError, StoreError
from deepfishing.extraction import extract_to
from deepfishing.images.item import Item
from deepfishing.images.preprocess import refuse_unreadable
from deepfishing.model.fit import Task, train_large, train_on_arrays
from deepfishing.model.labelled import Labelled
from deepfishing.model.model import Model
from deepfishing.progress import Progress
from deepfishing.rank_one import Array
from deepfishing.recipes import AUTO
from deepfishing.settings import Settings
from deepfishing.store import Row, Store

# Images from which vectors take the place of the kernel matrix, docs/projections.md.
LARGE = 20_000


def train_on_store(
    store: Store,
    rows: Sequence[Row],
    labelled: Labelled,
    recipe: str,
    *,
    strict: bool = False,
    progress: Progress | None = None,
    **options: Any,
) -> tuple[Model, dict[str, str]]:
    """Train on the labelled images of a store; `strict` refuses to leave one out.

    Options are C, class_weight, difficult and seed, as of `train_svm`.
    """
    known, labels = labelled.of(rows)
    failures = {row.id: str(row.error) for row in known if row.error}
    if strict:
        refuse_unreadable(failures, len(known))
    good = [number for number, row in enumerate(known) if row.sha256 and not row.error]
    if not good:
        raise DatasetError(
            f"an image must be usable to train on, got none of {len(known)}, see {store.folder}"
        )
    usable = [str(known[number].sha256) for number in good]
    settings, labels = Settings.from_dict(store.settings), labels[np.array(good)]
    task = Task(recipe, labels, labelled.classes, settings, progress=progress, **options)
    columns = task.parsed.columns
    absent = [name for name in columns if store.missing(usable, [name])]
    if recipe.strip() == AUTO:  # makes do with what there is
        columns = tuple(name for name in columns if name not in absent)
        columns = columns or tuple(n for n in store.factors() if not store.missing(usable, [n]))
    elif absent:
        raise StoreError(
            f"store {store.folder} must hold {', '.join(columns)} for {recipe}, but lacks "
            f"{', '.join(absent)}; name a recipe of what it has with --features, or add them with "
            "`deepfish extract`"
        )

    def read(numbers: Sequence[int] | Array) -> dict[str, Array]:
        keys = [usable[number] for number in numbers]
        return {name: store.read(keys, name) for name in columns}

    if len(usable) > LARGE:
        return train_large(read, task), failures
    return train_on_arrays(read(range(len(usable))), task), failures


def train_on_images(
    images: Sequence[Item],
    labelled: Labelled,
    folder: Path,
    recipe: str,
    *,
    strict: bool = False,
    progress: Progress | None = None,
    extraction: Mapping[str, Any] = MappingProxyType({}),
    **options: Any,
) -> tuple[Model, dict[str, str]]:
    """Extract what the store in a folder lacks and train on it; images without labels are not used.

    `extraction` has keywords of `extract_to`, such as network and tau. Options are those of
    `train_on_store`.
    """
    known, _ = labelled.of(images)
    told: dict[str, Any] = {"strict": strict, "progress": progress}
    extract_to(folder, known, features=[recipe], retry=True, **told, **extraction)
    store = Store.open(folder)
    rows = store.rows()  # an image whose features are not finite is known only now
    found = [rows[image.id] for image in known]
    return train_on_store(store, found, labelled, recipe, **told, **options)

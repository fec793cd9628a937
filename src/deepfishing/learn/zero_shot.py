"""Classifiers made of names alone, for stores whose network has a text tower.

The embedding of a class's name is compared with those of photos, as CLIP and SigLIP do it: the
class whose cosine is largest is the answer. No labels are needed, so this is where labelling may
begin.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from scipy.special import softmax

from deepfishing.core.rank_one import Array, l2_normalize
from deepfishing.core.recipes import parse_recipe
from deepfishing.errors import StoreError
from deepfishing.extraction.settings import Settings
from deepfishing.extraction.texts import EMBEDDING, TextVectors
from deepfishing.learn.model import ONE, ZERO_SHOT, Model
from deepfishing.learn.svm import KernelSVM
from deepfishing.networks.prompts import ClassNames, read_classes
from deepfishing.store import Store


@dataclass(frozen=True)
class Suggestion:
    """A label that the names of classes suggest for a photo that has none."""

    id: str
    path: str
    label: str
    probability: float


def zero_shot_model(store: Store, classes: str | Path | Sequence[str]) -> Model:
    """Return a classifier of classes by their names; no photo of the store needs a label.

    Parameters
    ----------
    store : Store
        With x7 of a network that has a text tower.
    classes : path or sequence of str
        A text file with a name per line, or names; one with `{}` is the text that the text tower
        reads for a class, by default `a photo of {}`.

    Returns
    -------
    model : Model
        It scores a class by the cosine of x7 and the class's text. Probabilities are those of the
        softmax, as in the library.
    """
    wanted = read_classes(classes)
    names = wanted.names
    texts, scale, bias = _texts(store, wanted)
    settings = Settings.from_dict(store.settings)
    recipe = parse_recipe(EMBEDDING, settings.network.layers)
    support = {EMBEDDING: texts}
    fitted = recipe.fit(support)
    count = len(names)
    svm = KernelSVM(
        features=fitted(support),
        dual=np.eye(count),
        bias=np.zeros(count),
        trained=np.ones(count, dtype=bool),
        cost=np.ones(count),
        ap=np.full(count, np.nan),
        calibration=np.stack([np.full(count, scale), np.zeros(count)]),
        is_exclusive=True,
    )
    training = {
        "images": 0,
        "labels": ONE,
        ZERO_SHOT: {"prompt": wanted.prompt, "bias": bias},
    }
    return Model(recipe.name, settings, names, support, fitted, svm, training)


def suggest_labels(
    store: Store, classes: str | Path | Sequence[str]
) -> list[Suggestion]:
    """Return the most probable class of each photo without a label, the surest first."""
    wanted = read_classes(classes)
    names = wanted.names
    rows = [
        row
        for row in store.labelled_rows()
        if row.sha256 and not row.error and row.labels is None
    ]
    rows = [row for row in rows if EMBEDDING in row.factors]
    if not rows:
        return []
    texts, scale, _ = _texts(store, wanted)
    photos = store.read([str(row.sha256) for row in rows], EMBEDDING).astype(np.float32)
    probabilities = softmax(scale * (l2_normalize(photos) @ texts.T), axis=1)
    best = probabilities.argmax(axis=1)
    suggestions = []
    for number, row in enumerate(rows):
        probability = round(float(probabilities[number, best[number]]), 4)
        suggestions.append(
            Suggestion(row.id, row.path, names[best[number]], probability)
        )
    return sorted(suggestions, key=lambda one: (-one.probability, one.id))


def _texts(store: Store, classes: ClassNames) -> tuple[Array, float, float]:
    """Embeddings (C, d) of classes, and how the library makes scores of cosines."""
    if EMBEDDING not in store.factors():
        raise StoreError(
            f"texts are compared with {EMBEDDING}, which {store.folder} lacks; add it with "
            f"`deepfish extract IMAGES {store.folder} --features {EMBEDDING}`"
        )
    vectors = TextVectors(store.folder, store.settings)
    texts = vectors(classes.texts())
    return texts, vectors.scale, vectors.bias

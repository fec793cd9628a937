"""Stage 6, models: from labelled images, or from a store of their features, to a `Model`.

Comes in: images and their labels, and a network or the store that it filled. Goes out: a `Model`
and the images that had to be left out, with the reasons.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from deepfishing.errors import DatasetError, StoreError
from deepfishing.gradients.batch_size import BatchSize, check_batch_size
from deepfishing.gradients.to_store import Progress, extract_to_store, store_settings
from deepfishing.images.item import Item
from deepfishing.images.readable import refuse_unreadable
from deepfishing.model.labelled import Labelled
from deepfishing.model.model import Model, Source, layers_of, train_model
from deepfishing.rank_one import Array
from deepfishing.recipes import parse_recipe
from deepfishing.store import Row, Store

if TYPE_CHECKING:  # a store is trained on without torch
    from deepfishing.gradients.objective import Label
    from deepfishing.networks.network import Network


def train_on_store(
    store: Store,
    rows: Sequence[Row],
    labelled: Labelled,
    recipe: str,
    source: Source,
    strict: bool = False,
    **options: Any,
) -> tuple[Model, dict[str, str]]:
    """Train on features that are in a store.

    Parameters
    ----------
    store : Store
        Holds the factors that the recipe needs.
    rows : sequence of Row
        The images to train on; those without labels are not used.
    labelled : Labelled
        From `read_labels`.
    recipe : str
        One recipe.
    source : Source
        Where the network is that made the features.
    strict : bool
        Stop if an image could not be used, instead of leaving it out.
    options
        C, class_weight, difficult, seed: see `train_svm`.
    """
    known, labels = labelled.of(rows)
    failures = {row.id: str(row.error) for row in known if row.error}
    if strict:
        refuse_unreadable(failures, len(known))
    keys = [row.sha256 if row.error is None else None for row in known]
    return _train(store, keys, labels, labelled, recipe, source, options), failures


def train_on_images(
    network: Network,
    images: Sequence[Item],
    labelled: Labelled,
    folder: Path,
    recipe: str,
    source: Source,
    tau: float = 2.0,
    label: Label = "uniform",
    batch_size: BatchSize = "auto",
    progress: Progress | None = None,
    views: str = "centre",
    strict: bool = False,
    **options: Any,
) -> tuple[Model, dict[str, str]]:
    """Extract what a store lacks and train on it.

    Parameters
    ----------
    network : Network
        From `load_network`.
    images : sequence of Item
        From `find_images`; those without labels are not used.
    labelled : Labelled
        From `read_labels`.
    folder : path
        Store of the features; what is there is used again.
    recipe : str
        One recipe.
    source : Source
        The arguments that the network was loaded with.
    tau, label, batch_size, progress, views, strict
        See `extract_to_store`.
    options
        C, class_weight, difficult, seed: see `train_svm`.
    """
    from deepfishing.gradients.objective import check_label, check_tau

    # before a store is made for nothing
    check_tau(tau)
    check_label(label)
    check_batch_size(batch_size)
    known, labels = labelled.of(images)
    factors = parse_recipe(recipe, network.layers).factors
    store = Store(folder, store_settings(network, tau, label, views))
    done = extract_to_store(
        network,
        known,
        store,
        factors,
        tau,
        label,
        batch_size,
        progress,
        retry=True,
        views=views,
        strict=strict,
    )
    if strict:  # features that are not finite are known only now
        refuse_unreadable(done.failures, len(known))
    model = _train(store, done.keys, labels, labelled, recipe, source, options)
    return model, done.failures


def _train(
    store: Store,
    keys: Sequence[str | None],
    labels: Array,
    labelled: Labelled,
    recipe: str,
    source: Source,
    options: dict[str, Any],
) -> Model:
    good = [number for number, key in enumerate(keys) if key is not None]
    if not good:
        raise DatasetError(
            f"an image must be usable to train on, got none of {len(keys)}, see {store.folder}"
        )
    usable = [str(keys[number]) for number in good]
    columns = parse_recipe(recipe, layers_of(store.settings)).columns
    absent = [name for name in columns if store.missing(usable, [name])]
    if absent:
        raise StoreError(
            f"store {store.folder} must hold {', '.join(columns)} for {recipe}, but lacks "
            f"{', '.join(absent)}; add them with `deepfish extract` and --features"
        )
    arrays = {name: store.read(usable, name) for name in columns}
    return train_model(
        recipe, arrays, labels[np.array(good)], labelled.classes, store.settings, source, **options
    )

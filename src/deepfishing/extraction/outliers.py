"""The precision of a new store, by the activations of its network.

int8 is as good as single precision for the networks that are built in (docs/store.md). Transformers
have channels that are far above the others; then int8 is measured on some images before anything
is stored, and half precision takes its place where it would change kernels by more than 1 %.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from deepfishing.core.features import Factor, is_forward_vector
from deepfishing.extraction.batches import leave_out
from deepfishing.images.item import Item
from deepfishing.networks.reference import NetworkRef
from deepfishing.networks.zoo import RECORDS
from deepfishing.store.precision import MAX_VECTORS, suited_precision

if TYPE_CHECKING:
    from deepfishing.extraction.extract import Extractor


def is_unmeasured(network: NetworkRef, factors: Sequence[Factor]) -> bool:
    """Whether nothing is known of a network's activations, and some of them are vectors."""
    if network.name in RECORDS:
        return False
    return any(is_forward_vector(factor.name) for factor in factors)


def measure_precision(
    extractor: Extractor, images: Sequence[Item | Path]
) -> tuple[str, str]:
    """Return the precision for a new store, and why, empty if it is the default.

    `images` are all that will be stored; some of them are described here.
    """
    last = len(images) - 1
    chosen = np.unique(np.linspace(0, last, MAX_VECTORS).round().astype(int))
    parts: dict[str, list[np.ndarray]] = {}
    for batch in leave_out(extractor([images[number] for number in chosen]), {}):
        for name, values in batch.factors.items():
            parts.setdefault(name, []).append(values)
    return suited_precision({name: np.concatenate(x) for name, x in parts.items()})

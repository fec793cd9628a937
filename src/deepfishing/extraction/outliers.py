"""The precision of a new store, by the activations of its network.

int8 is as good as single precision for the networks that are built in (docs/store.md). Transformers
have channels that are far above the others; then int8 is measured on some images before anything
is stored, and half precision takes its place where it would change kernels by more than 1 %.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from deepfishing.core.features import Factor
from deepfishing.extraction.batches import leave_out
from deepfishing.extraction.extract import Extractor
from deepfishing.images.item import Item
from deepfishing.networks.network import Network
from deepfishing.networks.zoo import RECORDS
from deepfishing.store.precision import DEFAULT, FINER, MAX_KERNEL_ERROR, kernel_error

IMAGES = 32  # that are looked at
MIN_IMAGES = 8


def is_unmeasured(network: Network, factors: Sequence[Factor]) -> bool:
    """Whether nothing is known of a network's activations, and some of them are vectors."""
    return network.name not in RECORDS and any(map(_is_vector, factors))


def suited_precision(
    extractor: Extractor, factors: Sequence[Factor], images: Sequence[Item | Path]
) -> tuple[str, str]:
    """Return the precision for a new store, and why, empty if it is the default.

    Parameters
    ----------
    extractor : Extractor
        Of the factors.
    factors : sequence of Factor
        Forward ones are looked at.
    images : sequence of Item or Path
        All that will be stored; some of them are described here.
    """
    chosen = np.unique(np.linspace(0, len(images) - 1, IMAGES).round().astype(int))
    parts: dict[str, list[np.ndarray]] = {}
    for batch in leave_out(extractor([images[number] for number in chosen]), {}):
        for name, values in batch.factors.items():
            parts.setdefault(name, []).append(values)
    for factor in factors:
        if not _is_vector(factor) or factor.name not in parts:
            continue
        x = np.concatenate(parts[factor.name])
        if x.ndim != 2 or len(x) < MIN_IMAGES:
            continue
        error = kernel_error(x)
        if error > MAX_KERNEL_ERROR:
            why = (
                f"{factor.name} has channels far above the others, int8 would change its kernel by "
                f"{100 * error:.1f} %: numbers are kept in {FINER}"
            )
            return FINER, why
    return DEFAULT, ""


def _is_vector(factor: Factor) -> bool:
    """Whether a factor is a forward one with a vector for each image."""
    return factor.kind in ("input", "output") and not factor.needs_backward

"""A store of made-up features, the sound folder that several targets begin with."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from deepfishing.store import Row, Store

SETTINGS: dict[str, Any] = {
    "network": "tiny",
    "weights_sha256": "random-0",
    "layers": {"8": "1"},
    "preprocess": {
        **{"size": 2, "short_side": 2, "mean": [0.0] * 3, "std": [1.0] * 3},
        **{"scale": 1.0, "order": "RGB", "resample": "bilinear", "oversampling": 4},
    },
    "compute_dtype": "float32",
    "tau": 2.0,
    "label": "uniform",
    "views": "centre",
    "head": "softmax",
    "scores": "",
    "source": {"kind": "python", "files": {}},
}
WIDTHS = {"x7": 12, "delta8": 3}
IMAGES = 6
KEYS = [hashlib.sha256(bytes([n])).hexdigest() for n in range(IMAGES)]


def arrays() -> dict[str, np.ndarray[Any, Any]]:
    """Factors of all images."""
    rng = np.random.default_rng(0)
    return {
        name: rng.normal(size=(IMAGES, d)).astype("f4") for name, d in WIDTHS.items()
    }


def make_store(
    folder: Path, keys: Sequence[str] = KEYS, images: Path = Path("photos")
) -> Store:
    """Six images with labels, in a folder that need not be there."""
    store = Store(folder, SETTINGS)
    store.append(keys, arrays())
    store.write_rows(
        Row(
            f"{n}.png",
            str(images / f"{n}.png"),
            key,
            labels=("cat", "dog")[: 1 + n % 2],
            status="ok",
            factors=tuple(WIDTHS),
        )
        for n, key in enumerate(keys)
    )
    return store

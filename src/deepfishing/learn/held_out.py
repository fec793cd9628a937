"""Predictions of the images that a model was trained on, by classifiers that have not seen them.

A classifier knows the label of an image that it was trained on, and of its copies. So a prediction
of such an image is that of the cross-validation, in which its group was held out.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from deepfishing.core.rank_one import Array
from deepfishing.learn.svm import KernelSVM

NONE = -1.0  # in place of a probability
HASH_BYTES = 32
KEYS, PROBABILITIES = "held_out/keys", "held_out/probabilities"  # names of tensors


@dataclass(frozen=True, eq=False)
class HeldOut:
    """Probabilities (n, C) of training images, -1 where a class could not be held out."""

    keys: Array  # (n, 32) bytes: hashes of the images' contents
    probabilities: Array

    @classmethod
    def from_svm(cls, keys: Sequence[str], svm: KernelSVM) -> HeldOut:
        """Return the probabilities of images whose contents have these hashes."""
        packed = np.frombuffer(bytes.fromhex("".join(keys)), np.uint8).reshape(
            -1, HASH_BYTES
        )
        chances = np.full((len(keys), len(svm.trained)), NONE, dtype=np.float32)
        if svm.held_out is not None:
            is_known = ~np.isnan(svm.held_out)
            chances[is_known] = svm.calibrate(np.nan_to_num(svm.held_out))[is_known]
        return cls(packed, chances)

    @classmethod
    def from_tensors(cls, tensors: Mapping[str, Array], classes: int) -> HeldOut | None:
        """Return what a model's file has; older models have none."""
        if KEYS not in tensors:
            return None
        keys, chances = tensors[KEYS], tensors[PROBABILITIES]
        if keys.shape != (len(keys), HASH_BYTES) or chances.shape != (
            len(keys),
            classes,
        ):
            raise ValueError(
                "held-out predictions must be of the model's images and classes"
            )
        return cls(keys, chances)

    def tensors(self) -> dict[str, Array]:
        """Return what a model's file keeps."""
        return {KEYS: self.keys, PROBABILITIES: self.probabilities}

    def find(self, key: str) -> Array | None:
        """Return the probabilities (C,) of an image, or None if it was not trained on."""
        wanted = np.frombuffer(bytes.fromhex(key), np.uint8)
        rows = np.flatnonzero((self.keys == wanted).all(axis=1))
        if not len(rows):
            return None
        chances: Array = self.probabilities[rows[0]]
        return chances

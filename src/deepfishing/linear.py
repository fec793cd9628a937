"""Stage 5, classification in O(N): one-vs-rest linear machines on projected gradients.

Comes in: vectors (n, m) from `projections`, and labels (1, -1, 0 = difficult). Goes out: the
machines that `classify.train_svm` would find on the Gram matrix of these vectors, without that
matrix: per class the minimum of

    P(w, b) = 1/2 ||w||^2 + C sum_i max(0, 1 - y_i f(v_i)),    f(v) = <w, v> + b,

with hinge loss and a free intercept b. The solver is coordinate ascent on the dual, the method of
LIBLINEAR, arranged for dense vectors and many classes: a block of images is read once for all
classes, its products are matrix products, and only the block's own small Gram matrix is built.
LIBLINEAR shrinks the intercept towards 0. Here it is free, as in libsvm: each round pulls b
towards its last value instead (the method of multipliers for sum_i alpha_i y_i = 0).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

import numpy as np

from deepfishing.classify import check_options
from deepfishing.errors import FeatureError, OptionError
from deepfishing.rank_one import Array

# Images whose dual variables are updated between two reads of w. More of them cost more in the
# block's Gram matrix, fewer more in calls.
BLOCK = 64


@dataclass(frozen=True, eq=False)
class LinearSVM:
    """One-vs-rest machines: f(vector) = <w[:, class], vector> + bias[class].

    `trained` (C,) is false for a class whose labels allowed no machine; its column of `w` (m, C)
    is zero. `gap` (C,) bounds how far each machine's objective is above the optimum, as a part of
    the objective (if the optimal intercept lies between 0 and twice the found one); `rounds` is how
    often every image was visited.
    """

    w: Array
    bias: Array
    trained: Array
    gap: Array
    rounds: int

    def decision_function(self, vectors: Array) -> Array:
        """Scores (n, C); a class without a machine scores 0 for every image."""
        vectors = np.asarray(vectors)
        if vectors.ndim != 2 or vectors.shape[1] != len(self.w):
            raise FeatureError(
                f"vectors must be (n, {len(self.w)}) as in training, got {vectors.shape}"
            )
        scores = np.empty((len(vectors), self.w.shape[1]))
        for rows in _chunks(len(vectors)):
            scores[rows] = vectors[rows].astype(self.w.dtype, copy=False) @ self.w
        return scores + self.bias


def train_linear(
    vectors: Array,
    labels: Array,
    C: float = 1.0,
    difficult: str = "negative",
    tolerance: float = 0.1,
    rounds: int = 100,
    seed: int = 0,
) -> LinearSVM:
    """Train one machine per class, all classes at once; time and memory are linear in n.

    Parameters
    ----------
    vectors : ndarray of shape (n, m)
        Projected gradients or any features; beyond them, n * n_classes numbers are kept. Half
        precision is read a block at a time; the work is in single precision.
    labels : ndarray of shape (n, n_classes)
        1 present, -1 absent, 0 difficult.
    C : float
        Cost of the machines; the paper's is 1.
    difficult : "negative" or "ignore"
        As in `train_svm`.
    tolerance : float
        Stop when every machine is within this part of its optimal objective.
    rounds : int
        Stop after this many visits of every image, whatever the gap.
    seed : int
        Of the order in which images are visited.

    Returns
    -------
    LinearSVM
        A class without both a positive and a negative example has no machine.

    Examples
    --------
    >>> v = np.array([[1.0, 0.0], [0.9, 0.1], [0.0, 1.0], [0.1, 0.9]])
    >>> svm = train_linear(v, np.array([[1], [1], [-1], [-1]]))
    >>> (svm.decision_function(v) > 0).ravel().tolist()
    [True, True, False, False]
    """
    vectors, labels = np.asarray(vectors), np.asarray(labels)
    check_options(C, difficult)
    if vectors.ndim != 2 or labels.ndim != 2 or len(labels) != len(vectors):
        raise FeatureError(
            "vectors must be (n, m) and labels (n, n_classes) for the same n images, "
            f"got {vectors.shape} and {labels.shape}"
        )
    if not tolerance > 0 or rounds < 1:
        raise OptionError(
            f"tolerance must be above 0 and rounds at least 1, got {tolerance!r} and {rounds!r}"
        )
    y = np.where(labels == 1, 1.0, -1.0)
    cost = np.where((labels == 0) & (difficult == "ignore"), 0.0, C)
    positive, negative = ((sign * y > 0) & (cost > 0) for sign in (1, -1))
    trained: Array = np.any(positive, axis=0) & np.any(negative, axis=0)
    cost *= trained
    beta = np.zeros_like(y)  # alpha y
    count = -(-len(vectors) // BLOCK)
    # Every count-th image, so that images that were stored together are not visited together. These
    # are views: the vectors are not copied.
    blocks = [
        _Block.of(*(a[start::count] for a in (vectors, y, cost, beta))) for start in range(count)
    ]
    squares = sum(float(block.K.trace()) for block in blocks)
    if not np.isfinite(squares):
        raise FeatureError("vectors must be finite, got NaN or infinity")
    # b costs (b - centre)^2 / (2 pull): as if all images shared a feature of this square. A tenth
    # of their own took the fewest rounds on VOC 2007, of 0.03 to 3 times.
    pull = 0.1 * squares / max(len(vectors), 1) or 1.0
    w = np.zeros((vectors.shape[1], y.shape[1]), dtype=np.float32)
    centre = np.zeros(y.shape[1])
    random = np.random.default_rng(seed)
    done = 0
    gap = np.where(trained, np.inf, 0.0)
    while done < rounds and gap.max(initial=0.0) > tolerance:
        done += 1
        bias = centre + pull * beta.sum(axis=0)
        loss = np.zeros_like(centre)
        for number in random.permutation(count):
            loss += blocks[number].ascend(w, bias, pull)
        centre += pull * beta.sum(axis=0)
        # First with the losses met on the way, of machines that were not as good yet: they cost no
        # pass over the images.
        gap = _gap(loss, y, beta, w, centre)
        if gap.max(initial=0.0) <= 1.2 * tolerance or done == rounds:
            gap = _gap(_loss(vectors, y, cost, w, centre), y, beta, w, centre)
    return LinearSVM(w, np.where(trained, centre, 0.0), trained, gap, done)


@dataclass(frozen=True, eq=False)
class _Block:
    """B images that are visited together, with their dual variables beta = alpha y (B, C).

    `K` (B, B) is their Gram matrix.
    """

    vectors: Array
    y: Array
    cost: Array
    beta: Array
    K: Array

    @classmethod
    def of(cls, vectors: Array, y: Array, cost: Array, beta: Array) -> Self:
        v = vectors.astype(np.float32, copy=False)
        return cls(vectors, y, cost, beta, (v @ v.T).astype(np.float64))

    def ascend(self, w: Array, bias: Array, pull: float) -> Array:
        """Maximise the dual in each beta in turn: beta, w and b change. The loss (C,) before it."""
        v = self.vectors.astype(np.float32, copy=False)
        error = self.y - (v @ w + bias)
        loss: Array = (self.cost * np.maximum(self.y * error, 0.0)).sum(axis=0)
        curvature = self.K.diagonal()[:, None] + pull
        # where each beta alone would go, how far it may, and what the others' changes do to it
        alone, end = error / curvature, self.y * self.cost
        low, high = np.minimum(end, 0.0) - self.beta, np.maximum(end, 0.0) - self.beta
        others = (self.K + pull) / curvature
        change = np.zeros_like(alone)
        row = np.empty_like(alone[0])
        for i in range(len(change)):
            np.dot(others[i, :i], change[:i], out=row)
            np.subtract(alone[i], row, out=row)
            np.maximum(row, low[i], out=row)
            np.minimum(row, high[i], out=change[i])
        self.beta[:] += change
        w += v.T @ change.astype(np.float32)
        bias += pull * change.sum(axis=0)
        return loss


def _loss(vectors: Array, y: Array, cost: Array, w: Array, bias: Array) -> Array:
    """C sum_i max(0, 1 - y_i f(v_i)) of every machine."""
    loss = np.zeros(y.shape[1])
    for rows in _chunks(len(vectors)):
        scores = vectors[rows].astype(np.float32, copy=False) @ w + bias
        loss += (cost[rows] * np.maximum(1.0 - y[rows] * scores, 0.0)).sum(axis=0)
    return loss


def _gap(loss: Array, y: Array, beta: Array, w: Array, bias: Array) -> Array:
    """How far P(w, b) is above its bound, as a part of P; 0 for a class without a machine."""
    half = 0.5 * np.einsum("mc,mc->c", w, w, dtype=np.float64)
    primal = half + loss
    # For every b*, P >= sum alpha - 1/2 ||w||^2 - b* sum beta; the least of b* in [0, 2 b].
    imbalance = beta.sum(axis=0)  # 0 when b is optimal
    bound = (beta * y).sum(axis=0) - half - np.maximum(2 * bias * imbalance, 0.0)
    relative: Array = np.divide(primal - bound, primal, out=np.zeros_like(primal), where=primal > 0)
    return relative


def _chunks(n: int) -> list[slice]:
    return [slice(start, start + 4096) for start in range(0, n, 4096)]

"""One-vs-rest linear classifiers on vectors, in time and memory that are linear in the images.

They are the classifiers that `train_svm` finds on the Gram matrix of these vectors, without that
matrix: per class the minimum of

    P(w, b) = 1/2 ||w||^2 + C sum_i max(0, 1 - y_i f(v_i)),    f(v) = <w, v> + b,

with hinge loss and a free intercept b. The solver is coordinate ascent on the dual, the method of
LIBLINEAR, arranged for dense vectors and many classes: a block of images is read once for all
classes, its products are matrix products, and only the block's own small Gram matrix is built.
LIBLINEAR shrinks the intercept towards 0. Here it is free, as in libsvm: each round pulls b
towards its last value instead (the method of multipliers for sum_i alpha_i y_i = 0). With a free
intercept the minimum is the same when the mean of the vectors is subtracted from all of them, and
it is found in fewer rounds; the mean goes into the intercept at the end.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from deepfishing.core.metrics import check_signs
from deepfishing.core.rank_one import Array
from deepfishing.errors import FeatureError, OptionError
from deepfishing.images.dataset import DIFFICULT
from deepfishing.learn.svm import check_options
from deepfishing.util.progress import Progress, silent

BLOCK = 64  # images whose dual variables are updated between two reads of w
CHUNK = 4096  # images that are converted to single precision at a time


@dataclass(frozen=True, eq=False)
class LinearSVM:
    """One-vs-rest classifiers: f(vector) = <w[:, class], vector> + bias[class].

    `gap` bounds how far each objective is above the optimum, as a part of the objective: it is the
    duality gap, which holds for every intercept.
    """

    w: Array  # (m, C)
    bias: Array  # (C,), as the others
    # false for a class whose labels allowed no classifier; its column of w is zero
    trained: Array
    gap: Array
    rounds: int  # how often every image was visited

    def decision_function(self, vectors: Array) -> Array:
        """Scores (n, C); a class without a classifier scores 0 for every image."""
        vectors = np.asarray(vectors)
        if vectors.ndim != 2 or vectors.shape[1] != len(self.w):
            raise FeatureError(
                f"vectors must be (n, {len(self.w)}) as in training, got {vectors.shape}"
            )
        plain = _Centred(vectors, np.zeros(len(self.w), np.float32))
        return plain.scores(self.w) + self.bias


def train_linear(
    vectors: Array,
    labels: Array,
    C: float | Array = 1.0,
    difficult: str = DIFFICULT[0],
    class_weight: str | float | None = None,
    tolerance: float = 0.1,
    rounds: int = 1000,
    progress: Progress = silent,
) -> LinearSVM:
    """Train one classifier per class, all classes at once; time and memory are linear in n.

    Vectors are (n, m), labels (n, n_classes), and the cost C a number or (n_classes,); the rest is
    as in `train_svm`. It stops when every objective is within `tolerance` of its optimum, as a part
    of it, or with a warning after `rounds` passes over the images; the number of passes grows with
    C. Beside the vectors, a few numbers per image and class are in memory, and two for each pair of
    a block; half precision is read a block at a time.
    """
    vectors, labels = np.asarray(vectors), np.asarray(labels)
    check_options(float(np.min(C)), difficult, class_weight)
    if vectors.ndim != 2 or labels.ndim != 2 or len(labels) != len(vectors):
        raise FeatureError(
            "vectors must be (n, m) and labels (n, n_classes) for the same n images, "
            f"got {vectors.shape} and {labels.shape}"
        )
    if difficult == "ignore":
        check_signs(labels)
    if not tolerance > 0 or rounds < 1:
        raise OptionError(
            f"tolerance must be above 0 and rounds at least 1, got {tolerance!r} and {rounds!r}"
        )
    y = np.where(labels == 1, 1.0, -1.0)
    cost = np.where((labels == 0) & (difficult == "ignore"), 0.0, C)
    positive = (y > 0) & (cost > 0)
    negative = (y < 0) & (cost > 0)
    trained: Array = np.any(positive, axis=0) & np.any(negative, axis=0)
    cost *= trained
    if class_weight == "balanced":
        n_positive = np.maximum(positive.sum(axis=0), 1)
        n_negative = np.maximum(negative.sum(axis=0), 1)
        own_side = np.where(y > 0, n_positive, n_negative)
        cost *= (n_positive + n_negative) / (2 * own_side)
    elif class_weight is not None:
        cost *= np.where(y > 0, float(class_weight), 1.0)
    beta = np.zeros_like(y)  # alpha y
    scores = np.zeros_like(y)  # <w, v> when the image was visited last
    centred = _Centred.of(vectors)
    _check_finite(centred.mean)
    blocks, pull = _make_blocks(centred, y, cost, beta, scores)
    w = np.zeros((vectors.shape[1], y.shape[1]), dtype=np.float32)
    centre = np.zeros(y.shape[1])
    bias = np.zeros(y.shape[1])
    random = np.random.default_rng(0)
    done = 0
    gap = np.where(trained, np.inf, 0.0)
    while done < rounds and gap.max(initial=0.0) > tolerance:
        progress("rounds", done, rounds)
        done += 1
        drift = centre + pull * beta.sum(axis=0)
        for number in random.permutation(len(blocks)):
            blocks[number].ascend(w, drift, pull)
        centre += pull * beta.sum(axis=0)
        # First with the scores of the last visits, of an earlier and worse w: they cost no pass
        # over the images, and are pessimistic by up to a half.
        bias, primal = _primal(scores, y, cost, w)
        gap = _gap(primal, _dual(beta, y, w))
        if gap.max(initial=0.0) <= 1.5 * tolerance or done == rounds:
            bias, primal = _primal(centred.scores(w), y, cost, w)
            feasible = _balanced(beta)
            gap = _gap(primal, _dual(feasible, y, centred.weights(feasible)))
    progress("rounds", done, done)
    if (gap > tolerance).any():
        _warn_unfinished(gap, trained, tolerance, done)
    bias = bias - centred.mean.astype(np.float64) @ w
    return LinearSVM(w, bias, trained, gap, done)


def _make_blocks(
    centred: _Centred, y: Array, cost: Array, beta: Array, scores: Array
) -> tuple[list[_Block], float]:
    """Return the blocks of images, whose arrays are views, and the cost of the intercept.

    A block has every count-th image, so that images that were stored together are not visited
    together.
    """
    count = -(-len(y) // BLOCK)
    rows_of_blocks = [slice(start, None, count) for start in range(count)]
    parts = [_Centred(centred.vectors[rows], centred.mean) for rows in rows_of_blocks]
    grams = [_gram(part.read()) for part in parts]
    squares = sum(float(K.trace()) for K in grams)
    _check_finite(squares)
    # b costs (b - centre)^2 / (2 pull): as if all images shared a feature of this square. A tenth
    # of their own took the fewest rounds on VOC 2007, of 0.03 to 3 times.
    pull = 0.1 * squares / max(len(y), 1) or 1.0
    blocks = []
    for part, rows, K in zip(parts, rows_of_blocks, grams, strict=True):
        curvature = K.diagonal()[:, None] + pull
        block = _Block(
            part,
            y[rows],
            cost[rows],
            beta[rows],
            scores[rows],
            curvature,
            pushed=-(K + pull) / curvature,
        )
        blocks.append(block)
    return blocks, pull


def _check_finite(values: Array | float) -> None:
    if not np.isfinite(values).all():
        raise FeatureError("vectors must be finite, got NaN or infinity")


def _warn_unfinished(gap: Array, trained: Array, tolerance: float, rounds: int) -> None:
    far = int((gap > tolerance).sum())
    warnings.warn(
        f"{far} of {int(trained.sum())} linear classifiers are not at their optimum after {rounds} "
        f"rounds: the objective may be {gap.max():.0%} above it, not {tolerance:.0%}; take a lower "
        "C or more rounds",
        stacklevel=3,
    )


@dataclass(frozen=True, eq=False)
class _Centred:
    """Vectors (n, m) minus a mean, in single precision; they are converted a chunk at a time."""

    vectors: Array
    mean: Array

    @classmethod
    def of(cls, vectors: Array) -> _Centred:
        """Vectors minus their own mean."""
        total = np.zeros(vectors.shape[1])
        for start in range(0, len(vectors), CHUNK):
            total += vectors[start : start + CHUNK].sum(axis=0, dtype=np.float64)
        return cls(vectors, (total / max(len(vectors), 1)).astype(np.float32))

    def read(self, rows: slice = slice(None)) -> Array:
        """Some of the vectors."""
        centred: Array = self.vectors[rows].astype(np.float32, copy=False) - self.mean
        return centred

    def scores(self, w: Array) -> Array:
        """<w, v> of every image and classifier, (n, C)."""
        scores = np.empty((len(self.vectors), w.shape[1]))
        for rows in self._chunks():
            scores[rows] = self.read(rows) @ w
        return scores

    def weights(self, beta: Array) -> Array:
        """The w (m, C) of dual variables (n, C): sum_i beta_i v_i."""
        w = np.zeros((self.vectors.shape[1], beta.shape[1]), np.float32)
        for rows in self._chunks():
            w += self.read(rows).T @ beta[rows].astype(np.float32)
        return w

    def _chunks(self) -> Iterator[slice]:
        return (slice(i, i + CHUNK) for i in range(0, len(self.vectors), CHUNK))


@dataclass(frozen=True, eq=False)
class _Block:
    """B images that are visited together, with their dual variables beta = alpha y (B, C).

    `curvature` (B, 1) is the dual's in each beta, and `pushed` (B, B) how far the change of one
    image's beta moves the best value of another's.
    """

    vectors: _Centred
    y: Array
    cost: Array
    beta: Array
    scores: Array  # <w, v> at the last visit
    curvature: Array
    pushed: Array

    def ascend(self, w: Array, bias: Array, pull: float) -> None:
        """Maximise the dual in each beta in turn: beta, w and b change."""
        v = self.vectors.read()
        self.scores[:] = v @ w
        # where each beta alone would go
        alone = (self.y - self.scores - bias) / self.curvature
        end = self.y * self.cost
        low, high = np.minimum(end, 0.0) - self.beta, np.maximum(end, 0.0) - self.beta
        change = np.zeros_like(alone)
        row = np.empty_like(alone[0])
        rows = zip(self.pushed, alone, low, high, change, strict=True)
        for pushed, own, least, most, to in rows:
            np.dot(pushed, change, out=row)  # later images have not changed yet
            np.add(row, own, out=row)
            np.maximum(row, least, out=row)
            np.minimum(row, most, out=to)
        self.beta[:] += change
        w += v.T @ change.astype(np.float32)
        bias += pull * change.sum(axis=0)


def _gram(v: Array) -> Array:
    return (v @ v.T).astype(np.float64)


def _primal(scores: Array, y: Array, cost: Array, w: Array) -> tuple[Array, Array]:
    """Return the best intercept of w, and P with it, (C,) each; 0 without a classifier."""
    at_margin = y - scores  # the b with which an image is at its margin
    bias = _best_bias(at_margin, y, cost)
    loss = np.einsum("nc,nc->c", cost, np.maximum(y * (at_margin - bias), 0.0))
    return bias, _half_square(w) + loss


def _dual(beta: Array, y: Array, w: Array) -> Array:
    """Return sum alpha - 1/2 ||w||^2, a lower bound of P if sum beta is 0."""
    dual: Array = np.einsum("nc,nc->c", beta, y) - _half_square(w)
    return dual


def _half_square(w: Array) -> Array:
    half: Array = 0.5 * np.einsum("mc,mc->c", w, w, dtype=np.float64)
    return half


def _balanced(beta: Array) -> Array:
    """Return dual variables whose sum beta is 0: the side with the larger sum is scaled down."""
    above = np.maximum(beta, 0.0).sum(axis=0)
    below = -np.minimum(beta, 0.0).sum(axis=0)
    smaller = np.minimum(above, below)
    ratio_above = np.divide(smaller, above, out=np.zeros_like(above), where=above > 0)
    ratio_below = np.divide(smaller, below, out=np.zeros_like(below), where=below > 0)
    balanced: Array = beta * np.where(beta > 0, ratio_above, ratio_below)
    return balanced


def _gap(primal: Array, dual: Array) -> Array:
    """Return the gap of P to a lower bound of the optimum, as a part of P; 0 where P is 0."""
    gap: Array = np.divide(
        primal - dual, primal, out=np.zeros_like(primal), where=primal > 0
    )
    return gap


def _best_bias(at_margin: Array, y: Array, cost: Array) -> Array:
    """Return the b (C,) of least loss: as many images have their margin below b as are positive.

    The loss falls by C for each positive above b and rises by C for each negative below it: its
    slope changes sign where those below b, of either sign, are as many as all positives.
    """
    bias = np.zeros(y.shape[1])
    for c in np.flatnonzero(cost.any(axis=0)):
        used = cost[:, c] > 0
        if np.ptp(cost[used, c]):  # the same with weights
            order = np.argsort(at_margin[used, c])
            below = np.cumsum(cost[used, c][order])
            wanted = cost[used & (y[:, c] > 0), c].sum()
            position = np.searchsorted(below, wanted * (1 - 1e-12))
            bias[c] = at_margin[used, c][order][position]
            continue
        positives = np.count_nonzero(y[used, c] > 0)
        middle = (positives - 1, positives)
        bias[c] = np.partition(at_margin[used, c], middle)[list(middle)].mean()
    return bias

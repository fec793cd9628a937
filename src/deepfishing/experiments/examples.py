"""Stage 6, experiments: search by one example, by two, and by two and a counter-example.

Comes in: features of images, as anything that `gram` compares, and their labels (1 present, -1
absent, 0 difficult). Goes out: which share of the first ten photos shows the class of the examples,
once per draw of the examples. Neither needs torch or the images.

The counter-example is the first photo of the search by the two that does not show the class: the
one that somebody would mark as wrong. It counts as in `deepfish search`. Which examples are drawn
depends on labels and seed alone, so two features are measured on the same ones.
"""

from __future__ import annotations

import numpy as np

from deepfishing.errors import DatasetError
from deepfishing.kernels import UNLIKE, Comparable, gram
from deepfishing.rank_one import Array
from deepfishing.statistics import SEED

DRAWS, FIRST = 1200, 10
BLOCK = 100  # draws at once, which bounds the memory


def search_by_examples(
    features: Comparable, labels: Array, draws: int = DRAWS, first: int = FIRST, seed: int = SEED
) -> Array:
    """Share of the first photos that show the class, in percent, (draws, 3).

    The columns are for one example, two, and two with a counter-example. Examples are never found
    again, and photos for which the class is difficult are passed over. Every class that has three
    images, and one without it, is drawn equally often.

    Examples
    --------
    >>> x = np.array([[1.0, 0.0], [0.9, 0.1], [1.0, 0.1], [0.0, 1.0], [0.1, 0.9], [0.1, 1.0]])
    >>> labels = np.array([[1, -1]] * 3 + [[-1, 1]] * 3)
    >>> search_by_examples(x, labels, draws=4, first=1).mean(axis=0)
    array([100., 100., 100.])
    """
    labels = np.asarray(labels)
    shown = [np.flatnonzero(column == 1) for column in labels.T]
    usable = [c for c, images in enumerate(shown) if len(images) > 2 and (labels[:, c] == -1).any()]
    if not usable:
        raise DatasetError(
            "search by examples needs a class that three images show and one does not, got none"
        )
    classes = np.resize(usable, draws)
    pairs = np.array(
        [
            np.random.default_rng((seed, draw)).permutation(shown[c])[:2]
            for draw, c in enumerate(classes)
        ]
    )
    found = np.empty((draws, 3))
    for start in range(0, draws, BLOCK):
        part = slice(start, start + BLOCK)
        found[part] = _shares(features, labels[:, classes[part]].T, pairs[part], first)
    return found


def _shares(features: Comparable, truth: Array, pairs: Array, first: int) -> Array:
    """Shares (d, 3) of d draws: labels (d, n) of their classes, and their two examples (d, 2)."""
    K = gram(features, features[pairs.ravel()]).T.reshape(*pairs.shape, -1)  # (d, 2, n)
    one, two = K[:, 0].copy(), K.mean(axis=1)
    rows = np.arange(len(pairs))
    for scores, known in ((one, pairs[:, :1]), (two, pairs)):
        scores[truth == 0] = -np.inf
        scores[rows[:, None], known] = -np.inf
    wrong = np.where(truth == -1, two, -np.inf).argmax(axis=1)
    three = two - UNLIKE * gram(features, features[wrong]).T
    three[rows, wrong] = -np.inf
    return np.stack([_share(truth, scores, first) for scores in (one, two, three)], axis=1)


def _share(truth: Array, scores: Array, first: int) -> Array:
    """Percent of the first photos that show the class; as many as there are, if there are fewer."""
    nearest = np.argsort(-scores, axis=1, kind="stable")[:, :first]
    seen = np.take_along_axis(scores, nearest, axis=1) > -np.inf
    right = (np.take_along_axis(truth, nearest, axis=1) == 1) & seen
    share: Array = 100.0 * right.sum(axis=1) / seen.sum(axis=1)
    return share

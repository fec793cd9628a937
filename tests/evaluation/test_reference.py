"""Few labels against the plain formulas of a reference that works with whole kernel matrices."""

import numpy as np
import pytest
from sklearn.svm import SVC

from deepfishing.core.metrics import average_precision
from deepfishing.core.rank_one import l2_normalize
from deepfishing.core.recipes import parse_recipe
from deepfishing.evaluation.protocols.low_shot import low_shot

SHOTS = 3


@pytest.fixture
def photos(rng):
    """Embeddings of 90 photos to train, of which the protocol takes all, and of 60 to test."""
    y = np.concatenate([np.repeat(np.arange(30), SHOTS), np.arange(60) % 30])
    x = l2_normalize(
        np.abs(np.eye(30)[y] @ rng.normal(size=(30, 16)) + rng.normal(size=(150, 16)))
    )
    labels = np.where(np.eye(30)[y] == 1, 1, -1)[:, :3]
    return x[:90], labels[:90], x[90:], labels[90:]


def linear(train, test):
    return train @ train.T, test @ train.T


def rbf(train, test):
    return tuple(np.exp(2 * 2 * (K - 1)) for K in linear(train, test))


def smooth(train, test, n=10):
    def weights(K, own):
        w = np.zeros_like(K)
        for i, row in enumerate(K):
            order = [j for j in np.argsort(-row) if not (own and i == j)][:n]
            w[i, order] = np.maximum(row[order], 0) ** 3
        return w + np.eye(len(K)) if own else w

    K, K_test = linear(train, test)
    A, T = weights(K, own=True), weights(K_test, own=False)
    pool = A @ K @ A.T
    norm = np.sqrt(np.diag(pool))
    test_norm = np.sqrt(1 + 2 * (T * K_test).sum(axis=1) + ((T @ K) * T).sum(axis=1))
    return pool / norm[:, None] / norm, (K_test + T @ K) @ A.T / test_norm[
        :, None
    ] / norm


@pytest.mark.parametrize(
    ("recipe", "reference"),
    [("x7", linear), ("rbf(x7,2)", rbf), ("smooth(x7)", smooth)],
)
def test_few_labels_are_scored_as_by_the_reference(photos, recipe, reference):
    train, labels, test, truth = photos
    K, K_test = reference(train, test)
    expected = []
    for c in range(labels.shape[1]):
        rng = np.random.default_rng((0, 0, c))
        positive = rng.permutation(np.flatnonzero(labels[:, c] == 1))[:SHOTS]
        negative = rng.permutation(np.flatnonzero(labels[:, c] == -1))[: 19 * SHOTS]
        rows = np.concatenate([positive, negative])
        svm = SVC(kernel="precomputed").fit(K[np.ix_(rows, rows)], labels[rows, c])
        scores = K_test[:, rows[svm.support_]] @ svm.dual_coef_[0]
        expected.append(average_precision(truth[:, c], scores, "area"))
    fitted = parse_recipe(recipe).fit({"x7": train})
    sides = fitted({"x7": train}), labels, fitted({"x7": test}), truth
    (point,) = low_shot(*sides, [SHOTS], draws=1)
    assert point.map["area"][0] == pytest.approx(np.mean(expected), abs=0.2)

"""Search by examples: against a slow and obvious version, and what is drawn."""

import numpy as np
import pytest

from deepfishing.core.rank_one import RankOne
from deepfishing.errors import DatasetError
from deepfishing.evaluation.protocols.search import search_by_examples


@pytest.fixture
def data(rng):
    """A collection of 60 photos and 40 others to search it with."""
    labels = np.where(rng.random((100, 4)) < 0.3, 1, -1)
    labels[rng.random(labels.shape) < 0.1] = 0
    labels[:, 3] = -1
    labels[[0, 1, 60, 61], 3] = 1  # two queries are too few to search for
    x = rng.standard_normal((100, 5)) + labels @ rng.standard_normal((4, 5))
    return x[:60], labels[:60], x[60:], labels[60:]


def slowly(x, labels, queries, query_labels, draws, first, seed):
    K = queries @ x.T
    found = []
    for draw in range(draws):
        c = draw % 3
        shown = np.flatnonzero(query_labels[:, c] == 1)
        examples = np.random.default_rng((seed, draw)).permutation(shown)[:3]

        def ranked(scores, left_out=None, c=c):
            order = np.argsort(-scores, kind="stable")
            return [i for i in order if labels[i, c] != 0 and i != left_out]

        def share(order, c=c):
            return 100 * np.mean([labels[i, c] == 1 for i in order[:first]])

        scores = [K[examples[:count]].mean(axis=0) for count in (1, 2, 3)]
        shares = [share(ranked(one)) for one in scores]
        wrong = next(i for i in ranked(scores[1]) if labels[i, c] == -1)
        corrected = scores[1] - x @ x[wrong] / 4
        found.append([*shares, share(ranked(corrected, wrong))])
    return np.array(found)


@pytest.mark.parametrize("draws", [7, 230])  # of more than one block
def test_shares_are_those_of_a_search_one_by_one(data, draws):
    found = search_by_examples(*data, draws=draws, first=10, seed=3)
    np.testing.assert_allclose(found, slowly(*data, draws, 10, 3), atol=1e-9)
    assert not np.array_equal(found, search_by_examples(*data, draws=draws, seed=4))


def test_gradients_are_searched_by_their_kernel(data, rng):
    x, labels, queries, query_labels = data
    deltas = rng.standard_normal((60, 3)), rng.standard_normal((40, 3))
    dense = [
        np.einsum("ni,nj->nij", side, delta).reshape(len(side), -1)
        for side, delta in zip((x, queries), deltas, strict=True)
    ]
    gradients = RankOne(x, deltas[0]), RankOne(queries, deltas[1])
    np.testing.assert_allclose(
        search_by_examples(gradients[0], labels, gradients[1], query_labels, draws=30),
        search_by_examples(dense[0], labels, dense[1], query_labels, draws=30),
    )


def test_fewer_photos_than_ten_are_all_counted():
    labels = np.array([[1]] * 3 + [[-1]] * 2)
    found = search_by_examples(np.eye(5), labels, np.eye(5)[:3], labels[:3], draws=1)
    np.testing.assert_allclose(found, [[60.0, 60.0, 60.0, 75.0]])


def test_without_a_class_of_three_queries_there_is_nothing_to_search():
    labels = np.array([[1, 1], [1, 1], [-1, 1], [-1, 1]])
    with pytest.raises(DatasetError, match="a class that three test images show"):
        search_by_examples(np.eye(4), labels, np.eye(4), labels)

"""Search by examples: against a slow and obvious version, and what is drawn."""

import numpy as np
import pytest

from deepfishing.core.rank_one import RankOne
from deepfishing.errors import DatasetError
from deepfishing.evaluation.protocols import search_by_examples


@pytest.fixture
def data(rng):
    labels = np.where(rng.random((60, 4)) < 0.3, 1, -1)
    labels[rng.random(labels.shape) < 0.1] = 0
    labels[:, 3] = -1
    labels[:2, 3] = 1  # two images are too few to search for
    x = rng.standard_normal((60, 5)) + labels @ rng.standard_normal((4, 5))
    return x, labels


def slowly(x, labels, draws, first, seed):
    K = x @ x.T
    found = []
    for draw in range(draws):
        c = draw % 3
        shown = np.flatnonzero(labels[:, c] == 1)
        a, b = np.random.default_rng((seed, draw)).permutation(shown)[:2]

        def share(scores, given, c=c):
            ranked = [i for i in np.argsort(-scores, kind="stable") if i not in given]
            ranked = [i for i in ranked if labels[i, c] != 0]
            return 100 * np.mean([labels[i, c] == 1 for i in ranked[:first]]), ranked

        mean = (K[a] + K[b]) / 2
        one, two = share(K[a], {a}), share(mean, {a, b})
        wrong = next(i for i in two[1] if labels[i, c] == -1)
        three = share(mean - K[wrong] / 4, {a, b, wrong})
        found.append([one[0], two[0], three[0]])
    return np.array(found)


@pytest.mark.parametrize("draws", [7, 230])  # of more than one block
def test_shares_are_those_of_a_search_one_by_one(data, draws):
    x, labels = data
    found = search_by_examples(x, labels, draws=draws, first=10, seed=3)
    np.testing.assert_allclose(found, slowly(x, labels, draws, 10, 3), atol=1e-9)
    assert not np.array_equal(found, search_by_examples(x, labels, draws=draws, seed=4))


def test_gradients_are_searched_by_their_kernel(data, rng):
    x, labels = data
    delta = rng.standard_normal((60, 3))
    dense = np.einsum("ni,nj->nij", x, delta).reshape(60, -1)
    np.testing.assert_allclose(
        search_by_examples(RankOne(x, delta), labels, draws=30),
        search_by_examples(dense, labels, draws=30),
    )


def test_fewer_photos_than_ten_are_all_counted():
    labels = np.array([[1]] * 4 + [[-1]] * 2)
    x = np.eye(6)
    np.testing.assert_allclose(search_by_examples(x, labels, draws=1), [[60.0, 50.0, 2 / 3 * 100]])


def test_without_a_class_of_three_images_there_is_nothing_to_search():
    with pytest.raises(DatasetError, match="a class that three images show"):
        search_by_examples(np.eye(4), np.array([[1, 1], [1, 1], [-1, 1], [-1, 1]]))

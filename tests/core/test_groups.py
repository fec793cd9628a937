"""Groups of copies and similar scenes, for validation."""

import numpy as np
import pytest

from deepfishing.core import neighbours
from deepfishing.core.groups import similar_groups
from deepfishing.errors import FeatureError


def around(rng, centres, kernel, copies):
    """Unit vectors whose dot product is about `kernel` within the copies of one centre."""
    rows = np.repeat(centres, copies, axis=0)
    noise = rng.normal(size=rows.shape) / np.sqrt(rows.shape[1])
    return np.sqrt(kernel) * rows + np.sqrt(1 - kernel) * noise


def centres(rng, n, d=640):
    vectors = rng.normal(size=(n, d))
    return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)


def test_copies_of_a_photo_are_one_group(rng):
    x = around(rng, centres(rng, 24), 0.96, 4)
    groups = similar_groups(x)
    np.testing.assert_array_equal(groups, np.repeat(np.arange(24), 4))


def test_a_class_of_photos_that_are_all_alike_is_not_one_group(rng):
    easy = around(rng, centres(rng, 1), 0.97, 300)
    others = centres(rng, 100)
    groups = similar_groups(np.concatenate([easy, others]))
    assert np.bincount(groups).max() == 1


def test_copies_within_a_class_of_photos_that_are_all_alike_are_found(rng):
    easy = around(rng, centres(rng, 1), 0.95, 100)
    easy /= np.linalg.norm(easy, axis=1, keepdims=True)
    groups = similar_groups(around(rng, easy, 0.995, 2))
    np.testing.assert_array_equal(groups, np.repeat(np.arange(100), 2))


def test_one_content_or_one_embedding_is_one_group_however_often_it_is_there(rng):
    x = centres(rng, 50)
    np.testing.assert_array_equal(
        similar_groups(np.tile(x, (30, 1))), np.tile(np.arange(50), 30)
    )
    keys = [str(row // 2) for row in range(50)]
    np.testing.assert_array_equal(similar_groups(x, keys), np.arange(50) // 2)


@pytest.mark.parametrize("n", [0, 1, 2, 3])
def test_few_photos_are_grouped(rng, n):
    x = centres(rng, n)
    np.testing.assert_array_equal(similar_groups(x), np.arange(n))
    np.testing.assert_array_equal(
        similar_groups(np.tile(x, (2, 1))), np.tile(np.arange(n), 2)
    )


def test_an_index_finds_the_groups_that_all_pairs_have(rng, monkeypatch):
    x = around(rng, centres(rng, 300, 32), 0.97, 3)
    exact = similar_groups(x)
    monkeypatch.setattr(neighbours, "EXACT_ROWS", 100)
    np.testing.assert_array_equal(similar_groups(x), exact)
    assert len(set(exact.tolist())) < 320


def test_embeddings_that_are_not_finite_are_refused(rng):
    x = centres(rng, 4)
    x[2, 0] = np.nan
    with pytest.raises(FeatureError, match="finite"):
        similar_groups(x)
    with pytest.raises(FeatureError, match="3 keys"):
        similar_groups(x, ["a", "b", "c"])


def test_short_embeddings_are_one_group_only_where_they_are_equal(rng):
    x = rng.normal(size=(200, 4))
    groups = similar_groups(np.concatenate([x, 2 * x[:5]]))
    assert len(np.unique(groups)) == 200
    np.testing.assert_array_equal(groups[200:], groups[:5])

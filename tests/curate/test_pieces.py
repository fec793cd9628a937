"""The small pieces that the commands of curate are made of."""

import numpy as np

from deepfishing.curate import label_scores, nearest, open_searcher
from deepfishing.curate.duplicates import _components
from deepfishing.curate.label_errors import doubted
from deepfishing.images.alignment import SIDE, align
from deepfishing.store import Row, Store


def test_a_label_that_all_others_contradict_is_scored_against():
    x = np.repeat(np.eye(2), 10, axis=0)
    labels = np.where(x == 1, 1, -1)
    labels[3] = -1, 1  # which is wrong
    assert (label_scores(x, labels)[3] > 0).tolist() == [True, False]


def test_doubts_are_of_one_class_or_of_several():
    one, several = np.array([[1, -1], [1, -1]]), np.array([[1, 1], [1, -1]])
    assert doubted(one, np.array([[0.5, -0.5], [-1.0, 0.5]])) == [(1, 1, 1.5)]
    found = doubted(several, np.array([[0.5, -0.5], [-1.0, 0.25]]))
    assert found == [(1, 0, 1.0), (0, 1, 0.5), (1, 1, 0.25)]


def test_the_nearest_is_never_the_content_itself(tmp_path):
    keys = [f"{n:064x}" for n in range(3)]
    store = Store(tmp_path, {"network": "toy", "layers": {"8": "fc"}})
    store.append(keys, {"x7": np.array([[1.0, 0], [0.8, 0.6], [0, 1]])})
    store.write_rows(Row(n, f"{n}.jpg", k) for n, k in zip("abc", keys, strict=True))
    assert nearest(open_searcher(store, "x7"), k=1).numbers.ravel().tolist() == [
        1,
        0,
        1,
    ]


def test_a_picture_agrees_with_its_mirror_image(rng):
    pictures = rng.integers(0, 255, (2, SIDE, SIDE), np.uint8)
    found = align(pictures, pictures[:, :, ::-1])
    np.testing.assert_allclose(found.score, 1, atol=0.01)
    assert found.mirrored.all()


def test_nodes_are_connected_by_edges():
    assert _components([(4, 9), (2, 2), (9, 7)]) == [[2], [4, 7, 9]]

"""A store keeps one head of prototypes, which its searches share until it has grown a lot."""

import numpy as np
import pytest

import deepfishing.search.heads as module
from deepfishing.core.kernels import arrays_of, gram
from deepfishing.search import Searcher
from deepfishing.search.heads import GROWTH, fit_to_store
from deepfishing.store import Row, Store
from deepfishing.store.contents import Contents

HEAD = "own(x7,64)"


@pytest.fixture
def grow(tmp_path, rng):
    """A store, and photos that are added to it."""
    store = Store(
        tmp_path / "store", {"network": "toy", "layers": {"8": "fc"}}, "float32"
    )

    def add(n):
        first = len(store.rows())
        keys = [f"{number:064x}" for number in range(first, first + n)]
        store.append(keys, {"x7": rng.normal(size=(n, 12)).astype(np.float32)})
        store.write_rows(
            [*store.rows().values(), *(Row(key[-4:], key[-4:], key) for key in keys)]
        )
        return store

    return add


def head_of(store):
    state = Searcher(store, f"x7+{HEAD}").features.fitted.state
    return state[f"{HEAD}/1"]


def head_files(store):
    return list((store.folder / module.FOLDER).iterdir())


def test_a_head_is_made_once_and_stays_while_the_store_grows_a_little(grow):
    first = head_of(grow(100))
    assert len(head_files(grow(100 * (GROWTH - 1)))) == 1
    np.testing.assert_array_equal(head_of(grow(0)), first)
    larger = head_of(grow(1))  # one more than `GROWTH` times as many
    assert larger.shape != first.shape or not np.allclose(larger, first)
    assert len(head_files(grow(0))) == 1


def test_recipes_share_the_head_and_nothing_is_read_again_for_it(grow, monkeypatch):
    store = grow(120)
    first = head_of(store)
    monkeypatch.setattr(module, "sample", pytest.fail)
    other = Searcher(store, f"2*x7+{HEAD}").features.fitted.state
    np.testing.assert_array_equal(other[f"{HEAD}/1"], first)


def test_a_head_that_was_damaged_or_made_of_other_photos_is_made_again(grow):
    store = grow(120)
    first = head_of(store)
    (file,) = head_files(store)
    good = file.read_bytes()
    for bad in (b"", good[:-9], good[:-9] + bytes(9), b"[]" * 99):
        file.write_bytes(bad)
        np.testing.assert_array_equal(head_of(store), first)
        assert file.read_bytes() == good


def test_a_recipe_that_learns_something_else_too_is_fitted_to_the_photos(grow):
    store = grow(120)
    first = head_of(store)
    fitted = Searcher(store, f"whiten(x7)+{HEAD}").features.fitted
    np.testing.assert_array_equal(fitted.state[f"{HEAD}/1"], first)
    assert "whiten(x7)/0" in fitted.state


def test_where_nothing_can_be_kept_the_head_is_made_each_time(grow, monkeypatch):
    store = grow(120)
    (store.folder / ".index").write_text("in the way")
    first = head_of(store)
    np.testing.assert_array_equal(head_of(store), first)


def test_a_link_in_place_of_the_folder_is_not_followed(grow, tmp_path):
    store = grow(120)
    (tmp_path / "elsewhere").mkdir()
    (store.folder / ".index").mkdir()
    (store.folder / module.FOLDER).symlink_to(
        tmp_path / "elsewhere", target_is_directory=True
    )
    contents = Contents.of(store, ["x7"])
    fit_to_store(Searcher(store, HEAD).recipe, contents, store)
    assert not list((tmp_path / "elsewhere").iterdir())


def test_features_that_are_kept_have_the_embedding_once_in_memory(grow):
    searcher = Searcher(grow(120), f"x7+{HEAD}")
    plain = searcher.features.of(np.arange(120))
    (kept,) = searcher.features.blocks()
    arrays = arrays_of(kept)
    assert [array is arrays[0] for array in arrays] == [True, True, False]
    np.testing.assert_allclose(gram(kept), gram(plain), atol=1e-5)

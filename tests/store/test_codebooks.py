import faiss
import numpy as np
import pytest

from deepfishing.errors import StoreError
from deepfishing.rank_one import l2_normalize
from deepfishing.store.codebooks import (
    Codebook,
    load_codebooks,
    save_codebooks,
    train_codebook,
)


@pytest.fixture(scope="module")
def rows():
    rng = np.random.default_rng(0)
    return l2_normalize((rng.normal(size=(700, 11)) ** 3).astype(np.float32))


def roots(values):
    return np.sign(values) * np.sqrt(np.abs(values))


@pytest.mark.parametrize("group", [2, 4, 8])
def test_codes_are_the_nearest_centres_and_decoding_looks_them_up(rows, group):
    book = train_codebook(rows, group)
    codes = book.encode(rows)
    assert codes.shape == (700, -(-11 // group))
    for g in range(codes.shape[1]):
        columns = slice(g * group, (g + 1) * group)
        centres = roots(book.table[:, columns])
        gaps = ((roots(rows[:, None, columns]) - centres[None]) ** 2).sum(axis=2)
        chosen = np.take_along_axis(gaps, codes[:, g, None].astype(int), axis=1)[:, 0]
        np.testing.assert_allclose(chosen, gaps.min(axis=1), atol=1e-6)
    by_hand = book.table[np.repeat(codes, group, axis=1)[:, :11], np.arange(11)]
    np.testing.assert_array_equal(book.decode(codes), by_hand)


def test_codes_are_those_of_faiss(rows):
    even = np.ascontiguousarray(rows[:, :8])
    book = train_codebook(even, 4)
    quantiser = faiss.ProductQuantizer(8, 2, 8)
    centres = roots(book.table).reshape(256, 2, 4).transpose(1, 0, 2)
    faiss.copy_array_to_vector(np.ascontiguousarray(centres).ravel(), quantiser.centroids)
    theirs = quantiser.compute_codes(roots(even))
    assert (book.encode(even) == theirs).mean() > 0.999  # two centres may be equally near
    read = quantiser.decode(theirs)
    np.testing.assert_allclose(roots(book.decode(theirs)), read, atol=1e-5)


def test_blocks_of_rows_do_not_change_the_codes(rows, monkeypatch):
    import deepfishing.store.codebooks as module

    book = train_codebook(rows, 2)
    whole = book.encode(rows)
    monkeypatch.setattr(module, "BLOCK_DISTANCES", 256 * 6 * 50)
    assert (book.encode(rows) == whole).mean() > 0.999


def test_smaller_groups_lose_less_and_training_is_repeatable(rows):
    def lost(group):
        book = train_codebook(rows, group)
        return np.abs(book.decode(book.encode(rows)) - rows).mean()

    assert lost(2) < lost(4) < lost(8) < np.abs(rows).mean()
    first, second = train_codebook(rows, 4), train_codebook(rows, 4)
    np.testing.assert_array_equal(first.table, second.table)


def test_codebooks_come_back_from_their_file_and_a_changed_one_is_named(tmp_path, rows):
    book = train_codebook(rows, 4)
    sha256 = save_codebooks(tmp_path, {"x7": book, "in:a/b": book})
    again = load_codebooks(tmp_path, sha256, 4)
    assert sorted(again.books) == ["in:a/b", "x7"]
    np.testing.assert_array_equal(again.books["x7"].table, book.table)
    (path,) = tmp_path.iterdir()
    content = bytearray(path.read_bytes())
    content[-3] ^= 1
    path.write_bytes(content)
    with pytest.raises(StoreError, match=rf"codebooks cannot be used: .*{path.name}.*its hash"):
        load_codebooks(tmp_path, sha256, 4)
    path.unlink()
    with pytest.raises(StoreError, match="No such file"):
        load_codebooks(tmp_path, sha256, 4)
    for name in ("../../etc/passwd", None, 7, "f" * 63):
        with pytest.raises(StoreError, match="must name the hash of its codebooks"):
            load_codebooks(tmp_path, name, 4)


@pytest.mark.parametrize(
    "table",
    [
        np.ones((255, 3), "f4"),
        np.ones((256, 3)),
        np.ones(256, "f4"),
        np.full((256, 1), np.nan, "f4"),
    ],
)
def test_tables_that_are_no_codebooks_are_refused(tmp_path, table):
    sha256 = save_codebooks(tmp_path, {"x7": Codebook(table, 4)})
    with pytest.raises(StoreError, match="codebooks cannot be used"):
        load_codebooks(tmp_path, sha256, 4)

"""One flipped bit is told in one line wherever it is read, or decides nothing."""

import re

import numpy as np
import pytest
from fire.flips import make_targets, run
from starlette.testclient import TestClient

from deepfishing.errors import StoreError
from deepfishing.search import Searcher
from deepfishing.store import Store
from deepfishing.store.check import verify
from deepfishing.store.contents import Contents
from deepfishing.util.files import is_intact, sealed
from deepfishing.web.app import make_app
from deepfishing.web.gallery import Gallery

TARGETS = (
    *("shard, verified", "shard of errors, verified", "shard, read to train"),
    *(
        "shard of errors, read",
        "shard, searched",
        "shard, searched by index",
        "store.json",
    ),
    *(
        "index.parquet, read",
        "index.parquet, searched",
        "model.safetensors",
        "model.json",
    ),
    *("search index: facts", "search index: vectors", "search index: arrays"),
)


@pytest.fixture(scope="module")
def targets(tmp_path_factory):
    return {
        target.name: target for target in make_targets(tmp_path_factory.mktemp("flips"))
    }


@pytest.mark.parametrize("name", TARGETS)
def test_a_flipped_bit_is_told_in_one_line_or_decides_nothing(targets, name):
    found = run(targets[name], flips=32, seed=0)
    assert found["finds"] == []
    assert found.get("told", 0) + found.get("same", 0) == 32


def flip(path, at=0.5):
    content = bytearray(path.read_bytes())
    content[int(at * len(content))] ^= 4
    path.write_bytes(content)
    return path


def values_of(path):
    """Where in a shard the numbers are, as a share of it: behind the keys, before the norms."""
    content = path.read_bytes()
    keys = [match.end() for match in re.finditer(rb"[0-9a-f]{64}", content)]
    return (max(keys) + 200) / len(content)


def shard(store, factor="delta8", number=0):
    return sorted(store.shards_folder(factor).glob("shard-*"))[number]


def test_train_search_and_verify_name_the_shard_with_a_flipped_bit(deepfish, many):
    assert (
        deepfish(
            "search", many.folder, "a/000.jpg", "--features", "dW8", "--index"
        ).code
        == 0
    )
    path = shard(many)
    flip(path, values_of(path))
    for command in (
        ("train", many.folder, "model", "--features", "dW8"),
        ("search", many.folder, "a/000.jpg", "--features", "dW8", "--exact"),
        ("search", many.folder, "a/000.jpg", "--features", "dW8", "--index"),
        ("store", "verify", many.folder),
    ):
        ran = deepfish(*command)
        assert ran.code == 1, command
        assert ran.err.count("\n") == 1, ran.err
        assert path.name in ran.err
        assert "damaged" in ran.err


def test_the_page_answers_with_an_error_for_a_flipped_bit(many):
    def search():
        client = TestClient(make_app(Gallery(many.folder)), base_url="http://localhost")
        return client.post(
            "/api/search", json={"by": "dW8", "like": [{"id": "a/000.jpg"}]}
        )

    assert search().status_code == 200
    path = shard(many, number=-1)
    flip(path, values_of(path))
    answer = search()
    assert answer.status_code == 503
    assert list(answer.json()) == ["error"]


def test_dropping_images_does_not_give_a_damaged_row_a_new_checksum(many):
    rows = many.rows()
    gone = rows.pop("a/000.jpg")
    shards = many.shards("x7")
    path = shards.files[int(shards.find([gone.sha256])[0][0])]
    flip(path, values_of(path))
    kept = list(rows.values())
    many.write_rows(kept)
    with pytest.raises(StoreError, match=rf"damaged: .*{path.name}"):
        many.compact({row.sha256 for row in kept})
    assert any(path.name in problem for problem in verify(Store.open(many.folder)))


def test_images_whose_shard_is_gone_are_not_left_out_of_a_search_silently(
    deepfish, many
):
    shard(many, "x7").unlink()
    ran = deepfish("search", many.folder, "b/299.jpg", "--features", "x7")
    assert ran.code == 1
    assert "x7 of 100 images must be in" in ran.err
    assert ran.err.count("\n") == 1


def test_a_key_that_is_no_text_any_more_is_told(many):
    path = shard(many, "x7")
    content = path.read_bytes()
    at = re.search(rb"[0-9a-f]{64}", content).start()
    path.write_bytes(content[:at] + b"\xff" + content[at + 1 :])
    with pytest.raises(StoreError, match=rf"shard is damaged: .*{path.name}"):
        Store.open(many.folder).missing(["k"], ["x7"])


def test_a_column_of_the_index_that_lost_its_name_is_told(deepfish, many):
    path = many.folder / "index.parquet"
    head, _, tail = path.read_bytes().partition(b"sha256")
    path.write_bytes(head + b"sha25v" + tail)
    for command in (
        ("search", many.folder, "a/000.jpg"),
        ("train", many.folder, "model"),
    ):
        ran = deepfish(*command)
        assert ran.code == 1
        assert "index is damaged" in ran.err
        assert ran.err.count("\n") == 1


def test_a_flip_in_a_mapped_shard_is_found_before_a_row_of_it_is_used(many):
    Searcher(many, "x7", "index")
    column = Searcher(many.folder, "x7", "index").contents.columns["x7"]
    path, row = column.files[column.shard[150]], column.row[150]
    content = bytearray(path.read_bytes())
    content[
        int(column.offsets[column.shard[150]]) + row * 9 * column.codec.dtype.itemsize
    ] ^= 1
    path.write_bytes(content)
    with pytest.raises(StoreError, match=rf"damaged: .*{path.name} .*its checksum is"):
        Searcher(many.folder, "x7", "index")  # one of its rows is a landmark


def test_an_index_that_is_extended_has_old_and_new_rows(many):
    Searcher(many, "x7", "index")
    more = [f"{n:064x}" for n in range(40)]
    many.append(more, {"x7": np.random.default_rng(3).normal(size=(40, 9))})
    index = Searcher(many, "x7", "index")
    for contents in (index.contents, Searcher(many.folder, "x7", "index").contents):
        assert len(contents) == 340
        exact = Contents.of(many, ["x7"], first=contents.keys).read(
            np.arange(340), ["x7"]
        )
        np.testing.assert_array_equal(
            contents.read(np.arange(340), ["x7"])["x7"], exact["x7"]
        )


def test_a_seal_breaks_with_any_change_but_not_with_spaces_or_order():
    facts = sealed({"b": [1.5, {"c": None}], "a": "x"})
    assert is_intact(dict(reversed(list(facts.items()))))
    assert not is_intact({**facts, "a": "y"})
    assert not is_intact({**facts, "d": 1})
    assert not is_intact({name: value for name, value in facts.items() if name != "a"})
    assert is_intact({"a": "x"})  # of an older version

"""What fuzzing found in the small files of a store; each was a traceback before."""

import json
import struct
import subprocess
import sys

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from deepfishing.errors import StoreError
from deepfishing.store import Row, Store
from deepfishing.store.check import verify
from deepfishing.store.journal import finish
from deepfishing.store.manifest import INDEX, SCHEMA, read_index, write_index
from deepfishing.store.shards import ONE_PAGE, checksum

NOT_UTF8 = b"\xf3\xff"


def not_text(n=1):
    """Strings that Parquet takes for UTF-8 and that are not."""
    raw = pa.array([NOT_UTF8] * n, pa.binary())
    return pa.Array.from_buffers(pa.string(), n, raw.buffers())


@pytest.mark.parametrize(
    "name",
    ["a\0b", "\ud800", "x7", "", ".", "x" * 300, "x7/y"],
    ids=[
        "zero byte",
        "no UTF-8",
        "a folder",
        "empty",
        "dot",
        "too long",
        "below a file",
    ],
)
@pytest.mark.parametrize("way", ["rename from", "rename to", "remove"])
def test_a_journal_with_a_name_that_no_shard_can_have_is_one_line(tmp_path, name, way):
    (tmp_path / "x7").mkdir()
    (tmp_path / "x7" / "y").mkdir()
    (tmp_path / "there").write_text("old")
    todo = {
        "rename from": {"rename": {name: "new"}, "remove": []},
        "rename to": {"rename": {"there": name}, "remove": []},
        "remove": {"rename": {}, "remove": [name]},
    }[way]
    (tmp_path / ".journal-5").write_text(json.dumps(todo))
    with pytest.raises(StoreError, match=r"journal is damaged: .*\.journal-5"):
        finish(tmp_path)
    assert (tmp_path / "x7").is_dir()


def test_a_journal_nested_too_deep_is_one_line(tmp_path):
    (tmp_path / ".journal-5").write_text("[" * 100_000)
    with pytest.raises(StoreError, match="journal is damaged"):
        finish(tmp_path)


def test_an_index_whose_text_is_no_text_is_damaged(tmp_path):
    columns = [not_text() if f.name == "path" else pa.nulls(1, f.type) for f in SCHEMA]
    pq.write_table(pa.table(columns, schema=SCHEMA), tmp_path / INDEX)
    with pytest.raises(StoreError, match="index is damaged"):
        read_index(tmp_path)


@pytest.mark.parametrize("name", ["id", "path", "status", "factors"])
def test_an_index_without_what_every_row_has_is_damaged(tmp_path, name):
    write_index(tmp_path, [Row("a", "a.jpg")])
    table = pq.read_table(tmp_path / INDEX)
    place = table.column_names.index(name)
    table = table.set_column(
        place, SCHEMA.field(name), pa.nulls(1, SCHEMA.field(name).type)
    )
    pq.write_table(table, tmp_path / INDEX)
    with pytest.raises(StoreError, match=f"index is damaged.*{name}"):
        read_index(tmp_path)


def test_verify_names_a_shard_whose_keys_are_no_text(tmp_path):
    store = Store(tmp_path, {"network": "toy"})
    sink = pa.BufferOutputStream()
    pq.write_table(pa.table({"sha256": not_text(), "error": ["cut"]}), sink)
    (tmp_path / "errors").mkdir()
    name = f"shard-{checksum(sink.getvalue())}.parquet"
    (tmp_path / "errors" / name).write_bytes(sink.getvalue())
    assert [name in problem for problem in verify(store)] == [True]


def put_shard(store, values, shape, change=lambda content: content):
    """A shard of two images with the right checksum, as somebody else may write it."""
    halves = pa.field("x7", pa.list_(pa.float16(), 2), metadata={"shape": shape})
    fields = [
        pa.field("sha256", pa.string()),
        halves,
        pa.field("x7_norm", pa.float64()),
    ]
    values = pa.array([v and np.float16(v) for v in values], halves.type)
    schema = pa.schema(fields, metadata=ONE_PAGE)
    table = pa.table([["a" * 64, "b" * 64], values, [2.0, 3.0]], schema=schema)
    sink = pa.BufferOutputStream()
    pq.write_table(table, sink, compression="none", use_dictionary=False)
    content = change(sink.getvalue().to_pybytes())
    path = store.shards_folder("x7") / f"shard-{checksum(content)}.parquet"
    path.parent.mkdir()
    path.write_bytes(content)
    return path.name


@pytest.mark.parametrize(
    ("values", "shape"),
    [
        ([[0.5, 1], None], "[2]"),
        ([[0.5, 1], [1, 0]], "[1e400]"),
        ([[0.5, 1], [1, 0]], "[" * 100_000),
    ],
    ids=["an image without values", "an endless axis", "axes without end"],
)
def test_a_shard_with_values_of_no_shape_is_damaged(tmp_path, values, shape):
    store = Store(tmp_path, {"network": "toy"}, "float16")
    name = put_shard(store, values, shape)
    (problem,) = verify(Store.open(tmp_path))
    assert name in problem
    assert "\n" not in problem
    if shape != "[2]":
        with pytest.raises(StoreError, match=f"shard is damaged: .*{name}"):
            Store.open(tmp_path).read(["a" * 64, "b" * 64], "x7")


def test_a_shard_with_facts_that_do_not_fit_does_not_end_the_process(tmp_path):
    """pyarrow lets C++ end it when such a column's facts are asked for."""

    def three_counts(content):
        """Of repetition levels, where a list has two."""
        length = struct.unpack("<I", content[-8:-4])[0]
        footer = content[-8 - length : -8]
        assert footer.count(TWO_COUNTS) == 1
        footer = footer.replace(TWO_COUNTS, THREE_COUNTS)
        return (
            content[: -8 - length] + footer + struct.pack("<I", len(footer)) + b"PAR1"
        )

    store = Store(tmp_path, {"network": "toy"}, "float16")
    name = put_shard(store, [[0.5, 1], [1, 0]], "[2]", three_counts)
    told = subprocess.run(
        [sys.executable, "-c", READ, str(tmp_path)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert (told.returncode, told.stderr) == (0, "")
    assert told.stdout == "[[1.0, 2.0], [3.0, 0.0]]\n"
    (problem,) = verify(Store.open(tmp_path))
    assert name in problem


# a list of 64-bit numbers in Thrift's compact form: its field, its length and type, the numbers
TWO_COUNTS, THREE_COUNTS = b"\x29\x26\x04\x04", b"\x29\x36\x04\x04\x00"
READ = """
import sys
from deepfishing.store import Store
print(Store.open(sys.argv[1]).read(["a" * 64, "b" * 64], "x7").tolist())
"""

"""Binary files: every encoding of numbers, and bytes that nobody meant well with."""

import time
import tracemalloc
from contextlib import contextmanager

import numpy as np
import pytest

from deepfishing.errors import WeightsError
from deepfishing.networks.caffe import files
from deepfishing.networks.caffe.files import decode
from deepfishing.networks.caffe.importer import load_caffe
from deepfishing.networks.caffe.schema import blob_array


@contextmanager
def peak_memory():
    """The most that Python and numpy had allocated at once, asked for after the block."""
    tracemalloc.start()
    try:
        found = []
        yield lambda: found[0]
        found.append(tracemalloc.get_traced_memory()[1])
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("style", ["shape", "legacy", "unpacked", "double"])
def test_blob_is_read_in_every_encoding(style, caffe, rng):
    values = rng.normal(size=(2, 3, 1, 5)).astype(np.float32)
    # also unaligned
    data = memoryview(b"\x0a\x00" + caffe.encode_blob(values, style))[2:]
    found = blob_array(decode(data, "BlobProto", "a"))
    np.testing.assert_array_equal(found, values)
    assert found.dtype == (np.float64 if style == "double" else np.float32)


def test_numbers_in_several_packed_runs_are_one_blob(caffe):
    runs = [np.arange(4, dtype="<f4"), np.arange(4, 6, dtype="<f4")]
    data = b"".join(caffe.tagged(5, 2, run.tobytes()) for run in runs)
    data += caffe.tagged(
        7, 2, caffe.tagged(1, 0, b"\x02") + caffe.tagged(1, 0, b"\x03")
    )
    blob = blob_array(decode(memoryview(data), "BlobProto", "a"))
    np.testing.assert_array_equal(blob, np.arange(6).reshape(2, 3))


def test_gradients_beside_the_weights_are_passed_over(caffe):
    data = caffe.encode_blob(np.ones((2, 2))) + caffe.tagged(6, 2, b"\x00" * 16)
    assert blob_array(decode(memoryview(data), "BlobProto", "a")).tolist() == [
        [1, 1],
        [1, 1],
    ]


@pytest.mark.parametrize("value", [0, 1, 127, 128, 300, 2**31 - 1, -1, -(2**31), 2**62])
def test_integers_of_every_length(value, caffe):
    data = caffe.tagged(2, 0, caffe.varint(value))
    assert decode(memoryview(data), "NetStateRule", "a").one("min_level", 0) == value


HOSTILE = {
    "a length beyond the end": (
        b"\x12\xff\xff\xff\xff\x0f",
        "a field of 4294967295 bytes",
    ),
    "a length beyond its message": (
        b"\x12\x02\x0a\x02\x00\x00",
        "2 bytes begins, but 0 are left",
    ),
    "a number without an end": (b"\x12" + b"\xff" * 20, "does not end"),
    "a number of eleven bytes": (b"\x20" + b"\x80" * 10 + b"\x01", "does not end"),
    "field number zero": (b"\x02\x00", "the number 0"),
    "a group": (b"\x13\x14", "the type 3"),
    "a wire type that is none": (b"\x17", "the type 7"),
    "a text as number": (b"\x08\x05", "name must have the wire type 2, got 0"),
    "a number as text": (b"\x22\x01\x00\x25\x00\x00\x00\x00", "wire type 0, got 5"),
    "four bytes that are three": (
        b"\x25\x00\x00\x00",
        "a field of 4 bytes begins, but 3",
    ),
    "a name of a megabyte": (
        b"\x0a\x80\x80\x40" + b"a" * 2**20,
        "name has 1048576 bytes",
    ),
    "a page of HTML": (b"<!DOCTYPE html><html><body>404</body></html>", "the type 4"),
    "a packed float that ends too soon": (
        b"\xa2\x06\x08\xf2\x06\x05\x12\x03\x00\x00\x00",
        "coeff ends within a number",
    ),
}


@pytest.mark.parametrize("case", HOSTILE)
def test_hostile_bytes_are_named_with_file_and_place(case, tmp_path):
    data, message = HOSTILE[case]
    path = tmp_path / "hostile.caffemodel"
    path.write_bytes(data)
    with pytest.raises(WeightsError, match=message) as caught:
        files.read_binary(path, "NetParameter")
    assert str(path) in str(caught.value)
    assert "at byte" in str(caught.value)


@pytest.mark.parametrize(
    "piece",
    [b"\x20\x01", b"\x12\x00", b"\x1a\x01a", b"\xa2\x06\x00", b"\x78\x01"],
    ids=["numbers", "old layers", "texts", "layers", "unknown"],
)
def test_millions_of_tiny_fields_end_soon_and_small(piece, monkeypatch):
    monkeypatch.setattr(files, "MAX_FIELDS", 100_000)  # a tenth, since tracing is slow
    data = memoryview(piece * (20_000_000 // len(piece)))
    began = time.process_time()
    with (
        peak_memory() as peak,
        pytest.raises(WeightsError, match="more than 100,000 fields"),
    ):
        decode(data, "NetParameter", "a")
    assert time.process_time() - began < 10
    assert peak() < 20e6


BLOBS = {
    "a billion numbers": ([10**9], 4),
    "sizes whose product overflows": ([2**33, 2**33], 4),
    "a negative size": ([-1, -4], 4),
    "no numbers": ([2, 2], 0),
    "one number too many": ([2, 2], 5),
    "forty axes": ([1] * 40, 1),
}


@pytest.mark.parametrize("case", BLOBS)
def test_a_declared_shape_is_not_believed(case, caffe):
    shape, count = BLOBS[case]
    data = caffe.tagged(7, 2, caffe.tagged(1, 2, b"".join(map(caffe.varint, shape))))
    data += caffe.tagged(5, 2, np.zeros(count, "<f4").tobytes()) if count else b""
    with pytest.raises(WeightsError, match="a blob"):
        blob_array(decode(memoryview(data), "BlobProto", "a.binaryproto"))


@pytest.mark.parametrize("old", [False, True], ids=["layer", "layers"])
def test_truncated_files_are_refused_everywhere(old, caffe, w, write):
    layers = caffe.a_bit_of_everything(w, old)
    prototxt, caffemodel = write(layers, 10, old)
    whole = caffemodel.read_bytes()
    assert caffe.loads_and_runs(caffemodel)
    began = time.process_time()
    for length in range(0, len(whole), 13):
        caffemodel.write_bytes(whole[:length])
        assert not caffe.loads_and_runs(caffemodel, prototxt), length
    assert time.process_time() - began < 20


@pytest.mark.parametrize("old", [False, True], ids=["layer", "layers"])
def test_flipped_bytes_never_escape_as_another_error(old, caffe, w, write, rng):
    layers = caffe.a_bit_of_everything(w, old)
    _, caffemodel = write(layers, 10, old)
    whole = np.frombuffer(caffemodel.read_bytes(), np.uint8)
    loaded = 0
    for _ in range(300):
        broken = whole.copy()
        for place in rng.integers(0, len(whole), size=rng.integers(1, 4)):
            broken[place] = rng.integers(0, 256)
        caffemodel.write_bytes(broken.tobytes())
        loaded += caffe.loads_and_runs(caffemodel)
    assert 0 < loaded < 300


def test_an_fc6_of_forty_megabytes_is_copied_once(caffe, write, rng):
    weight = np.ones((4096, 2560), np.float32) / 2560  # 42 MB
    small = np.ones((2560, 12), np.float32)
    params = {"num_output": 4096, "bias_term": False}
    layers = [
        caffe.L(
            "fc5",
            "InnerProduct",
            ["data"],
            blobs=[small],
            params=params | {"num_output": 2560},
        ),
        caffe.L("fc6", "InnerProduct", ["fc5"], blobs=[weight], params=params),
    ]
    _, caffemodel = write(layers, 2)
    size = weight.nbytes
    del layers, weight
    with peak_memory() as peak:
        network = load_caffe(caffemodel)
    assert network.layers == {7: "fc5", 8: "fc6"}
    assert size < peak() < 1.1 * size

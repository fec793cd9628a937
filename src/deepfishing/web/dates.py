"""Dates of photos: when they were taken, or else when their file was changed last.

A camera writes the time into the EXIF data of a photo. The dates are read once, from the beginning
of each file, and kept beside the store; only photos that have come since are read then.
"""

from __future__ import annotations

import contextlib
import datetime
import threading
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from PIL import ExifTags, Image

from deepfishing.core.rank_one import Array
from deepfishing.errors import StoreError
from deepfishing.images.preprocess import open_picture
from deepfishing.store.side_files import pack_keys, read_side, unpack_keys, write_side
from deepfishing.util.progress import Progress, silent

NAME = "dates"
FORMAT = 1
UNKNOWN = np.iinfo(np.int64).min
EXIF_TIME = "%Y:%m:%d %H:%M:%S"
MAX_BYTES = 1 << 30  # of a file that is opened
REPORT_EVERY = 100  # photos


def date_taken(picture: Image.Image) -> datetime.datetime | None:
    """Return the local time at which a photo was taken; None if its EXIF data has none."""
    # damaged EXIF data makes the reader raise almost anything
    with contextlib.suppress(Exception):
        exif = picture.getexif().get_ifd(ExifTags.IFD.Exif)
        text = str(exif[ExifTags.Base.DateTimeOriginal]).strip("\0 ")
        return datetime.datetime.strptime(text, EXIF_TIME)
    return None


def date_of(path: Path) -> int:
    """Return the date of a photo in seconds of local time; `UNKNOWN` if its file is gone."""
    try:
        stat = path.stat()
        if not path.is_file() or stat.st_size > MAX_BYTES:
            return UNKNOWN
        date = datetime.datetime.fromtimestamp(stat.st_mtime)
    except (OSError, ValueError, OverflowError):
        return UNKNOWN
    # a frame of a video, or an unreadable file: the date of the file is used
    with contextlib.suppress(Exception), path.open("rb") as file:
        date = date_taken(open_picture(file)) or date
    return int(date.replace(tzinfo=datetime.UTC).timestamp())


def find_file(folder: Path, path: str) -> Path:
    """Return the file of a photo; of one inside an archive, the archive."""
    for start in (Path(), folder, *folder.parents):
        place = start / path
        for candidate in (place, *place.parents):
            if candidate == start:
                break
            if candidate.is_file():
                return candidate
    return Path(path)


class Dates:
    """Dates of the photos of a store; may be used from several threads.

    Parameters
    ----------
    folder : Path
        The store.
    keys : pa.Array
        Content hashes, by the number of the content.
    """

    def __init__(self, folder: Path, keys: pa.Array) -> None:
        self.folder = folder
        self.keys = keys
        self._lock = threading.Lock()
        self._seconds: Array | None = None

    def seconds(self) -> Array | None:
        """Return the date of each content, `UNKNOWN` of some; None while they are not read."""
        with self._lock:
            if self._seconds is None:
                stored = self._kept()
                if not (stored == UNKNOWN).any():
                    self._seconds = stored
            return self._seconds

    def missing(self) -> int:
        """Return how many dates are to be read."""
        return int((self._kept() == UNKNOWN).sum())

    def read(self, paths: Sequence[str], progress: Progress = silent) -> None:
        """Read the dates that are missing and keep all of them.

        `paths` are those of all contents.
        """
        seconds = self._kept()
        missing = np.flatnonzero(seconds == UNKNOWN)
        folder = self.folder.absolute()
        for done, number in enumerate(missing.tolist()):
            if done % REPORT_EVERY == 0:
                progress("dates", done, len(missing))
            seconds[number] = date_of(find_file(folder, paths[number]))
        arrays = {"keys": pack_keys(self.keys), "seconds": seconds}
        with contextlib.suppress(StoreError):  # a store on a disk that is read only
            write_side(self.folder, NAME, {"format": FORMAT}, arrays)
        with self._lock:
            self._seconds = seconds

    def _kept(self) -> Array:
        """Return the dates that were read before, `UNKNOWN` of the other contents."""
        seconds = np.full(len(self.keys), UNKNOWN, dtype=np.int64)
        found = read_side(self.folder, NAME)
        if found is None or found[0].get("format") != FORMAT:
            return seconds
        kept, packed = found[1]["seconds"], found[1]["keys"]
        if kept.ndim != 1 or packed.ndim != 2 or len(kept) != len(packed):
            return seconds
        numbers = pc.fill_null(
            pc.index_in(self.keys, value_set=unpack_keys(packed)), -1
        )
        at = numbers.to_numpy(zero_copy_only=False)
        is_kept = at >= 0
        seconds[is_kept] = np.asarray(kept)[at[is_kept]]
        return seconds

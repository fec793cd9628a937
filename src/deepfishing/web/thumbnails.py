"""Stage 8, the page: images of the store, small or in full size.

Comes in: a row of the store: where the image was seen, and the hash of its content. Goes out: a
JPEG of our own making. The file must still be the image that the features are of, so neither a
file that took its place nor anything else on the disk can be looked at through here.
"""

from __future__ import annotations

import io
import threading
from collections import OrderedDict
from pathlib import Path

from deepfishing.errors import ImageError
from deepfishing.images.find_again import find_again
from deepfishing.images.item import ImageBytes
from deepfishing.images.preprocess import open_image

FULL = "full"
SIDES = {"small": 320, "large": 1024, FULL: 65_500}  # pixels of the longer side; JPEG has no more
QUALITY = {"small": 80, "large": 85, FULL: 92}
KEEP_BYTES = 64 << 20


class Thumbnails:
    """Makes thumbnails of the images of a store, and keeps the last `keep_bytes` in memory."""

    def __init__(self, folder: Path, keep_bytes: int = KEEP_BYTES) -> None:
        self.folder = folder
        self.keep_bytes = keep_bytes
        self._kept: OrderedDict[tuple[str, str], bytes] = OrderedDict()
        self._bytes = 0
        self._lock = threading.Lock()

    def jpeg(self, path: str, sha256: str, size: str) -> bytes:
        """The image seen at `path` with this content; an `ImageError` without any path in it."""
        key = sha256, size
        with self._lock:
            if key in self._kept:
                self._kept.move_to_end(key)
                return self._kept[key]
        made = self._make(path, sha256, size)
        if size == FULL:
            return made  # seldom asked for, and as large as a thousand small ones
        with self._lock:
            self._bytes += len(made) - len(self._kept.get(key, b""))
            self._kept[key] = made
            while self._bytes > self.keep_bytes:
                self._bytes -= len(self._kept.popitem(last=False)[1])
        return made

    def _make(self, path: str, sha256: str, size: str) -> bytes:
        content = find_again(self.folder, path, sha256)
        if content is None:
            raise ImageError("the image is gone or has changed since its features were extracted")
        side = SIDES[size]
        try:
            image = open_image(ImageBytes("the image", content), draft=side)
        except ImageError:
            raise ImageError("the image cannot be decoded") from None
        image.thumbnail((side, side))
        made = io.BytesIO()
        image.save(made, "JPEG", quality=QUALITY[size])
        return made.getvalue()

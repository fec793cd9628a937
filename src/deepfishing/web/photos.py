"""Photos of the store for display, and uploaded photos for searches.

An image of the store, found by its path and the hash of its content, is sent as a new JPEG. The
file must still be the image of the features, so neither a file that replaced it nor any other file
can be read through the page.

Of an uploaded photo only the factors are kept, in memory and for a while, under a key.
"""

from __future__ import annotations

import hashlib
import io
import logging
import threading
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from deepfishing.core.features import Factor
from deepfishing.core.rank_one import Array
from deepfishing.errors import DeepFishingError, ImageError
from deepfishing.images.item import ImageBytes
from deepfishing.images.preprocess import FORMAT_NAMES, open_image, open_picture
from deepfishing.images.sources import find_again
from deepfishing.search.searcher import Encoder
from deepfishing.util.machine import release_memory

FULL = "full"
# pixels of the longer side; JPEG has no more
SIDES = {"small": 320, "large": 1024, FULL: 65_500}
QUALITY = {"small": 80, "large": 85, FULL: 92}
KEEP_BYTES = 64 << 20

NOT_LOADED, LOADING, READY, FAILED = "not loaded", "loading", "ready", "failed"
ABSENT = "none"  # vectors that were made elsewhere, by a network that is not known
MAX_BYTES = 20 * 2**20
MAX_PIXELS = 50_000_000
REMEMBERED = 64

_log = logging.getLogger("deepfishing.web")


class Thumbnails:
    """Thumbnails of the images of a store; the last `keep_bytes` stay in memory."""

    def __init__(self, folder: Path, keep_bytes: int = KEEP_BYTES) -> None:
        self.folder = folder
        self.keep_bytes = keep_bytes
        self._kept: OrderedDict[tuple[str, str], bytes] = OrderedDict()
        self._bytes = 0
        self._lock = threading.Lock()

    def jpeg(self, path: str, sha256: str, size: str) -> bytes:
        """Return a thumbnail of the image at `path` with this content; no error names the path."""
        key = sha256, size
        with self._lock:
            if key in self._kept:
                self._kept.move_to_end(key)
                return self._kept[key]
        thumbnail = self._make(path, sha256, size)
        if size == FULL:
            return thumbnail  # rarely used, and as large as a thousand small ones
        with self._lock:
            self._bytes += len(thumbnail) - len(self._kept.get(key, b""))
            self._kept[key] = thumbnail
            while self._bytes > self.keep_bytes:
                self._bytes -= len(self._kept.popitem(last=False)[1])
        return thumbnail

    def _make(self, path: str, sha256: str, size: str) -> bytes:
        _, content = find_again(self.folder, path, sha256)
        if content is None:
            raise ImageError(
                "the image is gone or has changed since its features were extracted"
            )
        side = SIDES[size]
        try:
            image = open_image(ImageBytes("the image", content), draft=side)
        except ImageError:
            raise ImageError("the image cannot be decoded") from None
        image.thumbnail((side, side))
        buffer = io.BytesIO()
        image.save(buffer, "JPEG", quality=QUALITY[size])
        return buffer.getvalue()


class ForgottenError(ImageError):
    """A photo that was uploaded too long ago, or never."""


class Uploads(Encoder):
    """The network of a store, with the factors of the last `remembered` photos.

    It is the encoder of a `Searcher`, which takes a key as an example.
    """

    def __init__(
        self,
        facts: Mapping[str, Any],
        remembered: Sequence[Factor],
        *,
        weights: str | Path | None = None,
    ) -> None:
        super().__init__(facts, weights=weights)
        self.remembered = tuple(remembered)
        self.network_state = NOT_LOADED
        self._remembered: OrderedDict[str, dict[str, Array]] = OrderedDict()
        self._order = threading.Lock()

    def warm_up(self) -> threading.Thread:
        """Load the network in a thread and show it an empty photo, before a visitor waits for it.

        If that fails, the reason is printed in the terminal, and the page works without photos.
        """

        def load() -> None:
            if self.network_state == ABSENT:
                return
            empty = io.BytesIO()
            Image.new("RGB", (64, 64)).save(empty, "PNG")
            try:
                self._factors_of(empty.getvalue())
            except Exception as error:  # whatever it is, the page must not end
                self.network_state = FAILED
                line = (
                    str(error) if isinstance(error, DeepFishingError) else repr(error)
                )
                _log.warning("deepfish: photos cannot be searched with: %s", line)
            else:
                release_memory()
                self.network_state = READY

        self.network_state = LOADING if self.settings.get("weights_sha256") else ABSENT
        thread = threading.Thread(target=load, daemon=True)
        thread.start()
        return thread

    def add(self, content: bytes) -> str:
        """Compute the factors of a photo; an `ImageError` if it is none, or too large."""
        check_photo(content)
        key = hashlib.sha256(content).hexdigest()
        if key not in self._remembered:
            values = self._factors_of(content)
            with self._order:
                self._remembered[key] = values
                while len(self._remembered) > REMEMBERED:
                    self._remembered.popitem(last=False)
        return key

    def _factors_of(self, content: bytes) -> dict[str, Array]:
        return super().factors([ImageBytes("the photo", content)], self.remembered)

    def recall(self, key: str) -> dict[str, Array]:
        """Return the factors of a photo, each (1, d) or (1, P, d)."""
        with self._order:
            if key not in self._remembered:
                raise ForgottenError(
                    "the photo is not in memory any more; upload it again"
                )
            self._remembered.move_to_end(key)
            return self._remembered[key]

    def factors(
        self, images: Sequence[ImageBytes], factors: Sequence[Factor]
    ) -> dict[str, Array]:
        """Encode photos for a searcher; the content of a photo is its key."""
        photos = [self.recall(image.content.decode()) for image in images]
        arrays = {}
        for factor in factors:
            values = [photo[factor.name] for photo in photos]
            arrays[factor.name] = np.concatenate(values)
        return arrays


def check_photo(content: bytes) -> None:
    """Refuse what is not a picture or has too many pixels, before anything is decoded."""
    too_large = f"a photo must have at most {MAX_PIXELS:,} pixels, got "
    try:
        with open_picture(io.BytesIO(content)) as photo:
            width, height = photo.size
    except (Image.DecompressionBombError, Image.DecompressionBombWarning):
        raise ImageError(f"{too_large}far more; make it smaller first") from None
    except Exception:  # damaged bytes make the readers raise almost anything
        raise ImageError(
            f"a photo must be a {FORMAT_NAMES} file, got none of them"
        ) from None
    if width * height > MAX_PIXELS:
        raise ImageError(f"{too_large}{width}x{height}; make it smaller first")

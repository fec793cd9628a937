"""Decode single frames of a video (needs the extra `video`)."""

from __future__ import annotations

import io
import threading
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from deepfishing.errors import need, one_line

if TYPE_CHECKING:
    from PIL import Image

# A frame at most this many seconds ahead is reached by decoding, a later one by seeking.
MAX_SECONDS_TO_DECODE = 5.0


def frame_bytes(path: Path, pts: int) -> bytes:
    """One frame as the bytes of a picture without loss; an `OSError` if it cannot be decoded."""
    return _open_video(path, path.stat().st_mtime_ns).read(pts)


class _Video:
    """An open video, which goes on from the last frame; threads take turns."""

    def __init__(self, path: Path, changed: int) -> None:
        self.lock = threading.Lock()
        self.file = need("av", "video").open(str(path))
        self.stream = self.file.streams.video[0]
        self.frames: Any = None
        self.last = 0

    def read(self, pts: int) -> bytes:
        with self.lock:
            try:
                ahead = (pts - self.last) * float(self.stream.time_base)
                if self.frames is None or not 0 < ahead <= MAX_SECONDS_TO_DECODE:
                    self.file.seek(pts, stream=self.stream)
                    self.frames = self.file.decode(self.stream)
                frame = next((frame for frame in self.frames if frame.pts >= pts), None)
                if frame is None or frame.pts != pts:
                    raise OSError("no such frame")
                self.last = pts
                picture = frame.to_image()
            except Exception as error:
                self.frames = None
                raise OSError(one_line(error)) from None
        if frame.rotation:  # a telephone that was held upright
            picture = picture.rotate(frame.rotation, expand=True)
        return bmp_bytes(picture)


_open_video = lru_cache(maxsize=4)(_Video)


def bmp_bytes(picture: Image.Image) -> bytes:
    """A picture as the bytes of a file that has the same pixels, and the same bytes every time."""
    content = io.BytesIO()
    picture.save(content, "BMP")
    return content.getvalue()

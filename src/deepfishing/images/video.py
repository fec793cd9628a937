"""Stage 1, images: frames of a video, one per second unless another interval is asked for.

Comes in: a video file. Goes out: an item for each chosen frame, which is decoded when it is read;
so nothing is kept in memory, and a video that has not changed is not decoded again. Needs the extra
`video`.
"""

from __future__ import annotations

import io
import math
import threading
from functools import lru_cache
from pathlib import Path
from typing import Any

from deepfishing.errors import DatasetError, OptionError, need, one_line
from deepfishing.images.item import Frame, Item

VIDEOS = (".mp4", ".mov", ".m4v", ".mkv", ".webm", ".avi", ".mpg", ".mpeg")
AHEAD = 5.0  # seconds: a frame so near is decoded up to, a later one is jumped to


def is_video(path: Path) -> bool:
    """Whether a name is that of a video."""
    return path.suffix.lower() in VIDEOS


def read_video(path: Path, every: float = 1.0) -> list[Item]:
    """The first frame of every so many seconds, of 0 all; ids end in the time, `t=12.5`."""
    if not every >= 0:
        raise OptionError(f"every must be a number of seconds, 0 for all frames, got {every}")
    av = need("av", "video")
    try:
        with av.open(str(path)) as file:
            stream = file.streams.video[0]
            second = 1 / float(stream.time_base)
            times = sorted({packet.pts for packet in file.demux(stream)} - {None})
    except (av.FFmpegError, OSError, LookupError, ValueError, TypeError) as error:
        raise DatasetError(f"video cannot be read: {path} ({one_line(error)})") from None
    items, due = [], 0.0
    for pts in times:
        at = (pts - times[0]) / second
        if at + 1e-6 >= due:
            name = f"t={at:.3f}".rstrip("0").rstrip(".")
            items.append(Item(f"{path.name}/{name}", path, member=Frame(name, pts)))
            due = (math.floor(at / every + 1e-6) + 1) * every if every else 0.0
    if not items:
        raise DatasetError(f"a video must have frames, got none in {path}")
    return items


def frame_bytes(path: Path, pts: int) -> bytes:
    """One frame as the bytes of a picture without loss; an `OSError` if it cannot be decoded."""
    return _reader(path, path.stat().st_mtime_ns).read(pts)


@lru_cache(maxsize=4)
def _reader(path: Path, changed: int) -> _Reader:
    return _Reader(path)


class _Reader:
    """An open video, which goes on from the last frame; threads take turns."""

    def __init__(self, path: Path) -> None:
        self.av = need("av", "video")
        self.lock = threading.Lock()
        self.file = self.av.open(str(path))
        self.stream = self.file.streams.video[0]
        self.frames: Any = None
        self.last = 0

    def read(self, pts: int) -> bytes:
        with self.lock:
            try:
                ahead = (pts - self.last) * float(self.stream.time_base)
                if self.frames is None or not 0 < ahead <= AHEAD:
                    self.file.seek(pts, stream=self.stream)
                    self.frames = self.file.decode(self.stream)
                for frame in self.frames:
                    self.last = frame.pts
                    if frame.pts >= pts:
                        break
                else:
                    raise OSError("no such frame")
                if frame.pts != pts:
                    raise OSError("no such frame")
                picture = frame.to_image()
            except (self.av.FFmpegError, OSError, ValueError, TypeError) as error:
                self.frames = None
                raise OSError(one_line(error)) from None
        if frame.rotation:  # a telephone that was held upright
            picture = picture.rotate(frame.rotation, expand=True)
        content = io.BytesIO()
        picture.save(content, "BMP")
        return content.getvalue()

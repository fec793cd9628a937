"""What a long command shows while it works: a bar for people, JSON lines for programs."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import typer

if TYPE_CHECKING:  # rich takes longer to load than a help to show
    from rich.progress import Progress, Task, TaskID


def rate_text(task: Task) -> str:
    """Images per second; rows and points take seconds each, so their rate says nothing."""
    from deepfishing.experiments.checks import PROTOCOLS

    speed = task.finished_speed or task.speed
    return f"{speed:.1f}/s" if speed and task.description not in PROTOCOLS else ""


def time_text(task: Task) -> str:
    """How long a stage has taken and will take, in words that cannot be confused."""
    passed = clock_text(task.finished_time if task.finished else task.elapsed)
    if task.finished:
        return f"{passed} in all"
    left = task.time_remaining
    return f"{passed} so far" + ("" if left is None else f", about {clock_text(left)} left")


def clock_text(seconds: float | None) -> str:
    """Seconds as a clock shows them.

    >>> clock_text(7.2), clock_text(61), clock_text(36_061), clock_text(None)
    ('0:07', '1:01', '10:01:01', '0:00')
    """
    minutes, second = divmod(int(seconds or 0), 60)
    hours, minute = divmod(minutes, 60)
    return f"{hours}:{minute:02d}:{second:02d}" if hours else f"{minute}:{second:02d}"


class Bar:
    """Called with a stage, how much of it is done and how much there is.

    Of a download, 0 in all means that nobody knows how much there is.
    """

    def __init__(self, shown: Progress, *, download: bool = False) -> None:
        self._shown, self._download = shown, download
        self._tasks: dict[str, TaskID] = {}
        self._skipped = 0

    def __call__(self, stage: str, done: int, total: int) -> None:
        """Show how far a stage is; one that has nothing more to do stays as it was."""
        most = (total or None) if self._download else total
        if stage in self._tasks and most == 0:
            return
        if stage not in self._tasks:
            self._tasks[stage] = self._shown.add_task(stage, total=most, skipped="")
        skipped = f"{self._skipped} skipped" if self._skipped and stage == "images" else ""
        self._shown.update(self._tasks[stage], completed=done, total=most, skipped=skipped)

    def failure(self, id_: str, reason: str) -> None:
        """Count an image that cannot be used; the summary names it."""
        self._skipped += 1


@contextmanager
def progress_bar(quiet: bool = False, *, download: bool = False) -> Iterator[Bar]:
    """A bar on stderr with rate and time left; silent where stderr is not a terminal."""
    from rich import progress as rich
    from rich.console import Console
    from rich.text import Text

    class Said(rich.ProgressColumn):
        def __init__(self, text: Callable[[Task], str], style: str = "") -> None:
            super().__init__()
            self.text, self.style = text, style

        def render(self, task: Task) -> Text:
            return Text(self.text(task), style=self.style)

    console = Console(stderr=True)
    columns = (
        rich.TextColumn("{task.description:>28}" if download else "{task.description:>8}"),
        rich.BarColumn(bar_width=14),  # so that a line fits into 80 columns
        rich.DownloadColumn() if download else rich.MofNCompleteColumn(),
        rich.TransferSpeedColumn() if download else Said(rate_text),
        Said(time_text, "progress.elapsed"),
        rich.TextColumn("{task.fields[skipped]}"),
    )
    silent = quiet or not console.is_terminal
    with rich.Progress(*columns, console=console, disable=silent) as shown:
        yield Bar(shown, download=download)


class JsonEvents:
    """The same as one JSON object per line: start, failure, progress once a second, end.

    >>> events = JsonEvents(images=3)
    >>> events("images", 0, 2)
    {"event": "start", "images": 3, "to_compute": 2}
    >>> events.failure("a.jpg", "image not found: a.jpg")
    {"event": "failure", "id": "a.jpg", "error": "image not found: a.jpg"}
    """

    def __init__(self, images: int, every: float = 1.0) -> None:
        self._images, self._every = images, every
        self._start = self._last = time.monotonic()
        self._skipped = 0

    def __call__(self, stage: str, done: int, total: int) -> None:
        """Tell how far a stage is, if it is time."""
        now = time.monotonic()
        if stage == "images" and done == 0:
            self._start = self._last = now
            self.emit("start", images=self._images, to_compute=total)
        elif now - self._last >= self._every:
            self._last = now
            rate = done / (now - self._start) if stage == "images" else 0.0
            left = round((total - done) / rate, 1) if rate else None
            self.emit(
                "progress",
                stage=stage,
                done=done,
                total=total,
                images_per_second=round(rate, 1),
                seconds_left=left,
                skipped=self._skipped,
            )

    def failure(self, id_: str, reason: str) -> None:
        """An image that cannot be used."""
        self._skipped += 1
        self.emit("failure", id=id_, error=reason)

    def emit(self, event: str, **facts: Any) -> None:
        """Print one event."""
        typer.echo(json.dumps({"event": event, **facts}))

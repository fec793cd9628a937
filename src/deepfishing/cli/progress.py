"""Progress of long commands: a bar in a terminal, JSON lines for programs."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from json import dumps
from typing import Any

import click
from rich import progress as rich
from rich.console import Console
from rich.progress import Progress, Task, TaskID
from rich.text import Text

from deepfishing.evaluation.record import PROTOCOLS


def rate_text(task: Task) -> str:
    """Return images per second; nothing for protocols, whose points take seconds each."""
    speed = task.finished_speed or task.speed
    return f"{speed:.1f}/s" if speed and task.description not in PROTOCOLS else ""


def time_text(task: Task) -> str:
    """Return how long a stage has taken and will take."""
    passed = clock_text(task.finished_time if task.finished else task.elapsed)
    if task.finished:
        return f"{passed} in all"
    left = task.time_remaining
    return f"{passed} so far" + (
        "" if left is None else f", about {clock_text(left)} left"
    )


def clock_text(seconds: float | None) -> str:
    """Return seconds as minutes and seconds, with hours if there are any."""
    minutes, second = divmod(int(seconds or 0), 60)
    hours, minute = divmod(minutes, 60)
    return f"{hours}:{minute:02d}:{second:02d}" if hours else f"{minute}:{second:02d}"


class Bar:
    """Progress callback that draws a bar: a stage, what is done, and the total.

    A download of unknown size has a total of 0.
    """

    def __init__(self, shown: Progress, *, download: bool = False) -> None:
        self._shown, self._download = shown, download
        self._tasks: dict[str, TaskID] = {}
        self._skipped = 0

    def __call__(self, stage: str, done: int, total: int) -> None:
        """Draw the progress of a stage; one without work keeps its bar."""
        most: int | None = total
        if self._download and total == 0:
            most = None
        if stage in self._tasks and most == 0:
            return
        if stage not in self._tasks:
            self._tasks[stage] = self._shown.add_task(stage, total=most, skipped="")
        skipped = (
            f"{self._skipped} skipped" if self._skipped and stage == "images" else ""
        )
        self._shown.update(
            self._tasks[stage], completed=done, total=most, skipped=skipped
        )

    def failure(self, id_: str, reason: str) -> None:
        """Count an image that cannot be used; the summary names it."""
        self._skipped += 1


class _TextColumn(rich.ProgressColumn):
    """A column with the text that a function makes of a task."""

    def __init__(self, text: Callable[[Task], str], style: str = "") -> None:
        super().__init__()
        self.text, self.style = text, style

    def render(self, task: Task) -> Text:
        """Return the text of a task."""
        return Text(self.text(task), style=self.style)


@contextmanager
def progress_bar(quiet: bool = False, *, download: bool = False) -> Iterator[Bar]:
    """A bar on stderr with rate and time left; silent where stderr is not a terminal."""
    console = Console(stderr=True)
    columns = (
        rich.TextColumn(
            "{task.description:>28}" if download else "{task.description:>8}"
        ),
        rich.BarColumn(bar_width=14),  # so that a line fits into 80 columns
        rich.DownloadColumn() if download else rich.MofNCompleteColumn(),
        rich.TransferSpeedColumn() if download else _TextColumn(rate_text),
        _TextColumn(time_text, "progress.elapsed"),
        rich.TextColumn("{task.fields[skipped]}"),
    )
    silent = quiet or not console.is_terminal
    with rich.Progress(*columns, console=console, disable=silent) as shown:
        yield Bar(shown, download=download)


class JsonEvents:
    """Progress callback that prints JSON lines: start, failure, progress once a second, end."""

    def __init__(self, images: int, every: float = 1.0) -> None:
        self._images, self._every = images, every
        self._start = self._last = time.monotonic()
        self._skipped = 0

    def __call__(self, stage: str, done: int, total: int) -> None:
        """Print the progress of a stage, once a second."""
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
        """Print an image that cannot be used."""
        self._skipped += 1
        self.emit("failure", id=id_, error=reason)

    def emit(self, event: str, **facts: Any) -> None:
        """Print one event."""
        click.echo(dumps({"event": event, **facts}))

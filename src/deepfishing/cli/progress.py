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
    if not speed or task.description in PROTOCOLS:
        return ""
    return f"{speed:.1f}/s"


def time_text(task: Task) -> str:
    """Return how long a stage has taken and will take."""
    if task.finished:
        return f"{clock_text(task.finished_time)} in all"
    text = f"{clock_text(task.elapsed)} so far"
    if task.time_remaining is not None:
        text += f", about {clock_text(task.time_remaining)} left"
    return text


def clock_text(seconds: float | None) -> str:
    """Return seconds as minutes and seconds, with hours if there are any."""
    minutes, second = divmod(int(seconds or 0), 60)
    hours, minute = divmod(minutes, 60)
    if hours:
        return f"{hours}:{minute:02d}:{second:02d}"
    return f"{minute}:{second:02d}"


class Bar:
    """Progress callback that draws a bar: a stage, what is done, and the total.

    A download of unknown size has a total of 0.
    """

    def __init__(self, display: Progress, *, download: bool = False) -> None:
        self._display, self._download = display, download
        self._tasks: dict[str, TaskID] = {}
        self._skipped = 0

    def __call__(self, stage: str, done: int, total: int) -> None:
        """Draw the progress of a stage; one without work keeps its bar."""
        length: int | None = total
        if self._download and total == 0:
            length = None
        if stage in self._tasks and length == 0:
            return
        if stage not in self._tasks:
            task = self._display.add_task(stage, total=length, skipped="")
            self._tasks[stage] = task
        skipped = ""
        if self._skipped and stage == "images":
            skipped = f"{self._skipped} skipped"
        self._display.update(
            self._tasks[stage], completed=done, total=length, skipped=skipped
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
    """Draw a bar on stderr with rate and time left; nothing where stderr is no terminal."""
    console = Console(stderr=True)
    columns: list[rich.ProgressColumn] = [
        rich.TextColumn("{task.description:>8}"),
        rich.BarColumn(bar_width=14),  # so that a line fits into 80 columns
        rich.MofNCompleteColumn(),
        _TextColumn(rate_text),
        _TextColumn(time_text, "progress.elapsed"),
        rich.TextColumn("{task.fields[skipped]}"),
    ]
    if download:
        columns[0] = rich.TextColumn("{task.description:>28}")
        columns[2] = rich.DownloadColumn()
        columns[3] = rich.TransferSpeedColumn()
    silent = quiet or not console.is_terminal
    with rich.Progress(*columns, console=console, disable=silent) as display:
        yield Bar(display, download=download)


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
            rate, seconds_left = 0.0, None
            if stage == "images":
                rate = done / (now - self._start)
            if rate:
                seconds_left = round((total - done) / rate, 1)
            self.emit(
                "progress",
                stage=stage,
                done=done,
                total=total,
                images_per_second=round(rate, 1),
                seconds_left=seconds_left,
                skipped=self._skipped,
            )

    def failure(self, id_: str, reason: str) -> None:
        """Print an image that cannot be used."""
        self._skipped += 1
        self.emit("failure", id=id_, error=reason)

    def emit(self, event: str, **facts: Any) -> None:
        """Print one event."""
        click.echo(dumps({"event": event, **facts}))

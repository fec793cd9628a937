"""Printing of lines, tables, JSON and progress.

Names of files, classes and labels may contain characters that a terminal obeys: clear the screen,
change the title, reverse the text. Such characters are escaped. JSON needs no escaping. Long
commands show a bar in a terminal, or JSON lines for programs.
"""

from __future__ import annotations

import shlex
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from json import dumps
from typing import TYPE_CHECKING, Any

import typer

if TYPE_CHECKING:  # rich takes longer to load than a help to show
    from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
    from rich.progress import Progress, Task, TaskID

    from deepfishing.images.item import Item

_DIRECTIONS = (0x061C, 0x200E, 0x200F, *range(0x2028, 0x202F), *range(0x2066, 0x206A))
_ORDERS = (*range(0x20), *range(0x7F, 0xA0), *_DIRECTIONS)
_SPELLED = {code: ascii(chr(code))[1:-1] for code in _ORDERS if chr(code) not in "\n\t"}
# bytes of a name that is not UTF-8, which no terminal can show
_SPELLED |= {0xDC00 + byte: f"\\x{byte:02x}" for byte in range(0x80, 0x100)}


def spelled(text: str) -> str:
    """Text without a character that a terminal obeys; line ends and tabs stay."""
    return text.translate(_SPELLED)


def line(text: object = "", err: bool = False) -> None:
    """Print a line."""
    typer.echo(spelled(str(text)), err=err)


def note(text: str) -> None:
    """Print a line that is not part of the answer, so that what is piped stays as it is."""
    line(text, err=True)


def cells(values: Iterable[object]) -> None:
    """Print one row for a program: complete cells, with tabs between them."""
    texts = (str(value).replace("\t", "\\t").replace("\n", "\\n") for value in values)
    line("\t".join(texts))


def json(document: object, indent: int | None = None) -> None:
    """Print one JSON document."""
    typer.echo(dumps(document, indent=indent))


def counted(n: int, what: str) -> str:
    """So many of something."""
    return f"{n:,} {what}{'' if n == 1 else 's'}"


def images_text(n: int) -> str:
    """A number of images."""
    return counted(n, "image")


def labels_text(items: Sequence[Item]) -> str:
    """Return how many images have labels, of which classes; "" where none has."""
    labelled = [item.labels for item in items if item.labels]
    if not labelled:
        return ""
    classes = sorted({label for labels in labelled for label in labels})
    some = ", ".join(classes[:3]) + (" ..." if len(classes) > 3 else "")
    kinds = "1 class" if len(classes) == 1 else f"{len(classes):,} classes"
    return f"{images_text(len(labelled))} of {kinds}: {some}"


SHOWN = 20  # images left out that are named one by one


def left_out(
    reasons: Iterable[str], more: str = "", *, word: str = "left out", err: bool = True
) -> None:
    """Name the images that were left out, the first of them at least; `more` says where all are."""
    found = list(reasons)
    for reason in found[:SHOWN]:
        line(f"{word}: {reason}", err=err)
    if len(found) > SHOWN:
        line(f"{word}: {len(found) - SHOWN} more{more}", err=err)


def passed_over(counts: Mapping[str, int]) -> None:
    """Count the files of a folder that are not images."""
    if counts:
        # loaded when the command runs, so that help and completion are quick
        from deepfishing.images.preprocess import passed_over_text

        line(f"passed over: {passed_over_text(counts)}", err=True)


def what_next(*commands: Iterable[object]) -> None:
    """Name the commands that are useful now; on stderr, so that what is piped stays as it is."""
    line(
        "next: " + ", or ".join(shlex.join(map(str, words)) for words in commands),
        err=True,
    )


class Spelled:
    """A table, or anything that rich draws: its own colours stay, orders inside its text do not."""

    def __init__(self, drawn: RenderableType) -> None:
        self.drawn = drawn

    def __rich_console__(
        self, console: Console, options: ConsoleOptions
    ) -> RenderResult:
        from rich.segment import Segment

        for segment in console.render(self.drawn, options):
            if segment.control:
                yield segment
            else:
                yield Segment(spelled(segment.text), segment.style)


def size_text(n: float) -> str:
    """Bytes for people."""
    for unit in ("B", "kB", "MB", "GB"):
        if n < 1000:
            return f"{n:.0f} B" if unit == "B" else f"{n:.1f} {unit}"
        n /= 1000
    return f"{n:.1f} TB"


def rate_text(task: Task) -> str:
    """Images per second; rows and points take seconds each, so their rate says nothing."""
    # loaded when the command runs, so that help and completion are quick
    from deepfishing.evaluation.checks import PROTOCOLS

    speed = task.finished_speed or task.speed
    return f"{speed:.1f}/s" if speed and task.description not in PROTOCOLS else ""


def time_text(task: Task) -> str:
    """How long a stage has taken and will take, in words that cannot be confused."""
    passed = clock_text(task.finished_time if task.finished else task.elapsed)
    if task.finished:
        return f"{passed} in all"
    left = task.time_remaining
    return f"{passed} so far" + (
        "" if left is None else f", about {clock_text(left)} left"
    )


def clock_text(seconds: float | None) -> str:
    """Seconds as a clock shows them."""
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
        skipped = (
            f"{self._skipped} skipped" if self._skipped and stage == "images" else ""
        )
        self._shown.update(
            self._tasks[stage], completed=done, total=most, skipped=skipped
        )

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
        rich.TextColumn(
            "{task.description:>28}" if download else "{task.description:>8}"
        ),
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
    """The same as one JSON object per line: start, failure, progress once a second, end."""

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
        typer.echo(dumps({"event": event, **facts}))

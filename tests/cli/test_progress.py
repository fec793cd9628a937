import io

from rich.console import Console
from rich.progress import Progress

from deepfishing.cli import say


def test_the_time_that_has_passed_and_the_time_that_is_left_cannot_be_confused():
    now = [0.0]
    with Progress(disable=True, get_time=lambda: now[0]) as bar:
        number = bar.add_task("images", total=52)
        (task,) = bar.tasks

        def text():
            return say.time_text(task)

        assert text() == "0:00 so far"
        for done in (6, 12):
            now[0] = float(done)
            bar.update(number, completed=done)
        assert text() == "0:12 so far, about 0:40 left"
        now[0] = 52.0
        bar.update(number, completed=52)
        assert text() == "0:52 in all"


def test_a_line_of_the_bar_fits_into_80_columns(monkeypatch):
    screen = io.StringIO()
    console = Console(file=screen, width=80, force_terminal=True, color_system=None)
    monkeypatch.setattr("rich.console.Console", lambda stderr: console)
    with say.progress_bar() as bar:
        bar("images", 0, 12_345)
        bar.failure("a.jpg", "why")
        bar("images", 1234, 12_345)
        bar("hashing", 7, 7)
    lines = [line for line in screen.getvalue().splitlines() if "images" in line]
    for words in ("1234/12345", "so far", "1 skipped"):
        assert words in lines[-1]


def test_a_stage_that_has_nothing_more_to_do_stays_as_it_was():
    with Progress(disable=True) as shown:
        bar = say.Bar(shown)
        bar("images", 3, 3)
        bar("images", 0, 0)  # the second of two protocols on the same features
        [task] = shown.tasks
        assert (task.completed, task.total) == (3, 3)

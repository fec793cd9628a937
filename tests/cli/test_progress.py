import io

from rich.console import Console
from rich.progress import Progress

from deepfishing.cli import printing, progress
from deepfishing.cli.extract import duration_text


def test_the_time_that_has_passed_and_the_time_that_is_left_cannot_be_confused():
    now = [0.0]
    with Progress(disable=True, get_time=lambda: now[0]) as bar:
        number = bar.add_task("images", total=52)
        (task,) = bar.tasks

        def text():
            return progress.time_text(task)

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
    monkeypatch.setattr(progress, "Console", lambda stderr: console)
    with progress.progress_bar() as bar:
        bar("images", 0, 12_345)
        bar.failure("a.jpg", "why")
        bar("images", 1234, 12_345)
        bar("hashing", 7, 7)
    lines = [line for line in screen.getvalue().splitlines() if "images" in line]
    for words in ("1234/12345", "so far", "1 skipped"):
        assert words in lines[-1]


def test_a_stage_that_has_nothing_more_to_do_stays_as_it_was():
    with Progress(disable=True) as shown:
        bar = progress.Bar(shown)
        bar("images", 3, 3)
        bar("images", 0, 0)  # the second of two protocols on the same features
        [task] = shown.tasks
        assert (task.completed, task.total) == (3, 3)


def test_numbers_are_said_as_people_say_them():
    assert [printing.count_text(1, "photo"), printing.count_text(1200, "image")] == [
        "1 photo",
        "1,200 images",
    ]
    assert [printing.size_text(999), printing.size_text(12_345_678)] == [
        "999 B",
        "12.3 MB",
    ]
    clocks = [progress.clock_text(seconds) for seconds in (7.2, 61, 36_061, None)]
    assert clocks == ["0:07", "1:01", "10:01:01", "0:00"]
    durations = [duration_text(seconds) for seconds in (4.23, 300, 12_345, 5e5, 1e9)]
    assert durations == ["4.2 s", "5.0 min", "3.4 h", "5.8 days", "31.7 years"]
    assert printing.escape_controls("\x1b[2Jcat.jpg") == "\\x1b[2Jcat.jpg"


def test_events_are_lines_of_json(capsys):
    events = progress.JsonEvents(images=3)
    events("images", 0, 2)
    events.failure("a.jpg", "image not found: a.jpg")
    assert capsys.readouterr().out.splitlines() == [
        '{"event": "start", "images": 3, "to_compute": 2}',
        '{"event": "failure", "id": "a.jpg", "error": "image not found: a.jpg"}',
    ]

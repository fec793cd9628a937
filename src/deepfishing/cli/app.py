"""The command line's edge: commands are gathered here, and errors become one line.

A `DeepFishingError`, or a file that the system does not let us use, is one line on stderr and exit
code 1; Ctrl-C is one line and 130. Everything else is a bug and shows its traceback.
"""

from __future__ import annotations

import errno
import os
import sys
import warnings
from typing import Annotated, Any

import typer

from deepfishing import __version__
from deepfishing.cli.curate import curate_app
from deepfishing.cli.doctor import doctor
from deepfishing.cli.extract import extract
from deepfishing.cli.fetch import fetch
from deepfishing.cli.help import Command
from deepfishing.cli.models import models
from deepfishing.cli.plan import plan
from deepfishing.cli.predict import predict
from deepfishing.cli.report import report
from deepfishing.cli.reproduce import reproduce
from deepfishing.cli.say import say
from deepfishing.cli.search import search
from deepfishing.cli.serve import serve
from deepfishing.cli.store import store_app
from deepfishing.cli.train import train
from deepfishing.errors import DeepFishingError
from deepfishing.images.item import as_text

INTERRUPTED = 130  # typer's exit code after Ctrl-C
# what typer raises for a word too much, too few or mistyped; it has no public name of its own
UsageError: Any = typer.BadParameter.__base__

app = typer.Typer(
    name="deepfish",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
# in the order of use
for panel, commands in {
    "Your photos": (extract, search, serve, train, predict),
    "Measure": (reproduce, report),
    "More": (models, fetch, plan, doctor),
}.items():
    for command in commands:
        app.command(cls=Command, rich_help_panel=panel)(command)
app.add_typer(curate_app, name="curate", rich_help_panel="Your photos")
app.add_typer(store_app, name="store", rich_help_panel="More")


def _version(value: bool) -> None:
    if value:
        typer.echo(f"deepfish {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version.")
    ] = False,
) -> None:
    """Gradient features from frozen deep networks.

    Start with: deepfish extract photos store, or deepfish reproduce groceries
    """


def _tell_warning(message: Warning | str, *_: Any, **__: Any) -> None:
    """A line like any other, without the place in our code."""
    say(f"deepfish: {message}", err=True)


def main() -> None:
    """Run the command line."""
    warnings.filterwarnings("ignore", module="PIL")  # odd EXIF and the like; pixels are checked
    warnings.showwarning = _tell_warning
    try:
        code = app(prog_name="deepfish", standalone_mode=False) or 0
    except UsageError as error:
        _explain(error)
        sys.exit(error.exit_code)
    except DeepFishingError as error:
        say(f"deepfish: {error}", err=True)
        sys.exit(1)
    except OSError as error:
        if error.errno != errno.ENOSPC and error.filename is not None:
            name = as_text(os.fsdecode(error.filename))
            reason = f"{name} cannot be used ({error.strerror})"
            say(f"deepfish: {reason}; check its name and its permissions", err=True)
            sys.exit(1)
        if error.errno != errno.ENOSPC:
            raise
        print("deepfish: output cannot be written: no space left", file=sys.stderr)
        os._exit(1)  # an ordinary end would try to write what is left
    if code == INTERRUPTED:
        print("deepfish: interrupted; finished work is kept, run it again", file=sys.stderr)
    sys.exit(code)


def _explain(error: Any) -> None:
    """One line on a word of the command line that does not fit."""
    message = " ".join(error.format_message().split()).removesuffix(".")
    if message:  # without any word the help was shown
        where = error.ctx.command_path if error.ctx else "deepfish"
        say(f"deepfish: {message[0].lower()}{message[1:]} (see `{where} --help`)", err=True)

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
import typer._completion_classes

from deepfishing import __version__
from deepfishing.cli import say
from deepfishing.cli.command import Group, Lazy
from deepfishing.errors import DeepFishingError

INTERRUPTED = 130  # typer's exit code after Ctrl-C
# what typer raises for a word too much, too few or mistyped; it has no public name of its own
UsageError: Any = typer.BadParameter.__base__

# In the order of use, with the first line of their help.
COMMANDS = {
    "Your photos": {
        "studio": "Open a folder of photos in the browser: search, label, review, sort.",
        "extract": "Extract features of images into a folder of Parquet files.",
        "search": "Find the images of a store that are like others or fit words, and say why.",
        "serve": "Look at a store in the browser: search it by a click or by a photo, and see why.",
        "label": "Correct the labels of a store, export them or undo a change.",
        "train": "Train one support vector machine per class, with probabilities.",
        "predict": "Classify images: the most probable classes of each, with their probabilities.",
        "curate": "Put a collection in order: what to label first, and more.",
    },
    "Measure": {
        "reproduce": "Measure the paper's rows: forward features, concatenations and gradients.",
        "report": "Write report.html, report.md or report.tex for a folder of results.",
    },
    "More": {
        "models": "List the networks, or show one: layers, features, preprocessing, weights.",
        "fetch": "Download weights and data sets, checked against their published checksums.",
        "doctor": "Show what this machine has and what is missing, and the command that brings it.",
        "export": "Write the features of a store into one file, decoded, a row per usable image.",
        "import": "Make a store of vectors that were made elsewhere: search, curate and train as "
        "with others.",
        "store": "Look into a store of features, check it, compress it.",
        "export-model": "Write a model as one .onnx file: pixels in, probabilities out, "
        "without Python.",
    },
}
# The files in which they are. A file is imported when one of its commands runs, so that the others
# do not wait for what it needs.
FILES = {
    "extract": ("extract",),
    "search": ("search",),
    "label": ("label",),
    "pages": ("studio", "serve", "report"),
    "classify": ("train", "predict", "export-model"),
    "curate": ("curate",),
    "reproduce": ("reproduce",),
    "setup": ("models", "fetch", "doctor"),
    "stores": ("store", "export", "import"),
}


class Root(Group):
    """All commands, by name and first line."""

    def __init__(self, **attributes: Any) -> None:
        super().__init__(**attributes)
        file_of = {name: file for file, names in FILES.items() for name in names}
        for panel, commands in COMMANDS.items():
            for name, about in commands.items():
                self.add_command(Lazy(name, file_of[name], about, panel))


# a completion has no markup in its help, and typer would import all of rich to look for it
typer._completion_classes._sanitize_help_text = lambda text: text

app = typer.Typer(
    name="deepfish",
    cls=Root,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _version(value: bool) -> None:
    if value:
        typer.echo(f"deepfish {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_version, is_eager=True, help="Show the version."
        ),
    ] = False,
) -> None:
    """Gradient features from frozen deep networks.

    Start with: deepfish extract photos store, or deepfish reproduce groceries
    """


def main() -> None:
    """Run the command line."""
    # odd EXIF and the like; pixels are checked
    warnings.filterwarnings("ignore", module="PIL")
    # a line like any other, without the place in our code
    warnings.showwarning = lambda message, *_, **__: say.note(f"deepfish: {message}")
    try:
        code = app(prog_name="deepfish", standalone_mode=False) or 0
    except UsageError as error:
        message = " ".join(error.format_message().split()).removesuffix(".")
        if message:  # without any word the help was shown
            where = error.ctx.command_path if error.ctx else "deepfish"
            if "unexpected extra argument" in message and len(message) > 80:
                message = f"{message[:80]} ...)"
                if where.endswith("extract"):  # which know what it means
                    message += "; quote a pattern, such as 'photos/*.jpg'"
            text = f"{message[0].lower()}{message[1:]} (see `{where} --help`)"
            say.note(f"deepfish: {text}")
        sys.exit(error.exit_code)
    except DeepFishingError as error:
        say.note(f"deepfish: {error}")
        sys.exit(1)
    except OSError as error:
        if error.errno == errno.ENOSPC:
            print("deepfish: output cannot be written: no space left", file=sys.stderr)
            os._exit(1)  # an ordinary end would try to write what is left
        if error.filename is None:
            raise
        # loaded when the command runs, so that help and completion are quick
        from deepfishing.images.item import as_text

        reason = (
            f"{as_text(os.fsdecode(error.filename))} cannot be used ({error.strerror})"
        )
        say.note(f"deepfish: {reason}; check its name and its permissions")
        sys.exit(1)
    if code == INTERRUPTED:
        print(
            "deepfish: interrupted; finished work is kept, run it again",
            file=sys.stderr,
        )
    sys.exit(code)

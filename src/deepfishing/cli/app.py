"""All commands, and errors as one line.

A `DeepFishingError`, or a file that the system refuses, is one line on stderr and exit code 1; a
wrong option or argument 2, Ctrl-C 130. Anything else is a bug and shows its traceback.
"""

from __future__ import annotations

import errno
import os
import sys
import warnings
from typing import Any

import click

from deepfishing import __version__
from deepfishing.cli.command import Group, Lazy
from deepfishing.cli.printing import print_note
from deepfishing.errors import DeepFishingError

INTERRUPTED = 130  # the exit code of shells after Ctrl-C

PHOTOS, MEASURE, OTHER = "Your photos", "Measure", "More"

# In the order of use, with the first line of their help: a command's own file is imported later.
COMMANDS = (
    Lazy(
        "studio",
        "pages",
        ("Studio",),
        "Open a folder of photos in the browser: search, label, review, sort.",
        PHOTOS,
    ),
    Lazy(
        "extract",
        "extract",
        ("Extract",),
        "Extract features of images into a folder of Parquet files.",
        PHOTOS,
    ),
    Lazy(
        "search",
        "search",
        ("Search",),
        "Find the images of a store that are similar to a photo or fit words.",
        PHOTOS,
    ),
    Lazy(
        "serve",
        "pages",
        ("Serve",),
        "Open a store in the browser: search, label, review, sort.",
        PHOTOS,
    ),
    Lazy(
        "label",
        "label",
        ("Label",),
        "Correct the labels of a store, export them or undo a change.",
        PHOTOS,
    ),
    Lazy(
        "train",
        "train",
        ("Train",),
        "Train one support vector machine per class, with probabilities.",
        PHOTOS,
    ),
    Lazy(
        "predict",
        "predict",
        ("Predict",),
        "Classify images: the most probable classes of each, with their probabilities.",
        PHOTOS,
    ),
    Lazy(
        "curate",
        "curate",
        ("Choose", "Labels", "Twins", "Bursts", "Odd", "Map"),
        "Clean a collection: what to label first, copies, odd photos, wrong labels, a map.",
        PHOTOS,
    ),
    Lazy(
        "reproduce",
        "reproduce",
        ("Reproduce",),
        "Measure the paper's rows: forward features, concatenations and gradients.",
        MEASURE,
    ),
    Lazy(
        "report",
        "report",
        ("Report",),
        "Write report.html, report.md or report.tex for a folder of results.",
        MEASURE,
    ),
    Lazy(
        "models",
        "setup",
        ("Models",),
        "List the networks, or show one: layers, features, preprocessing, weights.",
        OTHER,
    ),
    Lazy(
        "fetch",
        "setup",
        ("Fetch",),
        "Download weights and data sets, checked against their published checksums.",
        OTHER,
    ),
    Lazy(
        "doctor",
        "setup",
        ("Doctor",),
        "Show what this computer has and what is missing, with the command that installs it.",
        OTHER,
    ),
    Lazy(
        "export",
        "stores",
        ("Export",),
        "Write the features of a store into one file, decoded, a row per usable image.",
        OTHER,
    ),
    Lazy(
        "import",
        "stores",
        ("Import",),
        "Make a store of vectors that you have, to search, curate and train with.",
        OTHER,
    ),
    Lazy(
        "store",
        "stores",
        ("Info", "Verify", "Compress"),
        "Describe a store of features, check it, compress it.",
        OTHER,
    ),
    Lazy(
        "export-model",
        "export_model",
        ("ExportModel",),
        "Write a model as one .onnx file: pixels in, probabilities out, without Python.",
        OTHER,
    ),
)


def _make_root() -> Group:
    """Return the command `deepfish`."""
    group = Group(
        "deepfish",
        {str(command.name): command for command in COMMANDS},
        no_args_is_help=True,
        context_settings={"help_option_names": ["-h", "--help"]},
        help="""Find, label and clean your photos with a frozen network and few labels.

        Start with: deepfish studio photos, where photos is a folder of yours
        """,
    )
    add_version = click.version_option(
        __version__, prog_name="deepfish", message="%(prog)s %(version)s"
    )
    root: Group = add_version(group)
    return root


root = _make_root()


def main() -> None:
    """Run the command line."""
    # odd EXIF and the like; pixels are checked
    warnings.filterwarnings("ignore", module="PIL")
    warnings.showwarning = _print_warning
    try:
        # the commands understand patterns themselves
        code = root.main(
            prog_name="deepfish", standalone_mode=False, windows_expand_args=False
        )
    except click.exceptions.NoArgsIsHelpError as error:
        click.echo(error.message)
        sys.exit(error.exit_code)
    except click.UsageError as error:
        print_note(f"deepfish: {_usage_text(error)}")
        sys.exit(error.exit_code)
    except click.Abort:
        print_note("deepfish: interrupted; finished work is kept, run it again")
        sys.exit(INTERRUPTED)
    except DeepFishingError as error:
        print_note(f"deepfish: {error}")
        sys.exit(1)
    except OSError as error:
        if error.errno == errno.ENOSPC:
            print("deepfish: output cannot be written: no space left", file=sys.stderr)
            os._exit(1)  # an ordinary end would try to write what is left
        if error.filename is None:
            raise
        path = os.fsdecode(error.filename)
        print_note(
            f"deepfish: {path} cannot be used ({error.strerror}); check its name and its "
            "permissions"
        )
        sys.exit(1)
    sys.exit(code or 0)


def _print_warning(message: Warning | str, *_: Any, **__: Any) -> None:
    """Print a warning as one line, without the place in the code."""
    print_note(f"deepfish: {message}")


def _usage_text(error: click.UsageError) -> str:
    """Return one line about a wrong option or argument."""
    command = error.ctx.command_path if error.ctx else "deepfish"
    message = " ".join(error.format_message().split()).removesuffix(".")
    if "unexpected extra argument" in message and len(message) > 80:
        message = f"{message[:80]} ...)"
        if command.endswith("extract"):  # which understands patterns
            message += "; quote a pattern, such as 'photos/*.jpg'"
    return f"{message[0].lower()}{message[1:]} (see `{command} --help`)"

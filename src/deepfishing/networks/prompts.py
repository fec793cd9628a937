"""Names of classes, and what a text tower is asked for each of them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from deepfishing.errors import OptionError, reraise_as

PROMPT = "a photo of {}"  # what is said of a class by default
MAX_CLASSES = 2000


def read_classes(classes: str | Path | Sequence[str]) -> tuple[str, ...]:
    """Return names of classes: given, or the lines of a text file."""
    if isinstance(classes, str | Path):
        path = Path(classes)
        what = f"names of classes must be a text file with one per line, got {path}"
        with reraise_as(OptionError, what, of=(OSError, UnicodeDecodeError)):
            lines = path.read_text("utf-8").splitlines()
        names = tuple(line.strip() for line in lines if line.strip())
    else:
        names = tuple(str(name).strip() for name in classes)
    if (
        not 2 <= len(names) <= MAX_CLASSES
        or len(set(names)) < len(names)
        or "" in names
    ):
        raise OptionError(
            f"names of classes must be 2 to {MAX_CLASSES:,} different ones, got {len(names):,}, "
            f"{len(set(names)):,} of them different"
        )
    return names


def prompts_of(classes: Sequence[str], prompt: str = PROMPT) -> list[str]:
    """Return what the text tower is asked for each class.

    >>> prompts_of(["cat", "red bicycle"])
    ['a photo of cat', 'a photo of red bicycle']
    """
    if "{}" not in prompt:
        raise OptionError(
            f"a prompt must have {{}} where the class goes, got {prompt!r}"
        )
    return [prompt.replace("{}", name) for name in classes]

"""Names of classes, and the text that a text tower reads for each of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from deepfishing.errors import OptionError, reraise_as

PLACE = "{}"  # of the name of a class in a prompt
PROMPT = f"a photo of {PLACE}"  # by default
MAX_CLASSES = 2000


@dataclass(frozen=True)
class ClassNames:
    """Names of classes, and the prompt: the text for a class, with {} for its name."""

    names: tuple[str, ...]
    prompt: str = PROMPT

    def texts(self) -> list[str]:
        """Return the text for each class.

        >>> ClassNames(("cat", "red bicycle")).texts()
        ['a photo of cat', 'a photo of red bicycle']
        """
        return [self.prompt.replace(PLACE, name) for name in self.names]


def read_classes(classes: str | Path | Sequence[str]) -> ClassNames:
    """Read names of classes: given, or the lines of a text file; one with {} is the prompt.

    >>> read_classes(["cat", "dog", "a drawing of a {}"]).texts()
    ['a drawing of a cat', 'a drawing of a dog']
    """
    if isinstance(classes, str | Path):
        path = Path(classes)
        what = f"names of classes must be a text file with one per line, got {path}"
        with reraise_as(OptionError, what, of=(OSError, UnicodeDecodeError)):
            lines = path.read_text("utf-8").splitlines()
        entries = [line.strip() for line in lines if line.strip()]
    else:
        entries = [str(name).strip() for name in classes]
    prompts = [entry for entry in entries if PLACE in entry]
    names = tuple(entry for entry in entries if PLACE not in entry)
    if len(prompts) > 1:
        raise OptionError(
            f"names of classes must have one line with {PLACE}, the text for a class, got "
            f"{len(prompts):,}, such as {prompts[1]!r}"
        )
    if (
        not 2 <= len(names) <= MAX_CLASSES
        or len(set(names)) < len(names)
        or "" in names
    ):
        raise OptionError(
            f"names of classes must be 2 to {MAX_CLASSES:,} different ones, got {len(names):,}, "
            f"{len(set(names)):,} of them different"
        )
    return ClassNames(names, *prompts)

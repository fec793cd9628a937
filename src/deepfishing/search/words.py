"""Words as examples of a search: which texts are words, and what they are compared by."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from deepfishing.core.recipes import Recipe
from deepfishing.errors import OptionError
from deepfishing.extraction.texts import EMBEDDING
from deepfishing.images.preprocess import EXTENSIONS, HEIC

WORDS_FEATURE = EMBEDDING
MAX_LETTERS = 2000  # of one text; towers read some tens of words
SUFFIXES = {*EXTENSIONS, *HEIC, ".avif"}  # of images, also where they cannot be read


@dataclass(frozen=True)
class Words:
    """An example in words, such as `Words("a red bicycle")`."""

    text: str

    def __post_init__(self) -> None:
        """Refuse what no text tower can read."""
        if not self.text.strip() or len(self.text) > MAX_LETTERS:
            raise OptionError(
                f"words must have 1 to {MAX_LETTERS:,} letters, got {len(self.text.strip()):,}; "
                "describe the photo in a sentence"
            )


def is_file_name(text: str) -> bool:
    """Whether a text is always taken for a file: it has a slash or the suffix of an image."""
    return "/" in text or "\\" in text or Path(text).suffix.lower() in SUFFIXES


def check_words_recipe(recipe: Recipe) -> None:
    """Refuse a recipe that cannot compare a text with images."""
    if recipe.name != WORDS_FEATURE:
        raise OptionError(
            f"words are compared with {WORDS_FEATURE}, the embedding, got the recipe "
            f"{recipe.name}; pass --features {WORDS_FEATURE}"
        )

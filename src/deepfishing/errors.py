"""Every error of the package, and the sentence that helps with a mistyped name.

All of them are `DeepFishingError`; each is also the built-in class that a caller
would already catch. A message says what was expected, what came and what to do.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class DeepFishingError(Exception):
    r"""Base of all errors that this package raises on purpose.

    Its message is one line, whatever names from outside are in it.

    Examples
    --------
    >>> str(ImageError("image cannot be read: a\nb.jpg"))
    'image cannot be read: a\\nb.jpg'
    """

    def __str__(self) -> str:
        return "".join(c if c.isprintable() else _escaped(c) for c in super().__str__())


def _escaped(character: str) -> str:
    byte = ord(character) - 0xDC00  # how Python writes a byte of a name that is not UTF-8
    return f"\\x{byte:02x}" if 0x80 <= byte <= 0xFF else ascii(character)[1:-1]


class LayerError(DeepFishingError, ValueError):
    """A layer that the network does not have, or that has no gradient of rank 1."""


class FeatureError(DeepFishingError, ValueError):
    """A feature name that cannot be read, or a feature whose values cannot be used."""


class NetworkError(DeepFishingError, ValueError):
    """An unknown network."""


class WeightsError(DeepFishingError, ValueError):
    """Weights that are missing, broken or do not fit the network."""


class OptionError(DeepFishingError, ValueError):
    """A value out of its range: a temperature, a label, a batch size."""


class DatasetError(DeepFishingError, ValueError):
    """A data set whose files are missing or malformed."""


class ImageError(DeepFishingError, OSError):
    """An image that cannot be read."""


class StoreError(DeepFishingError, ValueError):
    """A feature store that is damaged or was made with other settings."""


class FetchError(DeepFishingError, OSError):
    """A file that cannot be had, or that is not the published one."""


class MissingDependencyError(DeepFishingError, ImportError):
    """An optional package that is not installed; the message has the pip command."""


def did_you_mean(name: str, choices: Iterable[str]) -> str:
    """Say which choice was probably meant, or nothing.

    Examples
    --------
    >>> did_you_mean("vgg-16", ["vgg16", "vgg19"])
    '; did you mean vgg16?'
    >>> did_you_mean("zebra", ["vgg16"])
    ''
    """
    close = difflib.get_close_matches(name, list(choices), n=1)
    return f"; did you mean {close[0]}?" if close else ""

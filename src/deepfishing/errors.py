"""Errors of the package, and helpers for their messages: mistyped names, missing packages.

All of them are `DeepFishingError`; each is also the built-in class that a caller
would already catch. A message says what was expected, what came and what to do.
"""

from __future__ import annotations

import contextlib
import difflib
import importlib
import json
import shlex
import shutil
import sys
from collections.abc import Collection, Iterable, Iterator
from importlib import metadata
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

MAX_SUGGESTIONS = 3


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
    # how Python writes a byte of a name that is not UTF-8
    byte = ord(character) - 0xDC00
    return f"\\x{byte:02x}" if 0x80 <= byte <= 0xFF else ascii(character)[1:-1]


class LayerError(DeepFishingError, ValueError):
    """A layer that the network does not have, or that has no gradient of rank 1."""


class FeatureError(DeepFishingError, ValueError):
    """A feature name that cannot be read, or a feature whose values cannot be used."""


class NetworkError(DeepFishingError, ValueError):
    """An unknown or unusable network."""


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


class PrecisionError(StoreError):
    """Vectors whose kernel the precision of a store would change."""


class FetchError(DeepFishingError, OSError):
    """A file that cannot be downloaded, or that is not the published one."""


class MissingDependencyError(DeepFishingError, ImportError):
    """An optional package that is not installed; the message has the pip command."""


def one_line(error: BaseException | str) -> str:
    """Return the message of another package's error as one line of at most 200 characters."""
    return " ".join(str(error).split())[:200] or type(error).__name__


@contextlib.contextmanager
def reraise_as(
    error: type[DeepFishingError], what: str, do: str = "", of: Any = Exception
) -> Iterator[None]:
    """Re-raise exceptions of the block as one of our errors.

    Its message is `what` cannot be done, the reason in parentheses, and what to `do`.
    """
    try:
        yield
    except DeepFishingError:
        raise  # it is more precise
    except of as why:
        reason = getattr(why, "strerror", None) or one_line(why)
        raise error(f"{what} ({reason}){do}") from None


def did_you_mean(name: str, choices: Iterable[str]) -> str:
    """Return a question that names the choice that was probably meant, or ""."""
    by_lower = {choice.lower(): choice for choice in choices}
    lower = name.lower()
    close: list[str] = []
    if lower:
        close = [choice for choice in by_lower if choice.startswith(lower)][
            :MAX_SUGGESTIONS
        ]
    if not close:
        close = difflib.get_close_matches(lower, by_lower, n=1)
    if not close:
        return ""
    *others, last = [by_lower[choice] for choice in close]
    if not others:
        return f"; did you mean {last}?"
    return f"; did you mean {', '.join(others)} or {last}?"


def check_choice(
    what: str,
    given: str,
    choices: Collection[str],
    error: type[DeepFishingError] = OptionError,
) -> None:
    """Refuse a value that is not among the choices, and list them."""
    if given not in choices:
        comma = "; " if any("," in choice for choice in choices) else ", "
        listed = comma.join(choices)
        hint = did_you_mean(str(given), choices)
        raise error(f"{what} must be one of {listed}, got {given!r}{hint}")


def need(package: str, extra: str) -> Any:
    """Import a package of an extra; if it is missing, the error has the pip command."""
    name = package.partition(".")[0]
    try:
        return importlib.import_module(package)
    except ModuleNotFoundError as error:
        if error.name not in (name, package):
            raise
        raise MissingDependencyError(
            f"this needs the package {name}; run `{pip_install(extra=extra)}`"
        ) from None


def version_of(package: str) -> str:
    """Return the version of a package by the name of its import, whichever build installed it.

    `onnxruntime` may be of onnxruntime-gpu, and this package be a folder that was not installed.
    """
    with contextlib.suppress(metadata.PackageNotFoundError):
        return metadata.version(package)
    builds = sorted(set(metadata.packages_distributions().get(package, ())))
    if not builds:
        return "unknown version"
    return " ".join(f"{name} {metadata.version(name)}" for name in builds)


def pip_install(*packages: str, extra: str = "") -> str:
    """Return the command that installs packages, or an extra of this one, for this Python.

    An extra is installed from the origin of this package: a clone, a folder, or the index.
    Brackets are quoted, since zsh reads them as a pattern.
    """
    arguments = [shlex.quote(package) for package in packages]
    if extra:
        clone = Path(__file__).parents[2]
        origin = _origin()
        if (clone / "pyproject.toml").is_file():
            origin = _from_here(clone)
            arguments.append("-e")
        arguments.append(shlex.quote(f"{origin}[{extra}]"))
    return " ".join([_pip(), "install", *arguments])


def _pip() -> str:
    """Return `pip` if it belongs to this Python, else `PYTHON -m pip`."""
    python, pip = Path(sys.executable), shutil.which("pip")
    if not sys.executable or (pip and Path(pip).parent == python.parent):
        return "pip"
    return f"{shlex.quote(_from_here(python))} -m pip"


def _origin() -> str:
    """Return the folder that this package was installed from, or its name."""
    name = "deepfishing"
    try:
        facts = json.loads(
            metadata.distribution(name).read_text("direct_url.json") or "{}"
        )
    except (metadata.PackageNotFoundError, OSError, ValueError):
        return name
    url = urlsplit(str(facts.get("url", "")))
    folder = Path(unquote(url.path))
    is_there = url.scheme == "file" and (folder / "pyproject.toml").is_file()
    return _from_here(folder) if is_there else name


def _from_here(path: Path) -> str:
    """Return a path relative to the current folder where possible."""
    with contextlib.suppress(OSError, ValueError):
        # no such folder any more; not below it
        return str(path.relative_to(Path.cwd()))
    return str(path)

"""Importing the libraries, which are extras."""

from __future__ import annotations

import importlib
import importlib.util
from types import ModuleType

import deepfishing_torchvision
from deepfishing.errors import MissingDependencyError, NetworkError, pip_install

# by package: the extra that installs it
EXTRAS = {
    "timm": "hub",
    "torchvision": "hub",
    "transformers": "hf",
    "open_clip": "open-clip",
}


def import_package(package: str) -> ModuleType:
    """Import a library, also beside a torch build that torchvision was not made for."""
    deepfishing_torchvision.install()
    if package != "torchvision" and importlib.util.find_spec("torchvision"):
        import_package("torchvision")  # which the others import at times that vary
    try:
        return importlib.import_module(package)
    except ImportError:
        extra = EXTRAS[package.partition(".")[0]]
        raise MissingDependencyError(
            f"networks of {package} need the package {package}; run `{pip_install(extra=extra)}`"
        ) from None
    except RuntimeError as error:
        raise NetworkError(f"{package} cannot be imported: {error}") from None

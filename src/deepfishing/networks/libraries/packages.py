"""Importing the libraries, which are extras."""

from __future__ import annotations

import importlib
import importlib.util
from types import ModuleType

import torch

import deepfishing_torchvision
from deepfishing.errors import MissingDependencyError, NetworkError, pip_install

# by package: the extra that installs it
EXTRAS = {
    "timm": "hub",
    "torchvision": "hub",
    "transformers": "hf",
    "open_clip": "open-clip",
}
TORCHVISION_AHEAD = 15  # torchvision 0.15 belongs to torch 2.0, 0.16 to 2.1, and so on


def matching_torchvision(version: str) -> str:
    """Return the requirement of the torchvision that belongs to a version of torch.

    A newer torchvision would replace torch, on Linux by a build for CUDA.

    >>> matching_torchvision("2.13.0+cpu")
    'torchvision==0.28.0'
    """
    _, minor, patch = version.partition("+")[0].split(".")[:3]
    return f"torchvision==0.{int(minor) + TORCHVISION_AHEAD}.{patch}"


def import_package(package: str) -> ModuleType:
    """Import a library, also beside a torch build that torchvision was not made for."""
    deepfishing_torchvision.install()
    if package != "torchvision" and importlib.util.find_spec("torchvision"):
        import_package("torchvision")  # which the others import at times that vary
    try:
        return importlib.import_module(package)
    except ImportError:
        extra = EXTRAS[package.partition(".")[0]]
        command = pip_install(matching_torchvision(torch.__version__), extra=extra)
        raise MissingDependencyError(
            f"networks of {package} need the package {package}; run `{command}`"
        ) from None
    except RuntimeError as error:
        raise NetworkError(f"{package} cannot be imported: {error}") from None

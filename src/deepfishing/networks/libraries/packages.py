"""Importing the libraries, which are extras."""

from __future__ import annotations

import importlib
import importlib.util
from types import ModuleType
from typing import Any

import torch

from deepfishing.errors import MissingDependencyError, NetworkError, pip_install

# by package: the extra that installs it
EXTRAS = {"timm": "hub", "torchvision": "hub", "transformers": "hf", "open_clip": "open-clip"}

_OPERATORS: list[Any] = []  # torch forgets operators whose library object is collected


def import_package(package: str) -> ModuleType:
    """Import a library, also beside a torch build that torchvision was not made for."""
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
        if _OPERATORS or "torchvision::" not in str(error):
            raise NetworkError(f"{package} cannot be imported: {error}") from None
    # torchvision's Python code registers kernels for operators of its compiled part; where that
    # does not load, the operators are declared first: models and transforms do not use them
    _OPERATORS.append(torch.library.Library("torchvision", "FRAGMENT"))  # type: ignore[no-untyped-call]
    for name in ("nms", "qnms"):
        _OPERATORS[0].define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
    return import_package(package)

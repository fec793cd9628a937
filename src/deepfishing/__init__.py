"""Gradient features from frozen deep networks.

The few public names; each is imported when it is first used, so `import deepfishing` is quick and
does not import torch.

>>> import deepfishing
>>> a = deepfishing.RankOne(x=[[1.0, 2.0]], delta=[[3.0]])
>>> deepfishing.gram(a)
array([[45.]])
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from deepfishing.classify import KernelSVM, train_svm
    from deepfishing.errors import DeepFishingError
    from deepfishing.experiments.reproduce import Protocol, reproduce
    from deepfishing.extraction import extract_to
    from deepfishing.gradients.extract import extract
    from deepfishing.images.folder import read_folder
    from deepfishing.images.groceries import load_groceries
    from deepfishing.images.voc import read_voc
    from deepfishing.kernels import gram, linear_kernel, trace_kernel
    from deepfishing.measuring import measure
    from deepfishing.metrics import average_precision, evaluate
    from deepfishing.networks.load import load_network
    from deepfishing.networks.network import Network
    from deepfishing.networks.wrap import wrap
    from deepfishing.rank_one import RankOne
    from deepfishing.report.html import write_report

_HOME = {
    "DeepFishingError": "errors",
    "KernelSVM": "classify",
    "Network": "networks.network",
    "Protocol": "experiments.reproduce",
    "RankOne": "rank_one",
    "average_precision": "metrics",
    "evaluate": "metrics",
    "extract": "gradients.extract",
    "extract_to": "extraction",
    "gram": "kernels",
    "linear_kernel": "kernels",
    "load_groceries": "images.groceries",
    "load_network": "networks.load",
    "measure": "measuring",
    "read_folder": "images.folder",
    "read_voc": "images.voc",
    "reproduce": "experiments.reproduce",
    "trace_kernel": "kernels",
    "train_svm": "classify",
    "wrap": "networks.wrap",
    "write_report": "report.html",
}

__all__ = [
    "DeepFishingError",
    "KernelSVM",
    "Network",
    "Protocol",
    "RankOne",
    "average_precision",
    "evaluate",
    "extract",
    "extract_to",
    "gram",
    "linear_kernel",
    "load_groceries",
    "load_network",
    "measure",
    "read_folder",
    "read_voc",
    "reproduce",
    "trace_kernel",
    "train_svm",
    "wrap",
    "write_report",
]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'deepfishing' has no attribute {name!r}")
    return getattr(importlib.import_module(f"deepfishing.{_HOME[name]}"), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])

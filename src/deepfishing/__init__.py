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
    from deepfishing.classify import KernelSVM as KernelSVM
    from deepfishing.classify import train_svm as train_svm
    from deepfishing.errors import DeepFishingError as DeepFishingError
    from deepfishing.experiments.reproduce import Protocol as Protocol
    from deepfishing.experiments.reproduce import reproduce as reproduce
    from deepfishing.extraction import extract_to as extract_to
    from deepfishing.gradients.extract import extract as extract
    from deepfishing.images.folder import read_folder as read_folder
    from deepfishing.images.preprocess import Preprocess as Preprocess
    from deepfishing.images.published import load_groceries as load_groceries
    from deepfishing.images.sources import find_images as find_images
    from deepfishing.images.voc import read_voc as read_voc
    from deepfishing.kernels import gram as gram
    from deepfishing.kernels import linear_kernel as linear_kernel
    from deepfishing.kernels import trace_kernel as trace_kernel
    from deepfishing.measuring import measure as measure
    from deepfishing.metrics import average_precision as average_precision
    from deepfishing.metrics import evaluate as evaluate
    from deepfishing.model import Model as Model
    from deepfishing.networks.load import load_network as load_network
    from deepfishing.networks.network import Network as Network
    from deepfishing.networks.network import wrap as wrap
    from deepfishing.networks.zoo import list_networks as list_networks
    from deepfishing.options import Resources as Resources
    from deepfishing.rank_one import RankOne as RankOne
    from deepfishing.report.html import write_report as write_report
    from deepfishing.search import Searcher as Searcher
    from deepfishing.store import Store as Store

_HOME = {
    "DeepFishingError": "errors",
    "KernelSVM": "classify",
    "Model": "model",
    "Network": "networks.network",
    "Preprocess": "images.preprocess",
    "Protocol": "experiments.reproduce",
    "RankOne": "rank_one",
    "Resources": "options",
    "Searcher": "search",
    "Store": "store",
    "average_precision": "metrics",
    "evaluate": "metrics",
    "extract": "gradients.extract",
    "extract_to": "extraction",
    "find_images": "images.sources",
    "gram": "kernels",
    "linear_kernel": "kernels",
    "list_networks": "networks.zoo",
    "load_groceries": "images.published",
    "load_network": "networks.load",
    "measure": "measuring",
    "read_folder": "images.folder",
    "read_voc": "images.voc",
    "reproduce": "experiments.reproduce",
    "trace_kernel": "kernels",
    "train_svm": "classify",
    "wrap": "networks.network",
    "write_report": "report.html",
}

__all__ = list(_HOME)


def __getattr__(name: str) -> Any:
    if name == "plot":  # a module of its own, so that `deepfishing.plot.rows(...)` needs no import
        return importlib.import_module("deepfishing.plot")
    if name not in _HOME:
        raise AttributeError(f"module 'deepfishing' has no attribute {name!r}")
    return getattr(importlib.import_module(f"deepfishing.{_HOME[name]}"), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])

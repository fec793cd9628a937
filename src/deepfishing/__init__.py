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

__version__ = "0.2.0"

if TYPE_CHECKING:
    from deepfishing.core.kernels import gram as gram
    from deepfishing.core.kernels import linear_kernel as linear_kernel
    from deepfishing.core.kernels import trace_kernel as trace_kernel
    from deepfishing.core.metrics import average_precision as average_precision
    from deepfishing.core.metrics import evaluate as evaluate
    from deepfishing.core.rank_one import RankOne as RankOne
    from deepfishing.errors import DeepFishingError as DeepFishingError
    from deepfishing.evaluation.experiment import Protocol as Protocol
    from deepfishing.evaluation.measure import measure as measure
    from deepfishing.evaluation.protocols.table import reproduce as reproduce
    from deepfishing.evaluation.report.html import write_report as write_report
    from deepfishing.extraction.extract import extract as extract
    from deepfishing.extraction.options import Resources as Resources
    from deepfishing.extraction.pipeline import extract_to as extract_to
    from deepfishing.images.folder import read_folder as read_folder
    from deepfishing.images.preprocess import Preprocess as Preprocess
    from deepfishing.images.published import load_groceries as load_groceries
    from deepfishing.images.sources import find_images as find_images
    from deepfishing.images.voc import read_voc as read_voc
    from deepfishing.learn.model import Model as Model
    from deepfishing.learn.svm import KernelSVM as KernelSVM
    from deepfishing.learn.svm import train_svm as train_svm
    from deepfishing.networks.load import load_network as load_network
    from deepfishing.networks.network import Network as Network
    from deepfishing.networks.network import wrap as wrap
    from deepfishing.networks.zoo import list_networks as list_networks
    from deepfishing.search import Searcher as Searcher
    from deepfishing.store import Store as Store

_HOME = {
    "DeepFishingError": "errors",
    "KernelSVM": "learn.svm",
    "Model": "learn.model",
    "Network": "networks.network",
    "Preprocess": "images.preprocess",
    "Protocol": "evaluation.experiment",
    "RankOne": "core.rank_one",
    "Resources": "extraction.options",
    "Searcher": "search",
    "Store": "store",
    "average_precision": "core.metrics",
    "evaluate": "core.metrics",
    "extract": "extraction.extract",
    "extract_to": "extraction.pipeline",
    "find_images": "images.sources",
    "gram": "core.kernels",
    "linear_kernel": "core.kernels",
    "list_networks": "networks.zoo",
    "load_groceries": "images.published",
    "load_network": "networks.load",
    "measure": "evaluation.measure",
    "read_folder": "images.folder",
    "read_voc": "images.voc",
    "reproduce": "evaluation.protocols.table",
    "trace_kernel": "core.kernels",
    "train_svm": "learn.svm",
    "wrap": "networks.network",
    "write_report": "evaluation.report.html",
}

__all__ = list(_HOME)


def __getattr__(name: str) -> Any:
    if name == "plot":
        # a module of its own, so that `deepfishing.evaluation.plot.rows(...)` needs no import
        return importlib.import_module("deepfishing.evaluation.plot")
    if name not in _HOME:
        raise AttributeError(f"module 'deepfishing' has no attribute {name!r}")
    return getattr(importlib.import_module(f"deepfishing.{_HOME[name]}"), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])

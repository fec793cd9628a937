"""`deepfish train`: classifiers from labelled images."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from deepfishing.cli.arguments.shared import (
    MORE,
    NETWORK,
    WORK,
    Fields,
    Json,
    Strict,
)
from deepfishing.extraction.options import OPTIONS, Resources
from deepfishing.networks.prompts import PROMPT


@dataclass(frozen=True, kw_only=True)
class Train:
    """Train one support vector machine per class, with probabilities.

    Example: deepfish train photos model --features "pow(dW8,0.5)+x7" --cost cv

    By default features and cost are those that suit the training images, by cross-validation; what
    was tried is printed. With few labels images without labels help, too, so their features are
    computed unless --labelled-only is given. The model is model.json and model.safetensors.
    Features stay on disk, so another cost or recipe only computes what is missing. Unusable images
    are listed and left out. For other options of the features run `deepfish extract` first and
    train on its store. Above 20,000 images linear classifiers on projected features take the place
    of the kernel matrix.
    """

    data: Annotated[
        str,
        "A folder with one folder per class, a VOC tree, a table with a column label, any images "
        "together with --labels, or a store of `deepfish extract`.",
    ]
    model: Annotated[Path, "Folder for the model; made if absent."]
    labels: Annotated[
        Path | None, "A .csv with the columns path and label, or a VOC tree."
    ] = None
    classes: Annotated[
        Path | None,
        "Names of classes, a line each: a classifier by words, without labels, of a store whose "
        "network reads texts.",
    ] = None
    prompt: Annotated[str, "Text for a class, with {} for its name.", MORE] = PROMPT
    split: Annotated[str, "Split of a VOC tree to train on.", MORE] = "trainval"
    features: Annotated[
        str,
        "auto, which tries some forty recipes on the training images; auto-forward, which tries "
        "forward features alone; best; or one, such as x7 or pow(dW7,0.5)+x7.",
    ] = "auto"
    cost: Annotated[
        str | None,
        "Cost of the SVMs: a number, auto, cv, cv-shared or vissl; by default auto with --features "
        "auto, else 1.",
    ] = None
    class_weight: Annotated[
        str | None, "Weight of positives: balanced, or a number.", MORE
    ] = None
    difficult: Annotated[
        str, "Difficult labels of a VOC tree: ignore or negative.", MORE
    ] = "ignore"
    options: Annotated[
        dict[str, Any], Fields(NETWORK, only=("network", "weights"), records=OPTIONS)
    ]
    resources: Annotated[Resources, Fields(WORK, only=("batch_size", "device"))]
    seed: Annotated[int, "Seed of the folds of the cross-validation.", MORE] = 0
    labelled_only: Annotated[
        bool, "Do not use images without labels, for neighbours and prototypes.", MORE
    ] = False
    strict: Strict = False
    as_json: Json = False

"""`deepfish train`: classifiers from labelled images."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from deepfishing.cli.arguments.shared import (
    NETWORK,
    Fields,
    Json,
)
from deepfishing.extraction.options import OPTIONS


@dataclass(frozen=True, kw_only=True)
class Train:
    """Train one support vector machine per class, with probabilities.

    Example: deepfish train photos model --features "pow(dW8,0.5)+x7" --cost cv

    By default features and cost are those that suit the training images, by cross-validation; what
    was tried is printed. With few labels images without labels help, too, so their features are
    computed; a table of labelled images as DATA leaves them out. The model is model.json and
    model.safetensors.
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
        "network reads texts. A line with {} is the text for a class.",
    ] = None
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
    options: Annotated[
        dict[str, Any], Fields(NETWORK, only=("network", "weights"), records=OPTIONS)
    ]
    as_json: Json = False

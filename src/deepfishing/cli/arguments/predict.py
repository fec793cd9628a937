"""`deepfish predict`: the most probable classes of images."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from deepfishing.cli.arguments.shared import (
    ModelFolder,
    MovedWeights,
)


@dataclass(frozen=True, kw_only=True)
class Predict:
    """Classify images: the most probable classes of each, with their probabilities.

    Example: deepfish predict model photos --out predictions.csv

    Classes are judged one by one, so the probabilities of an image need not sum to 1. Unusable
    images are listed and left out. The network must be the one of the training; its weights are
    checked. --copy-into sorts copies into a folder per class, and `unsure` where no class reaches
    the threshold that was chosen for it; originals are never moved. --out lists the same. On a pipe
    there are tabs between image, class, probability, class, probability...
    """

    model: ModelFolder
    images: Annotated[
        tuple[str, ...],
        "Folders, images, quoted patterns, .txt lists, tables, .tar files, or - for a list on "
        "standard input.",
    ]
    top: Annotated[int, "How many classes to show per image."] = 3
    copy_into: Annotated[
        Path | None, "Also copy the images into a folder per class below this one."
    ] = None
    out: Annotated[
        Path | None, "Also write a table, .csv or .json, into this file."
    ] = None
    weights: MovedWeights = None
    as_json: Annotated[bool, "Print one JSON object per image, with all classes."] = (
        False
    )

"""`deepfish export-model`: a model as one .onnx file."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from deepfishing.cli.arguments.shared import (
    ModelFolder,
    MovedWeights,
)


@dataclass(frozen=True, kw_only=True)
class ExportModel:
    """Write a model as one .onnx file: pixels in, probabilities out, without Python.

    Example: deepfish export-model model model.onnx

    Pixels are uint8 RGB after resizing and cropping; mean and deviation are in the graph. The file
    is compared with the model before it is written.
    """

    model: ModelFolder
    file: Annotated[Path, "The .onnx file to write."]
    weights: MovedWeights = None

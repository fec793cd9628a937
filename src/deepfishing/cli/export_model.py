"""`deepfish export-model`: a model as one .onnx file."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from deepfishing.cli.help import NETWORK
from deepfishing.cli.say import say


def export_model(
    model: Annotated[Path, "Folder that `deepfish train` wrote."],
    file: Annotated[Path, "The .onnx file to write."],
    weights: Annotated[
        Path | None, "The network's weight file, if it is elsewhere now.", NETWORK
    ] = None,
) -> None:
    """Write a model as one .onnx file: pixels in, probabilities out, without Python.

    Example: deepfish export-model model model.onnx

    Pixels are uint8 RGB after resizing and cropping; mean and deviation are in the graph. The file
    is compared with the model before it is written.
    """
    from deepfishing.model import Model
    from deepfishing.model.to_onnx import export_model as run

    loaded = Model.load(model)
    difference = run(loaded, file, network=loaded.settings.load_network(weights=weights))
    size, C = loaded.settings.network.preprocess.size, len(loaded.classes)
    say(f"{file}: {file.stat().st_size / 1e6:.1f} MB, as `predict` within {difference:.1e}")
    say(f"pixels (n, {size}, {size}, 3) uint8 RGB to probabilities and scores (n, {C})")

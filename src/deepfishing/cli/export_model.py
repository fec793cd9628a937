"""`deepfish export-model`: a model as one .onnx file."""

from __future__ import annotations

from typing import TYPE_CHECKING

from deepfishing.cli.arguments.export_model import (
    ExportModel,
)
from deepfishing.cli.printing import (
    print_line,
    size_text,
)
from deepfishing.learn.model import Model
from deepfishing.learn.to_onnx import export_model
from deepfishing.util.files import check_out

if TYPE_CHECKING:
    from deepfishing.learn.model import Model


def run_export_model(args: ExportModel) -> None:
    """Run `deepfish export-model`."""
    check_out(args.file, [".onnx"], "the exported model")
    loaded = Model.load(args.model)
    difference = export_model(
        loaded, args.file, network=loaded.settings.load_network(weights=args.weights)
    )
    size, C = loaded.settings.network.preprocess.size, len(loaded.classes)
    print_line(
        f"{args.file}: {size_text(args.file.stat().st_size)}, as `predict` within {difference:.1e}"
    )
    print_line(
        f"pixels (n, {size}, {size}, 3) uint8 RGB to probabilities and scores (n, {C})"
    )

"""The part of a network that stays in ONNX, and what runs it."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from deepfishing.errors import NetworkError, need, one_line, reraise_as

package = partial(need, extra="onnxruntime")  # onnx, or what runs it
SILENT = 4  # the level of messages of onnxruntime
# of the largest number: images together and alone, parts and the whole
TOLERANCE = 1e-4
DEFAULT_SIDE = 224  # pixels, of noise for a file that takes images of any size


@dataclass(frozen=True)
class Pixels:
    """Input of a file: its name, the side of the square (None: any), and the order of its axes."""

    name: str
    size: int | None
    channels_last: bool = False


class OnnxTrunk(nn.Module):
    """The part that stays in ONNX, which runs in the thread that calls it.

    `outputs` has the file's tensor behind each part of the network, the trunk included.
    """

    def __init__(self, model: Any, pixels: Pixels, outputs: dict[str, str]) -> None:
        super().__init__()
        self.model, self.pixels, self.outputs = model, pixels, outputs
        self.single = False  # whether the file takes one image at a time

    def up_to(self, part: str) -> bytes:
        """Return the graph from the pixels to the end of a part, for any number of images."""
        onnx = package("onnx")
        whole = onnx.ModelProto()
        whole.CopyFrom(self.model)
        graph, info = whole.graph, onnx.helper.make_tensor_value_info
        # shapes in the file may be those of a fixed number of images
        for stale in ("value_info", "input", "output"):
            graph.ClearField(stale)
        graph.node.insert(0, self._first_step())
        last = onnx.helper.make_node("Identity", [self.outputs[part]], ["trunk"])
        graph.node.append(last)
        sides = ["n", 3, self.pixels.size or "high", self.pixels.size or "wide"]
        graph.value_info.extend([info("pixels", 1, sides), info("trunk", 1, None)])
        cut = onnx.utils.Extractor(whole).extract_model(["pixels"], ["trunk"])
        cut.graph.ClearField("value_info")
        return bytes(cut.SerializeToString())

    def _first_step(self) -> Any:
        """Return the node that transposes pixels (n, 3, S, S) to the file's order of axes."""
        make_node = package("onnx").helper.make_node
        names = ["pixels"], [self.pixels.name]
        if self.pixels.channels_last:
            return make_node("Transpose", *names, perm=[0, 2, 3, 1])
        return make_node("Identity", *names)

    def __deepcopy__(self, memo: Any) -> OnnxTrunk:
        return self  # it cannot be changed

    @cached_property
    def session(self) -> Any:
        """The onnxruntime session of the trunk."""
        return start_session(self.up_to("trunk"))

    def shape(self) -> tuple[int, ...]:
        """Return the output's shape for two images; finds out whether it takes one at a time."""
        noise = noise_images(self.pixels.size or DEFAULT_SIDE)
        problem = ""
        for self.single in (False, True):
            try:
                both = self(torch.from_numpy(noise))
                alone = torch.cat([self(torch.from_numpy(one[None])) for one in noise])
            except Exception as error:
                # onnxruntime's errors have no other common class
                problem = one_line(error)
                continue
            if both.shape == alone.shape and _is_close(both, alone):
                return tuple(both.shape)
            problem = "two images together give other numbers than each alone"
        raise NetworkError(
            f"the file must give the same for images together and alone, but {problem}; such a "
            "network cannot be used"
        )

    def forward(self, pixels: Tensor) -> Tensor:
        """Run images (n, 3, S, S)."""
        values = np.ascontiguousarray(pixels.detach().numpy())
        parts = np.split(values, len(values)) if self.single else [values]
        outputs = [self.session.run(None, {"pixels": part})[0] for part in parts]
        return torch.from_numpy(np.concatenate(outputs))


def _is_close(both: Tensor, alone: Tensor) -> bool:
    largest = float(alone.abs().max())
    return float((both - alone).abs().max()) <= TOLERANCE * largest


def noise_images(side: int) -> np.ndarray[Any, np.dtype[np.float32]]:
    """Return two images of noise, (2, 3, side, side)."""
    noise = np.random.default_rng(0).normal(size=(2, 3, side, side))
    return noise.astype(np.float32)


def onnx_of(trunk: nn.Module) -> bytes | None:
    """Return the part of its file that a trunk is; None if it is torch's."""
    # a network without a classifier is run as a whole, its embedding is taken already
    parts = dict(getattr(trunk, "module", trunk).named_children())
    own = parts.get("trunk")
    if not isinstance(own, OnnxTrunk):
        return None
    if own.single:
        raise NetworkError(
            "it takes one image at a time; export it with a dynamic batch axis"
        )
    return own.up_to(list(parts)[-1])


def start_session(model: bytes) -> Any:
    """Return an onnxruntime session, each call of which runs on one core."""
    runtime = package("onnxruntime")
    options = runtime.SessionOptions()
    # callers use several threads
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    options.log_severity_level = SILENT  # errors are raised, and reported by us
    with reraise_as(NetworkError, "onnxruntime cannot run the .onnx file"):
        return runtime.InferenceSession(
            model, options, providers=["CPUExecutionProvider"]
        )

"""Cutting a network below the first layer that is read, and running the part below: the trunk.

The trunk needs no gradient: it is a function from pixels (n, 3, S, S) to its output, in any engine,
that several threads may call at once, each on one core. The head stays in torch. A network is cut
if `torch.fx` can trace it and a single tensor crosses the cut. Others run whole up to the embedding
or to the input of the classifier if nothing else is read; otherwise they are not cut.
"""

from __future__ import annotations

import copy
import hashlib
import importlib.util
import io
import sys
import warnings
from collections.abc import Callable, Collection, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.nn.utils.fusion import fuse_conv_bn_eval

from deepfishing import __version__, networks
from deepfishing.core.rank_one import Array
from deepfishing.errors import version_of
from deepfishing.extraction.engines import (
    cannot_run,
    read_cached,
    start_onnx,
    write_cached,
)
from deepfishing.extraction.tap import frozen
from deepfishing.networks.onnx.trunk import onnx_of

RunTrunk = Callable[[Array], Tensor]

OPSET = 17
LIBRARIES = ("timm", "torchvision", "transformers", "open_clip")


@dataclass(frozen=True, eq=False)
class Cut:
    """head(trunk(batch)) is the network."""

    trunk: nn.Module  # with its own weights, batch norms folded into the convolutions
    # a batch norm that is not read is a scale and a shift; else as in the network
    head: nn.Module


def cut(module: nn.Module, read: Collection[str]) -> Cut | None:
    """Cut a module of one tensor below the first layer to read; return None if it cannot be."""
    graph = _trace(module, read)
    if graph is None or sum(node.op == "placeholder" for node in graph.nodes) != 1:
        return None
    nodes = list(graph.nodes)
    positions_read = []
    for position, node in enumerate(nodes):
        if _calls_module(node) and node.target in read:
            positions_read.append(position)
    if not positions_read:
        return None
    below, above = nodes[: positions_read[0]], nodes[positions_read[0] :]
    # weights used without a module are no part of the data flow: each side has its own
    weights = [node for node in below if node.op == "get_attr"]
    crossing = []
    for node in below:
        if node not in weights and not set(node.users).isdisjoint(above):
            crossing.append(node)
    if len(crossing) != 1 or crossing[0].op == "placeholder":
        return None
    (value,) = crossing
    trunk = _make_trunk(module, below, value)
    head = _make_head(module, [*weights, *above], value, read)
    return Cut(trunk, head)


def cut_by_running(
    module: nn.Module, read: Collection[str], pick: Callable[[Any], Tensor] | None
) -> Cut | None:
    """Cut a module that `torch.fx` cannot follow; None if more than one layer is read.

    The trunk is the whole module, which returns its embedding, or the input of the one layer that
    is read. Behind that layer nothing may follow but the choice of a part of the output, which the
    comparison with the uncut module shows.
    """
    if len(read) > 1:
        return None
    with torch.no_grad():
        # copied weights of TorchScript are else results of a computation
        plain = copy.deepcopy(module).eval()
    for weight in plain.parameters():
        # TorchScript has no `requires_grad_` of a whole module
        weight.requires_grad_(False)
    if not read:
        return Cut(RunTrunkModule(plain, pick=pick), _finish(module, None))
    (path,) = read
    return Cut(RunTrunkModule(plain, path=path), _finish(module, path))


@dataclass(frozen=True, eq=False)
class Taken:
    """An output from which the scores or the embedding (n, d) have been taken."""

    value: Tensor


def _finish(module: nn.Module, path: str | None) -> nn.Module:
    """Return the head behind a trunk that ends with the embedding, or right below a layer."""
    graph = fx.Graph()
    value = graph.placeholder("trunk")
    if path is not None:
        value = graph.call_module(path, (value,))
    graph.output(graph.call_function(Taken, (value,)))
    return fx.GraphModule(module, graph)


class RunTrunkModule(nn.Module):
    """A module run as it is, which returns a part of its output or the input of a layer."""

    def __init__(
        self,
        module: nn.Module,
        *,
        path: str = "",
        pick: Callable[[Any], Tensor] | None = None,
    ) -> None:
        super().__init__()
        self.module, self.path, self.pick = module, path, pick

    def forward(self, pixels: Tensor) -> Tensor:
        """Return (n, ...) of images (n, 3, S, S)."""
        if not self.path:
            output: Tensor = self.module(pixels)
            if self.pick is None:
                return output
            return self.pick(output)
        inputs: list[Tensor] = []
        layer = self.module.get_submodule(self.path)
        with layer.register_forward_pre_hook(lambda _, args: inputs.append(args[0])):
            self.module(pixels)
        (only,) = inputs
        return only


def _trace(module: nn.Module, read: Collection[str]) -> fx.Graph | None:
    """Return the data flow down to modules without children and to the layers that are read."""

    class Tracer(fx.Tracer):
        def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
            return module_qualified_name in read or next(m.children(), None) is None

    if any(map(_is_changed, module.modules())):
        return None
    try:
        with frozen(module):  # the mode is written into the graph
            return Tracer().trace(module)
    except (ValueError, TypeError, RuntimeError, AttributeError, LookupError):
        # code that asks for values or sizes of its input gets a proxy, on which it may fail in any
        # way; such a network is used whole
        return None


def _is_changed(module: nn.Module) -> bool:
    """Whether a module was changed from outside, which the tracer would not see."""
    has_hooks = bool(module._forward_hooks or module._forward_pre_hooks)
    return has_hooks or "forward" in vars(module)


def _calls_module(node: fx.Node) -> bool:
    return node.op == "call_module"


def _make_trunk(module: nn.Module, nodes: list[fx.Node], last: fx.Node) -> nn.Module:
    """Return a copy of the part below, up to the last of its nodes."""
    graph, copies = fx.Graph(), dict[fx.Node, fx.Node]()
    for node in nodes:
        copies[node] = graph.node_copy(node, copies.__getitem__)
    graph.output(copies[last])
    # copied, since its mode and its weights change
    trunk = copy.deepcopy(fx.GraphModule(module, graph)).eval().requires_grad_(False)
    _fold_batch_norms(trunk)
    return trunk


def _make_head(
    module: nn.Module, nodes: list[fx.Node], entry: fx.Node, read: Collection[str]
) -> nn.Module:
    """Return the part above, which takes the value of the node `entry`."""
    graph = fx.Graph()
    copies = {entry: graph.placeholder("trunk")}
    for node in nodes:
        copies[node] = graph.node_copy(node, copies.__getitem__)
    head = fx.GraphModule(module, graph)
    paths = {str(node.target) for node in nodes if _calls_module(node)}
    for path in paths.difference(read):
        norm = head.get_submodule(path)
        if isinstance(norm, nn.BatchNorm2d) and norm.running_mean is not None:
            head.set_submodule(path, Affine(norm))
    return head


class Affine(nn.Module):
    """A batch norm in eval mode, with a much cheaper backward pass than torch's."""

    scale: torch.Tensor
    shift: torch.Tensor

    def __init__(self, norm: nn.BatchNorm2d) -> None:
        super().__init__()
        state = {}
        for name, value in norm.state_dict().items():
            if value.ndim:
                state[name] = value.detach()[:, None, None]
        scale = state.get("weight", 1.0) * (state["running_var"] + norm.eps).rsqrt()
        shift = state.get("bias", 0.0) - state["running_mean"] * scale
        self.register_buffer("scale", scale)
        self.register_buffer("shift", shift)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Scale and shift every channel of x (N, C, H, W)."""
        return torch.addcmul(self.shift, x, self.scale)


def _fold_batch_norms(trunk: fx.GraphModule) -> None:
    """Merge each batch norm into the convolution whose output it takes."""
    modules: dict[Any, nn.Module] = dict(trunk.named_modules())
    targets = [node.target for node in trunk.graph.nodes if _calls_module(node)]
    for node in list(trunk.graph.nodes):
        before = next(iter(node.args), None)
        if not isinstance(before, fx.Node):
            continue
        if not (_calls_module(node) and _calls_module(before)):
            continue
        conv, norm = modules[before.target], modules[node.target]
        if not (isinstance(conv, nn.Conv2d) and isinstance(norm, nn.BatchNorm2d)):
            continue
        is_used_once = targets.count(before.target) == 1 and len(before.users) == 1
        if is_used_once and norm.running_mean is not None:
            folded = fuse_conv_bn_eval(conv, norm).requires_grad_(False)
            folded.weight.data = folded.weight.contiguous(
                memory_format=torch.channels_last
            )
            trunk.set_submodule(str(before.target), folded)
            node.replace_all_uses_with(before)
            trunk.graph.erase_node(node)
    trunk.delete_all_unused_submodules()
    trunk.recompile()


def start_engine(engine: str, trunk: nn.Module, size: int, threads: int) -> RunTrunk:
    """Return a function that runs a trunk on float32 (n, 3, size, size) in several threads."""
    if engine != "torch":
        run = start_onnx(engine, exported(trunk, size), threads)
        return lambda pixels: torch.from_numpy(next(iter(run(pixels).values())))

    def run_in_torch(pixels: Array) -> Tensor:
        with torch.inference_mode():
            batch = torch.from_numpy(pixels).contiguous(
                memory_format=torch.channels_last
            )
            output: Tensor = trunk(batch)
            return output

    return run_in_torch


def exported(trunk: nn.Module, size: int) -> bytes:
    """Return the trunk as ONNX, from the cache if it was exported before."""
    published = onnx_of(trunk)
    if published is not None:
        return published
    # structure, weights and versions: a trunk that was changed has another key
    structure = (
        f"{trunk}\n{getattr(trunk, 'code', '')}\n{size} {OPSET} {torch.__version__}"
    )
    digest = hashlib.sha256(f"{structure} {version_of('onnx')} {__version__}".encode())
    for tensor in trunk.state_dict().values():
        digest.update(
            tensor.detach().contiguous().reshape(-1).view(torch.uint8).numpy()
        )
    key = digest.hexdigest()[:32]
    model = read_cached(key)
    if model is None:
        model = export(trunk, torch.zeros(2, 3, size, size))
        write_cached(key, model)
    return model


def export(
    module: nn.Module, example: Tensor, names: Sequence[str] = ("trunk",)
) -> bytes:
    """Return a module as ONNX; refuse one whose export might not be the same function."""
    try:
        model, warned = write_onnx(module, example, names)
    except (RuntimeError, TypeError, ValueError) as error:
        raise cannot_run("ONNX", error) from None
    for warning in warned:
        # code that depends on its input would be frozen for one case; our own networks and those of
        # libraries depend on sizes only, which are fixed
        is_of_tracer = warning.category.__name__ == "TracerWarning"
        if is_of_tracer and not _is_trusted(str(warning.source)):
            raise cannot_run("ONNX", warning.message)
    return model


def _is_trusted(file: str) -> bool:
    """Whether a file of code is ours or of a library whose networks depend on sizes only."""
    folders = [Path(networks.__file__).parent]
    for package in LIBRARIES:
        spec = importlib.util.find_spec(package)
        if spec is not None:
            folders += map(Path, spec.submodule_search_locations or ())
    return any(Path(file).is_relative_to(folder) for folder in folders)


def _caller_of_torch() -> str:
    """Return the file of the code that called torch, while torch or Python warns."""
    torch_folder = Path(torch.__file__).parent
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        file = frame.f_code.co_filename
        is_ours = file in (__file__, warnings.__file__)
        if not is_ours and not Path(file).is_relative_to(torch_folder):
            return file
        frame = frame.f_back
    return ""


def write_onnx(
    module: nn.Module,
    example: Tensor,
    outputs: Sequence[str],
    *,
    name: str = "pixels",
    opset: int = OPSET,
) -> tuple[bytes, list[warnings.WarningMessage]]:
    """Return a module as ONNX and torch's warnings; it takes any n, or 1 if the example has 1."""
    file = io.BytesIO()
    # it prints a whole graph that it cannot export, whatever its logging is set to
    torch._C._jit_onnx_log = lambda *_: None
    # the exporter by tracing warns that it is the old one, but takes a second where the new one
    # takes ten and needs another package
    warned: list[warnings.WarningMessage] = []

    def record(
        message: Any, category: Any, filename: str, lineno: int, *_: Any
    ) -> None:
        caller = _caller_of_torch()
        warned.append(
            warnings.WarningMessage(message, category, filename, lineno, source=caller)
        )

    dynamic_axes = None
    if len(example) > 1:
        dynamic_axes = {key: {0: "n"} for key in (name, *outputs)}
    with warnings.catch_warnings(), ExitStack() as stack:
        warnings.simplefilter("always")
        warnings.showwarning = record  # type: ignore[assignment]
        # torch's fused attention, an operator that ONNX does not have
        fused = torch.backends.mha.get_fastpath_enabled()
        stack.callback(torch.backends.mha.set_fastpath_enabled, fused)
        torch.backends.mha.set_fastpath_enabled(False)
        torch.onnx.export(
            module,
            (example,),
            file,  # type: ignore[arg-type]
            dynamo=False,
            opset_version=opset,
            input_names=[name],
            output_names=list(outputs),
            dynamic_axes=dynamic_axes,
        )
    return file.getvalue(), warned

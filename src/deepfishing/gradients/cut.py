"""Stage 3, gradients: a network cut in two, below the first layer that is read.

Comes in: a module and the paths of the layers that are read. Goes out: the trunk, which needs no
gradient and may run in any engine, and the head, which stays in torch. Any network that `torch.fx`
can follow is cut, provided that a single tensor crosses the cut; others are used whole.
"""

from __future__ import annotations

import copy
from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx, nn
from torch.nn.utils.fusion import fuse_conv_bn_eval

from deepfishing.gradients.tap import frozen


@dataclass(frozen=True, eq=False)
class Cut:
    """head(trunk(batch)) is the network; modules of the head keep their paths and weights.

    The trunk has weights of its own: batch norms are folded into the convolutions before them. In
    the head a batch norm that is not read itself is a scale and a shift.
    """

    trunk: nn.Module
    head: nn.Module


def cut(module: nn.Module, read: Collection[str]) -> Cut | None:
    """Cut a module below the first of the layers to read, or None where that is not possible.

    The module takes one tensor, and is not changed.

    >>> layers = nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(16, 2)
    >>> parts = cut(nn.Sequential(*layers).eval(), ["4"])
    >>> [type(m).__name__ for m in parts.trunk.children()]
    ['Conv2d', 'ReLU', 'Flatten']
    >>> [name for name, _ in parts.head.named_children()]
    ['4']
    >>> parts.head(parts.trunk(torch.ones(5, 3, 4, 4))).shape
    torch.Size([5, 2])
    """
    graph = _trace(module, read)
    if graph is None or sum(node.op == "placeholder" for node in graph.nodes) != 1:
        return None
    nodes = list(graph.nodes)
    first = next((i for i, n in enumerate(nodes) if _calls(n) and n.target in read), None)
    if first is None:
        return None
    below, above = nodes[:first], nodes[first:]
    # weights used without a module are no part of the data flow: each side has its own
    weights = [node for node in below if node.op == "get_attr"]
    crossing = {n for n in below if n not in weights and not set(n.users).isdisjoint(above)}
    if len(crossing) != 1 or (only := crossing.pop()).op == "placeholder":
        return None
    return Cut(_trunk(module, below, only), _head(module, [*weights, *above], only, read))


def _trace(module: nn.Module, read: Collection[str]) -> fx.Graph | None:
    """The data flow down to modules without children, and to the layers that are read."""

    class Tracer(fx.Tracer):
        def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
            return module_qualified_name in read or next(m.children(), None) is None

    every = module.modules()
    if any("forward" in vars(m) or m._forward_hooks or m._forward_pre_hooks for m in every):
        return None  # changed from outside, which the tracer would not see
    try:
        with frozen(module):  # the mode is written into the graph
            return Tracer().trace(module)
    except (ValueError, TypeError, RuntimeError, AttributeError, LookupError, NotImplementedError):
        # code that asks for values or sizes of its input meets a stand-in instead, and fails as
        # it may; such a network is used whole
        return None


def _calls(node: fx.Node) -> bool:
    return node.op == "call_module"


def _trunk(module: nn.Module, nodes: list[fx.Node], last: fx.Node) -> nn.Module:
    graph, copies = fx.Graph(), dict[fx.Node, fx.Node]()
    for node in nodes:
        copies[node] = graph.node_copy(node, copies.__getitem__)
    graph.output(copies[last])
    # a copy, since its mode and its weights change
    trunk = copy.deepcopy(fx.GraphModule(module, graph)).eval().requires_grad_(False)
    _fold_batch_norms(trunk)
    return trunk


def _head(
    module: nn.Module, nodes: list[fx.Node], entry: fx.Node, read: Collection[str]
) -> nn.Module:
    graph = fx.Graph()
    copies = {entry: graph.placeholder("trunk")}
    for node in nodes:
        copies[node] = graph.node_copy(node, copies.__getitem__)
    head = fx.GraphModule(module, graph)
    for path in {str(node.target) for node in nodes if _calls(node)}.difference(read):
        norm = head.get_submodule(path)
        if isinstance(norm, nn.BatchNorm2d) and norm.running_mean is not None:
            head.set_submodule(path, Affine(norm))
    return head


class Affine(nn.Module):
    """What a batch norm is in eval mode, with a much cheaper backward pass than torch's."""

    scale: torch.Tensor
    shift: torch.Tensor

    def __init__(self, norm: nn.BatchNorm2d) -> None:
        super().__init__()
        values = norm.state_dict().items()
        state = {name: value.detach()[:, None, None] for name, value in values if value.ndim}
        scale = state.get("weight", 1.0) * (state["running_var"] + norm.eps).rsqrt()
        shift = state.get("bias", 0.0) - state["running_mean"] * scale
        self.register_buffer("scale", scale)
        self.register_buffer("shift", shift)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Scale and shift every channel of x (N, C, H, W)."""
        return torch.addcmul(self.shift, x, self.scale)


def _fold_batch_norms(trunk: fx.GraphModule) -> None:
    """Put the scale and shift of a batch norm into the convolution whose output it takes."""
    modules: dict[Any, nn.Module] = dict(trunk.named_modules())
    targets = [node.target for node in trunk.graph.nodes if _calls(node)]
    for node in list(trunk.graph.nodes):
        before = node.args[0] if node.args else None
        if not (_calls(node) and isinstance(before, fx.Node) and _calls(before)):
            continue
        conv, norm = modules[before.target], modules[node.target]
        if not (isinstance(conv, nn.Conv2d) and isinstance(norm, nn.BatchNorm2d)):
            continue
        once = targets.count(before.target) == 1 and len(before.users) == 1
        if once and norm.running_mean is not None:
            folded = fuse_conv_bn_eval(conv, norm).requires_grad_(False)
            folded.weight.data = folded.weight.contiguous(memory_format=torch.channels_last)
            trunk.set_submodule(str(before.target), folded)
            node.replace_all_uses_with(before)
            trunk.graph.erase_node(node)
    trunk.delete_all_unused_submodules()
    trunk.recompile()

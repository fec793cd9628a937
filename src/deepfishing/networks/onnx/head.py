"""The layers below the scores of an .onnx file, as torch layers with the file's weights."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from deepfishing.core.features import TOP
from deepfishing.networks.onnx.trunk import package

# What may follow the scores, and what they mean then.
ENDS: dict[str, tuple[Callable[[Tensor], Tensor], str]] = {
    "": (lambda y: y, "softmax"),
    "Softmax": (lambda y: y.softmax(1), "softmax"),
    "LogSoftmax": (lambda y: y.log_softmax(1), "softmax"),
    "Sigmoid": (torch.sigmoid, "sigmoid"),
}
RESHAPES = ("Flatten", "Reshape", "Squeeze")
MOVES = ("Identity", "Transpose")  # of constants


class Graph:
    """Nodes and constants of a file.

    `makers` has the node that computes a tensor, `constants` the arrays by their names.
    """

    def __init__(self, model: Any) -> None:
        self.nodes = model.graph.node
        self.makers: dict[str, Any] = {}
        self._uses: Counter[str] = Counter()
        for node in self.nodes:
            self.makers.update(dict.fromkeys(node.output, node))
            self._uses.update(node.input)
        self.constants = _read_constants(model)
        self._constant_uses = _count_constant_uses(self.nodes, self.constants)

    def is_used_once(self, tensor: str) -> bool:
        """Whether one node takes a tensor."""
        return self._uses[tensor] == 1

    def inputs_of(self, node: Any) -> list[str]:
        """Return the inputs of a node that depend on the image."""
        return [name for name in node.input if name and name not in self.constants]

    def values_of(self, node: Any) -> list[Any]:
        """Return the inputs of a node that are constants, None for the others."""
        return [self.constants.get(name) for name in node.input]

    def shares_weights(self, node: Any) -> bool:
        """Whether another node uses the weights, too: their gradient is more than this node's."""
        for name in node.input:
            is_weight = name in self.constants and self.constants[name].ndim > 1
            if is_weight and self._constant_uses[name] > 1:
                return True
        return False


@dataclass(frozen=True)
class Head:
    """The layers that make an output as torch modules, lowest first.

    Parameters
    ----------
    output : str
        The file's tensor.
    end : str
        The operator behind the scores, one of `ENDS`.
    parts : list of (str, Module)
        Layers and the steps between them, by name.
    outputs : dict of str to str
        The file's tensor behind each part, and that below the lowest one, `trunk`.
    layers : dict of int to str
        Number of each layer, the highest first, and its description.
    """

    output: str
    end: str = ""
    parts: list[tuple[str, nn.Module]] = field(default_factory=list)
    outputs: dict[str, str] = field(default_factory=dict)
    layers: dict[int, str] = field(default_factory=dict)

    @property
    def below(self) -> set[str]:
        """The file's tensors on the way to the output."""
        return {*self.outputs.values()} - {self.output}


@dataclass(frozen=True)
class _Step:
    """One step in torch: the tensor that it takes, the one that it makes, and its node."""

    takes: str
    makes: str
    node: Any
    module: nn.Module

    @property
    def is_layer(self) -> bool:
        return isinstance(self.module, nn.Linear | nn.Conv2d)

    @property
    def about(self) -> str:
        """Operator, name and widths of a layer."""
        weight: Any = self.module.weight
        D, d = weight.shape[:2]
        return f"{self.node.op_type} {self.node.name} ({d} to {D})"


def find_heads(model: Any) -> list[Head]:
    """Return the heads of the outputs that are class scores."""
    graph = Graph(model)
    heads = [_find_head(graph, output.name) for output in model.graph.output]
    heads = [head for head in heads if head.layers]
    # an embedding that is an output, too, is no classifier
    tensors_below: set[str] = set()
    for head in heads:
        tensors_below |= head.below
    return [head for head in heads if head.output not in tensors_below]


def _find_head(graph: Graph, output: str) -> Head:
    """Follow an output down as long as each step is known and has one input."""
    end = ""
    top = output
    last = graph.makers.get(output)
    if last is not None and last.op_type in ENDS:
        end = last.op_type
        top = last.input[0]
    tensor = top
    head = Head(output, end)
    steps: list[_Step] = []
    while tensor == top or graph.is_used_once(tensor):
        step = _read_step(graph, tensor)
        if step is None:
            break
        steps.append(step)
        tensor = step.takes
        if not step.is_layer:
            continue
        head = _with_layers(output, end, steps)
        if isinstance(step.module, nn.Conv2d) or 1 in head.layers:
            break
    return head


def _with_layers(output: str, end: str, steps: list[_Step]) -> Head:
    """Return the head of some steps, the highest first; the last one is a layer."""
    parts: list[tuple[str, nn.Module]] = []
    outputs: dict[str, str] = {}
    layers: dict[int, str] = {}
    for number, step in enumerate(steps):
        name = f"step{number}"
        if step.is_layer:
            k = TOP - len(layers)
            name = f"layer{k}"
            layers[k] = f"layer {k} is {step.about}"
        parts.insert(0, (name, step.module))
        outputs[name] = step.makes
    outputs["trunk"] = steps[-1].takes
    return Head(output, end, parts, outputs, layers)


def _read_step(graph: Graph, tensor: str) -> _Step | None:
    """Return the step that makes a tensor; None where it has no equal in torch."""
    node = graph.makers.get(tensor)
    bias = None
    if node is not None and node.op_type == "Add":
        bias, node = _split_sum(graph, node)
    if node is None:
        return None
    inputs = graph.inputs_of(node)
    if len(inputs) != 1 or graph.shares_weights(node):
        return None
    module = _as_module(node, [*graph.values_of(node), bias])
    if module is None:
        return None
    return _Step(takes=inputs[0], makes=tensor, node=node, module=module)


def _split_sum(graph: Graph, node: Any) -> tuple[Any, Any]:
    """Return the bias and the MatMul that an Add puts together; None, None for another sum."""
    inputs = graph.inputs_of(node)
    if len(inputs) != 1 or graph.shares_weights(node):
        return None, None
    product = graph.makers.get(inputs[0])
    if product is None or product.op_type != "MatMul":
        return None, None
    if not graph.is_used_once(inputs[0]):
        return None, None
    bias = next(value for value in graph.values_of(node) if value is not None)
    return bias, product


def _as_module(node: Any, values: list[Any]) -> nn.Module | None:
    """Return a step of the head in torch, by its constants; None where it is not known."""
    read = package("onnx").helper.get_attribute_value
    attributes = {entry.name: read(entry) for entry in node.attribute}
    second, third = values[1], [*values, None][2]
    if node.op_type in ("Gemm", "MatMul"):
        return _as_linear(attributes, second, third)
    if node.op_type == "Conv":
        return _as_pointwise(attributes, second, third)
    if node.op_type == "Clip":
        return _as_clip(attributes, second, third)
    if node.op_type == "ReduceMean":
        return _as_pooling(attributes, second)
    if node.op_type in RESHAPES:
        return _as_flatten(node.op_type, attributes, second)
    return _as_activation(node.op_type, attributes)


def _as_linear(attributes: dict[str, Any], W: Any, bias: Any) -> nn.Module | None:
    if W is None or W.ndim != 2 or attributes.get("transA"):
        return None
    if not attributes.get("transB"):
        W = W.T
    if bias is not None:
        bias = bias * attributes.get("beta", 1.0)
    return _make_layer(nn.Linear, W * attributes.get("alpha", 1.0), bias)


def _as_pointwise(attributes: dict[str, Any], W: Any, bias: Any) -> nn.Module | None:
    if W is None or W.shape[2:] != (1, 1):
        return None
    steps = {attributes.get("group", 1), *attributes.get("strides", [1])}
    if steps != {1} or any(attributes.get("pads", ())):
        return None
    return _make_layer(partial(nn.Conv2d, kernel_size=1), W, bias)


def _as_clip(attributes: dict[str, Any], low: Any, high: Any) -> nn.Module:
    low, high = attributes.get("min", low), attributes.get("max", high)
    if low is None:
        low = -np.inf
    if high is None:
        high = np.inf
    low, high = float(low), float(high)
    if (low, high) == (0, 6):
        return nn.ReLU6()
    return nn.Hardtanh(low, high)


def _as_pooling(attributes: dict[str, Any], axes: Any) -> nn.Module | None:
    axes = attributes.get("axes", axes)
    if axes is None or sorted(axis % 4 for axis in axes) != [2, 3]:
        return None
    pool = nn.AdaptiveAvgPool2d(1)
    if attributes.get("keepdims", 1):
        return pool
    return nn.Sequential(pool, nn.Flatten())


def _as_flatten(
    operator: str, attributes: dict[str, Any], shape: Any
) -> nn.Module | None:
    """Return a flattening; running the head shows whether the node does nothing else."""
    if operator == "Flatten":
        is_flattening = attributes.get("axis", 1) == 1
    else:
        is_flattening = shape is not None and shape.shape == (2,)
    if is_flattening:
        return nn.Flatten()
    return None


def _as_activation(operator: str, attributes: dict[str, Any]) -> nn.Module | None:
    slope = attributes.get("alpha", 0.01)
    approximation = attributes.get("approximate", b"none").decode()
    makers: dict[str, Callable[[], nn.Module]] = {
        "Relu": nn.ReLU,
        "Tanh": nn.Tanh,
        "Sigmoid": nn.Sigmoid,
        "HardSwish": nn.Hardswish,
        "LeakyRelu": lambda: nn.LeakyReLU(slope),
        "Gelu": lambda: nn.GELU(approximation),
        "GlobalAveragePool": lambda: nn.AdaptiveAvgPool2d(1),
        "Identity": nn.Identity,
        "Dropout": nn.Identity,
    }
    make = makers.get(operator)
    if make is None:
        return None
    return make()


def _make_layer(make: Callable[..., Any], W: Any, bias: Any) -> nn.Module | None:
    """Return a layer with weights W (D, d, ...); None where the bias is not one of outputs."""
    if bias is None:
        bias = np.zeros(1)
    if bias.size not in (1, len(W)):
        return None
    layer: nn.Module = make(W.shape[1], W.shape[0], device="meta")
    full_bias = np.zeros(len(W), np.float32) + bias.reshape(-1)
    layer.weight = nn.Parameter(torch.from_numpy(np.array(W, np.float32)))
    layer.bias = nn.Parameter(torch.from_numpy(full_bias))
    return layer.float()


def _read_constants(model: Any) -> dict[str, Any]:
    """Return the arrays of a file: initialisers, constants, and those transposed."""
    read = package("onnx").numpy_helper.to_array
    constants = {tensor.name: read(tensor) for tensor in model.graph.initializer}
    for node in model.graph.node:
        attributes = {entry.name: entry for entry in node.attribute}
        if node.op_type == "Constant" and "value" in attributes:
            constants[node.output[0]] = read(attributes["value"].t)
        elif node.op_type in MOVES and node.input[0] in constants:
            value = constants[node.input[0]]
            if node.op_type == "Transpose":
                order = None
                if "perm" in attributes:
                    order = list(attributes["perm"].ints)
                value = value.transpose(order)
            constants[node.output[0]] = value
    return constants


def _count_constant_uses(
    nodes: Iterable[Any], constants: dict[str, Any]
) -> Counter[str]:
    """Count the nodes that use a constant, as it is or transposed."""
    origin = {name: name for name in constants}
    uses: Counter[str] = Counter()
    for node in nodes:
        if node.op_type in MOVES and node.output[0] in origin:
            origin[node.output[0]] = origin[node.input[0]]
    for node in nodes:
        if node.output[0] not in origin:
            uses.update(origin[name] for name in node.input if name in origin)
    return Counter({name: uses[first] for name, first in origin.items()})

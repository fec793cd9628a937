"""Export of a model as one .onnx file, for use without Python.

The graph maps pixels (n, S, S, 3), uint8 RGB, to probabilities and scores (n, C): normalisation,
network, factors by the chain rule (eq:y_derivative), recipe, and the kernel against the support
vectors, which are constants. The caller decodes, resizes and crops, see docs/onnx.md. The file is
compared with the model before it is kept.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor, fx, nn

from deepfishing import __version__
from deepfishing.core.features import TOP, Factor
from deepfishing.core.kernels import (
    Comparable,
    KernelAverage,
    KernelProduct,
    KernelRBF,
    KernelSum,
    arrays_of,
)
from deepfishing.core.projections import draw_matrices
from deepfishing.core.prototypes import TEMPERATURE
from deepfishing.core.recipes import Recipe, parse_recipe
from deepfishing.errors import NetworkError, one_line
from deepfishing.extraction.compute import Computer
from deepfishing.extraction.factors import sharing_weights
from deepfishing.extraction.trunk import OPSET, Affine, cut, write_onnx
from deepfishing.images.preprocess import Preprocess
from deepfishing.learn.model import Model
from deepfishing.networks.network import Network
from deepfishing.networks.objectives import (
    find_objective,
    label_vector,
    one_class_margin,
    raise_margins,
    smallest_log_error,
)
from deepfishing.networks.onnx.load import KEY
from deepfishing.networks.onnx.trunk import onnx_of, package, start_session
from deepfishing.util.files import replacing

TOLERANCE = 1e-4  # of a probability
Tensors = dict[str, Tensor]  # by the name of a factor, or by the path of a layer
Values = Mapping[fx.Node, Any]  # the output of each step of the head
OUTPUTS = ("probabilities", "scores")
# dE/dx of a step from its x, y and g = dE/dy, by the name of the step
_BACK: Mapping[str, Callable[[Tensor, Tensor, Tensor], Tensor]] = {
    "relu": lambda x, y, g: g * (y > 0),
    "relu6": lambda x, y, g: g * ((y > 0) & (y < 6)),
    "tanh": lambda x, y, g: g * (1 - y * y),
    "sigmoid": lambda x, y, g: g * y * (1 - y),
    "flatten": lambda x, y, g: g.reshape(x.shape),
    **dict.fromkeys(("dropout", "identity"), lambda x, y, g: g),
    **dict.fromkeys(
        ("adaptiveavgpool2d", "mean"),
        lambda x, y, g: (
            g.flatten(1)[:, :, None, None] / math.prod(x.shape[2:])
        ).expand_as(x),
    ),
}


def export_model(
    model: Model, file: str | Path, *, network: Network | None = None
) -> float:
    """Write a model as .onnx, and return the largest difference of a probability.

    A model with `smooth` is written in its compact form (`Model.compact`), which does not average
    the photos that it is asked about.

    `network` is the one of the training; without it the model loads it. A model that cannot be
    exported is a `NetworkError`.
    """
    model = model.compact()
    settings = model.settings
    network = network or settings.load_network()
    if settings.views != "centre" or settings.network.dtype != "float32":
        raise _refused(f"{settings.views} views in {settings.network.dtype}")
    if not model.support:
        raise _refused("a model on vectors, as more than 20,000 images make it,")
    read = set()
    for factor in model.factors:
        if factor.kind != "probabilities":
            read.add(factor.path(network.layers))
    parts = cut(network.module, read or {network.layers[TOP]})
    if parts is None or callable(network.head) or settings.network.scores:
        raise _refused(
            f"the network {network.name}, which cannot be cut below its last layers,"
        )
    below = _Below(network.preprocess)
    above = _Above(model, network, parts.head)
    size = network.preprocess.size
    pixels = torch.zeros(2, size, size, 3, dtype=torch.uint8)
    trunk_onnx = onnx_of(parts.trunk)
    if trunk_onnx is None:
        module = nn.Sequential(below, parts.trunk, above)
        whole = _export(module, pixels, "pixels", OUTPUTS)
    else:
        middle = parts.trunk(below(pixels))
        whole = _export_around(trunk_onnx, below, pixels, above, middle)
    _describe(whole, model)
    content = whole.SerializeToString()
    difference = _difference(model, network, content)
    if not difference <= TOLERANCE:
        raise _refused(
            f"a model whose probabilities in ONNX differ by {difference:.2g}"
        )
    with replacing(Path(file)) as partial:
        partial.write_bytes(content)
    return difference


def _export_around(
    trunk_onnx: bytes,
    below: nn.Module,
    pixels: Tensor,
    above: nn.Module,
    middle: Tensor,
) -> Any:
    """Return the whole model where the trunk is in ONNX already; `middle` is its output."""
    onnx = package("onnx")
    trunk = onnx.load_from_string(trunk_onnx)
    shape = ["n", *middle.shape[1:]]
    output = onnx.helper.make_tensor_value_info("trunk", 1, shape)
    trunk.graph.output[0].CopyFrom(output)
    versions = {entry.domain: entry.version for entry in trunk.opset_import}
    opset = versions.get("") or versions["ai.onnx"]
    first = _export(below, pixels, "pixels", ["below"], opset)
    last = _export(above, middle, "above", OUTPUTS, opset)
    first = _join(first, trunk, "below", "pixels")
    return _join(first, last, "trunk", "above")


def _describe(whole: Any, model: Model) -> None:
    """Write classes, recipe and network into the metadata of a file."""
    reference = model.settings.network.as_dict()
    facts = {
        "classes": list(model.classes),
        "recipe": model.recipe,
        "version": __version__,
        "network": reference["network"],
        "weights_sha256": reference["weights_sha256"],
        "preprocess": reference["preprocess"],
    }
    metadata = {}
    for name, fact in facts.items():
        metadata[KEY.replace("preprocess", name)] = json.dumps(fact)
    package("onnx").helper.set_model_props(whole, metadata)


class _Below(nn.Module):
    """From pixels (n, S, S, 3) to the network's input, in the steps of `Preprocess`."""

    def __init__(self, preprocess: Preprocess) -> None:
        super().__init__()
        self.preprocess = preprocess

    def forward(self, pixels: Tensor) -> Tensor:
        values = pixels.permute(0, 3, 1, 2).float()
        if self.preprocess.order == "BGR":
            values = values[:, [2, 1, 0]]
        mean = torch.tensor(self.preprocess.mean)[:, None, None]
        std = torch.tensor(self.preprocess.std)[:, None, None]
        return (values * self.preprocess.scale - mean) / std


class _Above(nn.Module):
    """From the trunk's output to the model's: last layers, factors, recipe, kernel, classifiers."""

    def __init__(self, model: Model, network: Network, head: Any) -> None:
        super().__init__()
        self.model, self.network, self.head = model, network, head
        self.recipe = parse_recipe(model.recipe, network.layers).unsmoothed()
        self.nodes: dict[str, fx.Node] = {}
        for node in head.graph.nodes:
            if node.op == "call_module":
                self.nodes[str(node.target)] = node
        for factor in model.factors:
            if factor.kind == "probabilities":
                continue
            path = factor.path(network.layers)
            layer = head.get_submodule(path)
            is_used_once = len(sharing_weights(network.module, path)) == 1
            is_plain = _is_pointwise(layer) and is_used_once
            if factor.positions == "exact" or not is_plain:
                raise _refused(f"the feature {factor.name} of {type(layer).__name__}")

    def forward(self, middle: Tensor) -> tuple[Tensor, Tensor]:
        svm = self.model.svm
        K = self.kernel(self.recipe, svm.features, self.factors(middle))
        # kernels are near 1, and only their differences matter
        level = K.mean(1, keepdim=True)
        scores = (K - level) @ _constant(svm.dual) + level * _constant(svm.dual.sum(0))
        scores = scores + _constant(svm.bias)
        slope, offset = _constant(svm.calibration)
        z = slope * scores + offset
        probabilities = z.softmax(1) if svm.is_exclusive else torch.sigmoid(z)
        return probabilities, scores

    def factors(self, middle: Tensor) -> Tensors:
        """Return the factors of the model, (n, d) each."""
        run = fx.Interpreter(self.head, garbage_collect_values=False)
        scores = run.run(middle)
        deltas = self.deltas(run.env, scores)
        factors = {}
        for factor in self.model.factors:
            factors[factor.name] = self.factor(factor, run.env, scores, deltas)
        return factors

    def factor(
        self, factor: Factor, values: Values, scores: Tensor, deltas: Tensors
    ) -> Tensor:
        if factor.kind == "probabilities":
            return find_objective(str(self.network.head)).probabilities(scores)
        path = factor.path(self.network.layers)
        node = self.nodes[path]
        if factor.kind == "output":
            return _positions(values[node]).mean(1)
        if factor.kind == "delta":
            return _positions(deltas[path]).sum(1)
        x = _positions(values[node.all_input_nodes[0]])
        if factor.kind == "input":
            return x.mean(1)
        delta = _positions(deltas[path])
        D, d = self.head.get_submodule(path).weight.shape[:2]
        R, S = map(_constant, draw_matrices(int(d), int(D), *factor.positions))
        projected: Tensor = (x @ R.T).transpose(1, 2) @ (delta @ S.T)
        return projected.flatten(1)

    def deltas(self, values: Values, scores: Tensor) -> Tensors:
        """Return dE/dy of the layers whose gradients are read, from the top down."""
        layers = self.network.layers
        wanted = {f.path(layers) for f in self.model.factors if f.needs_backward}
        deltas: Tensors = {}
        output = next(n for n in self.head.graph.nodes if n.op == "output")
        (node,) = output.all_input_nodes
        g = self.top(scores)
        while not wanted <= deltas.keys():
            path = str(node.target)
            if path in wanted and path not in deltas:
                deltas[path] = g
                continue
            if (
                len(node.all_input_nodes) != 1
                or len(node.all_input_nodes[0].users) != 1
            ):
                raise _refused(
                    f"a network whose last layers are no chain ({self.kind(node)})"
                )
            (before,) = node.all_input_nodes
            g = self.back(node, values[before], values[node], g)
            node = before
        return deltas

    def kind(self, node: fx.Node) -> str:
        """Return the name of a step: of its module, or of its function."""
        if node.op == "call_module":
            return type(self.head.get_submodule(str(node.target))).__name__
        return str(getattr(node.target, "__name__", node.target))

    def back(self, node: fx.Node, x: Tensor, y: Tensor, g: Tensor) -> Tensor:
        """Return dE/dx of a step from its input x, its output y and g = dE/dy."""
        path = str(node.target)
        module = None
        if node.op == "call_module":
            module = self.head.get_submodule(path)
        if isinstance(module, nn.Linear) and x.ndim == 2:
            return g @ module.weight
        if isinstance(module, nn.Conv2d) and path in self.network.layers.values():
            return torch.conv2d(g, module.weight.transpose(0, 1))
        if isinstance(module, Affine):
            return g * module.scale
        kind = self.kind(node)
        back = _BACK.get(kind.lower().replace("_", ""))
        if back is None:
            raise _refused(f"a network with {kind} between its last layers")
        return back(x, y, g)

    def top(self, y: Tensor) -> Tensor:
        """Return dE/dy of the scores: (sigma(y / tau) - g_bar) / tau."""
        tau = self.model.settings.tau
        label = self.model.settings.label
        head = self.network.head
        floor = smallest_log_error(y.dtype)
        p = find_objective(str(head)).probabilities(y / tau)
        if head == "softmax":
            g_bar = label_vector(label, y)
            if not isinstance(label, int) and label != "predicted":
                return (p * g_bar.sum(-1, keepdim=True) - g_bar) / tau
            is_class = g_bar > 0
            margin = one_class_margin(y / tau, is_class, floor)
            others = (y / tau).masked_fill(is_class, -math.inf).softmax(dim=1)
            return margin.sigmoid() * (others - g_bar) / tau
        if label == "predicted":
            sign = torch.where(y > 0, -1.0, 1.0)
            return sign * raise_margins(sign * y / tau, floor).sigmoid() / tau
        if label == "uniform":
            return (p - torch.full_like(y, 0.5)) / tau
        return (p - label_vector(label, y)) / tau

    def kernel(self, recipe: Recipe, support: Comparable, factors: Tensors) -> Tensor:
        """K (n, m) of the images and the support vectors."""
        if isinstance(support, KernelAverage):
            rows, weights = support.used_rows()
            return self.kernel(recipe, rows, factors) @ _constant(weights.toarray()).T
        if isinstance(support, KernelRBF):
            inner = self.kernel(recipe.parts[0], support.parts[0], factors)
            return torch.exp(2 * support.g * (inner - 1))
        if isinstance(support, KernelSum | KernelProduct):
            parts = zip(recipe.parts, support.parts, strict=True)
            grams = torch.stack([self.kernel(r, s, factors) for r, s in parts])
            if isinstance(support, KernelProduct):
                return grams.prod(0)
            return (grams * _constant(support.shares)[:, None, None]).sum(0)
        values = self.feature(recipe, factors)
        pairs = zip(values, arrays_of(support), strict=True)
        K = [value @ _constant(other).T for value, other in pairs]
        if len(K) == 1:
            return K[0]
        return K[0] * K[1]

    def feature(self, recipe: Recipe, factors: Tensors) -> list[Tensor]:
        """Return one tensor (n, d), or the two factors of a gradient, normalised."""
        if recipe.step == "one":
            return [torch.ones_like(next(iter(factors.values()))[:, :1])]
        if recipe.feature:
            parts = [_unit(factors[factor.name]) for factor in recipe.factors]
            if recipe.gradients or len(parts) == 1:
                return parts
            return [_unit(torch.cat(parts, 1))]
        if recipe.step not in ("pow", "whiten", "own"):
            raise _refused(f"the recipe {recipe.name}")
        inner = self.feature(recipe.parts[0], factors)
        if recipe.step == "own":
            return self.own(recipe, inner[0])
        if recipe.step == "pow":
            return [_unit(v.sign() * v.abs() ** recipe.number) for v in inner]
        white = []
        for number, v in enumerate(inner):
            root = self.model.fitted.state[f"{recipe.name}/{number}"]
            inverse = np.linalg.inv(root.astype(np.float64))
            white.append(_unit(v @ _constant(inverse).T))
        return white

    def own(self, recipe: Recipe, x: Tensor) -> list[Tensor]:
        """Return x and delta of heads made of a pool, which are constants of the graph."""
        state = self.model.fitted.state
        z = _unit(x - _constant(state[f"{recipe.name}/0"]))
        deltas = []
        for W in _constant(state[f"{recipe.name}/1"]):
            p = torch.softmax(z @ W / TEMPERATURE, dim=1)
            deltas.append(_unit(p - 1 / W.shape[1]))
        return [x, _unit(torch.cat(deltas, 1))]


def _is_pointwise(layer: nn.Module) -> bool:
    """Whether a layer is fully connected, or a convolution that sees one pixel at a time."""
    if not isinstance(layer, nn.Conv2d):
        return isinstance(layer, nn.Linear)
    sizes = {*layer.kernel_size, *layer.stride, layer.groups}
    return sizes == {1} and not any(layer.padding)


def _positions(value: Tensor) -> Tensor:
    """Reshape rows (n, channels) or maps to (n, P, channels)."""
    if value.ndim == 2:
        return value[:, None]
    return value.flatten(2).transpose(1, 2)


def _unit(rows: Tensor) -> Tensor:
    norm: Tensor = torch.linalg.vector_norm(rows, dim=1, keepdim=True)
    return rows / norm.clamp_min(1e-30)


def _constant(values: Any) -> Tensor:
    return torch.from_numpy(np.array(values, dtype=np.float32))


def _export(
    module: nn.Module, example: Tensor, name: str, outputs: Any, opset: int = OPSET
) -> Any:
    """Return a module as an ONNX model."""
    try:
        with (
            torch.no_grad()
        ):  # `_difference` checks the result, so warnings are ignored
            content, _ = write_onnx(
                module.eval(), example, outputs, name=name, opset=opset
            )
    except (RuntimeError, TypeError, ValueError) as error:
        raise _refused(f"this network ({one_line(error)})") from None
    return package("onnx").load_from_string(content)


def _join(first: Any, second: Any, output: str, name: str) -> Any:
    """Return two models as one: the output of the first is the input `name` of the second."""
    compose = package("onnx.compose")
    inside = compose.add_prefix(
        second, f"{output}/", rename_inputs=True, rename_outputs=False
    )
    inside.ir_version = first.ir_version = max(first.ir_version, second.ir_version)
    return compose.merge_models(first, inside, io_map=[(output, f"{output}/{name}")])


def _difference(model: Model, network: Network, content: bytes) -> float:
    """Return the largest difference of a probability on pictures of noise."""
    preprocess = network.preprocess
    shape = (3, preprocess.size, preprocess.size, 3)
    noise = np.random.default_rng(0).integers(0, 256, shape, dtype=np.uint8)
    pictures = [Image.fromarray(pixels) for pixels in noise]
    batch = np.stack([preprocess.normalise(picture) for picture in pictures])
    computer = Computer(network, model.factors, settings=model.settings, engine="torch")
    factors = {}
    for factor, value in computer.compute(
        network.module, torch.from_numpy(batch)
    ).items():
        factors[factor.name] = value
    expected = model.probabilities(factors)
    outputs = start_session(content).run(["probabilities"], {"pixels": noise})
    return float(np.abs(outputs[0] - expected).max())


def _refused(what: str) -> NetworkError:
    return NetworkError(
        f"{what} cannot be exported to ONNX; see docs/onnx.md for what can"
    )

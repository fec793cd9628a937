"""One Caffe layer as a torch module, with the shape of its output and its weights.

Shapes are those of one image, without the batch. The module has no memory for its weights yet: all
sizes stay plain integers until they agree with the numbers in the file, so the file alone cannot
cause an allocation. An error names the layer.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import nn

from deepfishing.core.rank_one import Array
from deepfishing.errors import WeightsError
from deepfishing.networks.caffe import modules
from deepfishing.networks.caffe.modules import Join, Pair, Scale
from deepfishing.networks.caffe.schema import Layer, Message

Shape = tuple[int, ...]  # of one image's values, without the batch
MAX_VALUES = 2**27  # of one layer's output for one image: half a gigabyte
MAX_WINDOW = 10_000  # for kernels, strides, paddings
MAX_SHAPES_LISTED = 6  # in an error


@dataclass(frozen=True, eq=False)
class Built:
    """A module on the meta device, its output's shape, and its tensors by their torch names."""

    module: nn.Module
    shape: Shape
    tensors: Mapping[str, Array] = field(default_factory=dict)


def build(
    layer: Layer, shapes: Sequence[Shape], blobs: Sequence[Array], source: str
) -> Built:
    """Make the module of a layer; `source` is the file of its blobs, for error messages."""
    if layer.type not in _BUILDERS:
        raise layer.error(
            f"is not supported; supported are {', '.join(sorted(_BUILDERS))}"
        )
    parameter, builder = _BUILDERS[layer.type]
    expected = "one input"
    if layer.type in ("Concat", "Eltwise"):
        expected = "inputs"
    if not shapes or (len(shapes) > 1 and expected == "one input"):
        raise layer.error(f"must have {expected}, got {len(shapes)}")
    # the first generation has no field for the parameters that came later: all are defaults
    parameters = layer.message.child(parameter)
    if parameters.unknown:
        raise layer.error(
            "has parameters that Caffe does not define, so its function is not known: "
            f"{', '.join(parameters.unknown[:3])}; give a deploy prototxt without them"
        )
    with torch.device("meta"):
        built = builder(_Part(layer, parameters, tuple(shapes), tuple(blobs), source))
    if min(built.shape) < 1 or math.prod(built.shape) > MAX_VALUES:
        raise layer.error(
            f"makes an output of {_text(built.shape)} of {_text(shapes[0])}; "
            f"each side must be at least 1, and all at most {MAX_VALUES:,} values"
        )
    return built


@dataclass(frozen=True, eq=False)
class _Part:
    """A layer with everything that determines its module, each value within its limits."""

    layer: Layer
    parameters: Message  # those of its type
    shapes: tuple[Shape, ...]  # of its inputs
    blobs: tuple[Array, ...]  # its weights in Caffe's order
    source: str

    @property
    def shape(self) -> Shape:
        return self.shapes[0]

    def map_shape(self) -> tuple[int, int, int]:
        """Return channels, height and width of the only input."""
        if len(self.shape) != 3:
            raise self.layer.error(
                f"must take a map of 3 axes, got {_text(self.shape)}"
            )
        return self.shape[0], self.shape[1], self.shape[2]

    def count(self, name: str, default: int) -> int:
        """Return a count, at least 1; with 0 as default the file must have it."""
        value = self.parameters.one(name, default)
        if value < 1:
            raise self.layer.error(f"must have {name} of at least 1, got {value}")
        return value

    def pair(self, name: str, default: int, least: int = 1) -> Pair:
        """Return values for height and width: `stride` once or twice, `stride_h` and `_w`."""
        values = self.parameters.many(name)
        sides = [f"{name.removesuffix('_size')}_{side}" for side in "hw"]
        if any(map(self.parameters.many, sides)):
            if values:
                raise self.layer.error(
                    f"must have {name} or {' and '.join(sides)}, got both"
                )
            values = [self.parameters.one(side, default) for side in sides]
        values = values or [default]
        if len(values) > 2 or not all(least <= value <= MAX_WINDOW for value in values):
            raise self.layer.error(
                f"must have 1 or 2 values of {name}, {least} to {MAX_WINDOW}, got {values[:3]}"
            )
        return values[0], values[-1]

    def choice(self, name: str, *allowed: str) -> str:
        """Return one of the allowed names, the first if the file has none."""
        value = self.parameters.one(name, allowed[0])
        if value not in allowed:
            raise self.layer.error(
                f"must have {name} {' or '.join(allowed)}, got {value}"
            )
        return value

    def axis(self, name: str, default: int) -> int:
        """Return an axis, counted with the batch, which is 0 and not allowed."""
        axes = len(self.shape) + 1
        value = self.parameters.one(name, default)
        axis = value
        if value < 0:
            axis += axes
        if not 1 <= axis < axes:
            raise self.layer.error(
                f"must have {name} between 1 and {axes - 1}, got {value}"
            )
        return axis

    def weights(self, **expected: Shape | None) -> dict[str, Array]:
        """Return the blobs by these names; their shapes must be these, without those of None."""
        wanted = {name: shape for name, shape in expected.items() if shape is not None}
        shapes = [blob.shape for blob in self.blobs]
        # the first generation stores every blob with four axes, (1, 1, 1, 96) for (96)
        if list(map(_bare, shapes)) != list(map(_bare, wanted.values())):
            raise WeightsError(
                f"{self.source}: {self.layer.title} must have weights "
                f"of {_text(*wanted.values())}, got {_text(*shapes) or 'none'}; "
                "give the weights of this network"
            )
        pairs = zip(wanted.items(), self.blobs, strict=True)
        return {name: blob.reshape(shape) for (name, shape), blob in pairs}


def _bare(shape: Shape) -> Shape:
    """Return a shape without the ones in front."""
    while shape and shape[0] == 1:
        shape = shape[1:]
    return shape


def _text(*shapes: Shape) -> str:
    """Return shapes for an error message: 96x3x11x11, 96."""
    texts = ["x".join(map(str, shape)) or "1" for shape in shapes[:MAX_SHAPES_LISTED]]
    if len(shapes) > MAX_SHAPES_LISTED:
        texts.append("...")
    return ", ".join(texts)


def _of_bias(bias: bool, outputs: int) -> Shape | None:
    """Return the shape of a layer's bias; None if it has none."""
    if bias:
        return (outputs,)
    return None


def _convolution(part: _Part) -> Built:
    channels, *size = part.map_shape()
    outputs = part.count("num_output", 0)
    groups = part.count("group", 1)
    kernel = part.pair("kernel_size", 0)
    stride = part.pair("stride", 1)
    pad = part.pair("pad", 0, least=0)
    dilation = part.pair("dilation", 1)
    if part.parameters.one("axis", 1) != 1:
        raise part.layer.error("must have axis 1")
    if channels % groups or outputs % groups:
        raise part.layer.error(
            f"must have channels in multiples of its {groups} groups, got {channels} in and "
            f"{outputs} out"
        )
    bias = part.parameters.one("bias_term", True)
    weight = (outputs, channels // groups, *kernel)
    tensors = part.weights(weight=weight, bias=_of_bias(bias, outputs))
    for i in (0, 1):
        reach = dilation[i] * (kernel[i] - 1) + 1
        size[i] = (size[i] + 2 * pad[i] - reach) // stride[i] + 1
    module = nn.Conv2d(channels, outputs, kernel, stride, pad, dilation, groups, bias)
    return Built(module, (outputs, *size), tensors)


def _inner_product(part: _Part) -> Built:
    inputs, outputs = math.prod(part.shape), part.count("num_output", 0)
    if part.axis("axis", 1) != 1:
        raise part.layer.error("must have axis 1")
    bias = part.parameters.one("bias_term", True)
    bias_shape = _of_bias(bias, outputs)
    if part.parameters.one("transpose", False):
        tensors = part.weights(weight=(inputs, outputs), bias=bias_shape)
        tensors["weight"] = tensors["weight"].T
    else:
        tensors = part.weights(weight=(outputs, inputs), bias=bias_shape)
    return Built(nn.Linear(inputs, outputs, bias), (outputs,), tensors)


def _pooling(part: _Part) -> Built:
    channels, *size = part.map_shape()
    average = part.choice("pool", "MAX", "AVE") == "AVE"
    stride, pad = part.pair("stride", 1), part.pair("pad", 0, least=0)
    if part.parameters.one("global_pooling", False):
        if pad != (0, 0) or stride != (1, 1):
            raise part.layer.error("with global_pooling must have pad 0 and stride 1")
        module: nn.Module = nn.AdaptiveMaxPool2d(1)
        if average:
            module = nn.AdaptiveAvgPool2d(1)
        return Built(module, (channels, 1, 1))
    kernel = part.pair("kernel_size", 0)
    if pad[0] >= kernel[0] or pad[1] >= kernel[1]:
        raise part.layer.error(f"must have pad below its kernel {kernel}, got {pad}")
    if channels * (size[0] + 2 * pad[0]) * (size[1] + 2 * pad[1]) > MAX_VALUES:
        raise part.layer.error(f"must not pad {_text(part.shape)} with {pad}")
    ceil = part.choice("round_mode", "CEIL", "FLOOR") == "CEIL"
    pool = modules.Pool(average, kernel, stride, pad, ceil)
    out = pool.output_size((size[0], size[1]))
    if any((out[i] - 1) * stride[i] - pad[i] >= size[i] for i in (0, 1)):
        # kernel below stride: Caffe itself makes -FLT_MAX of a window without a pixel
        raise part.layer.error(f"has a window outside its input of {_text(part.shape)}")
    return Built(pool, (channels, *out))


def _lrn(part: _Part) -> Built:
    part.map_shape()
    size = part.count("local_size", 5)
    if size % 2 == 0 or size > MAX_WINDOW:
        raise part.layer.error(
            f"must have an odd local_size up to {MAX_WINDOW}, got {size}"
        )
    region = part.choice("norm_region", "ACROSS_CHANNELS", "WITHIN_CHANNEL")
    within = region == "WITHIN_CHANNEL"
    alpha = part.parameters.one("alpha", 1.0)
    beta = part.parameters.one("beta", 0.75)
    k = part.parameters.one("k", 1.0)
    return Built(modules.LocalResponseNorm(size, alpha, beta, k, within), part.shape)


def _relu(part: _Part) -> nn.Module:
    slope = part.parameters.one("negative_slope", 0.0)
    if slope:
        return nn.LeakyReLU(slope)
    return nn.ReLU()


def _prelu(part: _Part) -> Built:
    slopes = part.shape[0]
    if part.parameters.one("channel_shared", False):
        slopes = 1
    return Built(nn.PReLU(slopes), part.shape, part.weights(weight=(slopes,)))


def _batch_norm(part: _Part) -> Built:
    if not part.parameters.one("use_global_stats", True):
        raise part.layer.error(
            "normalises by the batch, so that an image's features would depend on the others; "
            "remove `use_global_stats: false`"
        )
    eps = part.parameters.one("eps", 1e-5)
    if eps < 0:
        raise part.layer.error(f"must have eps of at least 0, got {eps:g}")
    channels = (part.shape[0],)
    stored = part.weights(mean=channels, var=channels, factor=(1,))
    # Caffe stores sums and their divisor; 0 before any training
    factor = float(stored["factor"][0])
    scale = 0.0
    if factor:
        scale = 1.0 / factor
    with np.errstate(all="ignore"):
        # numbers that are not finite are found with all other weights
        tensors = {
            "running_mean": stored["mean"] * scale,
            "running_var": stored["var"] * scale,
        }
    kind: Callable[..., nn.Module] = nn.BatchNorm1d
    if len(part.shape) == 3:
        kind = nn.BatchNorm2d
    return Built(kind(*channels, eps=eps, affine=False), part.shape, tensors)


def _scale(part: _Part) -> Built:
    if part.axis("axis", 1) != 1 or part.parameters.one("num_axes", 1) != 1:
        raise part.layer.error("must have axis 1 and num_axes 1")
    channels = part.shape[0]
    bias = part.parameters.one("bias_term", False)
    tensors = part.weights(weight=(channels,), bias=_of_bias(bias, channels))
    return Built(Scale(channels, bias), part.shape, tensors)


def _eltwise(part: _Part) -> Built:
    operation = part.choice("operation", "SUM", "PROD", "MAX")
    coefficients = tuple(part.parameters.many("coeff"))
    if not all(map(math.isfinite, coefficients)):
        raise part.layer.error(f"must have finite coeff, got {coefficients[:3]}")
    if coefficients and (operation != "SUM" or len(coefficients) != len(part.shapes)):
        raise part.layer.error(
            f"must have one coeff per input of a SUM, got {len(coefficients)} for "
            f"{len(part.shapes)} inputs and {operation}"
        )
    if len(set(part.shapes)) > 1:
        raise part.layer.error(
            f"must have inputs of one shape, got {_text(*part.shapes)}"
        )
    functions = {
        "SUM": functools.partial(modules.weighted_sum, coefficients=coefficients),
        "PROD": functools.partial(functools.reduce, torch.mul),
        "MAX": functools.partial(functools.reduce, torch.maximum),
    }
    return Built(Join(functions[operation]), part.shape)


def _concat(part: _Part) -> Built:
    name = "axis"
    if part.parameters.many("concat_dim"):
        name = "concat_dim"
    axis = part.axis(name, 1)
    others = {(*shape[: axis - 1], *shape[axis:]) for shape in part.shapes}
    if len(others) > 1 or len({len(shape) for shape in part.shapes}) > 1:
        raise part.layer.error(
            f"must have inputs that differ in axis {axis} only, got {_text(*part.shapes)}"
        )
    joined = list(part.shape)
    joined[axis - 1] = sum(shape[axis - 1] for shape in part.shapes)
    return Built(Join(functools.partial(torch.cat, dim=axis)), tuple(joined))


def _flatten(part: _Part) -> Built:
    first, last = part.axis("axis", 1), part.axis("end_axis", -1)
    if first > last:
        raise part.layer.error(f"must have axis up to end_axis, got {first} and {last}")
    middle = math.prod(part.shape[first - 1 : last])
    shape = (*part.shape[: first - 1], middle, *part.shape[last:])
    return Built(nn.Flatten(first, last), shape)


def _reshape(part: _Part) -> Built:
    dims = part.parameters.child("shape").many("dim")
    axis = part.parameters.one("axis", 0)
    num_axes = part.parameters.one("num_axes", -1)
    if (axis, num_axes) != (0, -1) or dims[:1] != [0]:
        raise part.layer.error(
            "must keep the batch: a shape that begins with dim: 0, axis 0"
        )
    count = math.prod(part.shape)
    shape = list(dims[1:])
    for i, length in enumerate(part.shape[: len(shape)]):
        if shape[i] == 0:
            shape[i] = length
    if shape.count(-1) == 1:
        others = -math.prod(shape)
        unknown = shape.index(-1)
        shape[unknown] = 0
        if others > 0:
            shape[unknown] = count // others
    if len(shape) > 32 or not shape or min(shape) < 1 or math.prod(shape) != count:
        raise part.layer.error(
            f"must keep {count} values of {_text(part.shape)}, got dims {dims}"
        )
    module = nn.Sequential(nn.Flatten(), nn.Unflatten(1, tuple(shape)))
    return Built(module, tuple(shape))


def _plain(module: Callable[[_Part], nn.Module]) -> Callable[[_Part], Built]:
    return lambda part: Built(module(part), part.shape)


# type -> field of its parameters, builder
_BUILDERS: Mapping[str, tuple[str, Callable[[_Part], Built]]] = {
    "BatchNorm": ("batch_norm_param", _batch_norm),
    "Concat": ("concat_param", _concat),
    "Convolution": ("convolution_param", _convolution),
    "Dropout": (
        "dropout_param",
        _plain(lambda _: nn.Identity()),
    ),  # Caffe scales while training
    "ELU": (
        "elu_param",
        _plain(lambda part: nn.ELU(part.parameters.one("alpha", 1.0))),
    ),
    "Eltwise": ("eltwise_param", _eltwise),
    "Flatten": ("flatten_param", _flatten),
    "InnerProduct": ("inner_product_param", _inner_product),
    "LRN": ("lrn_param", _lrn),
    "PReLU": ("prelu_param", _prelu),
    "Pooling": ("pooling_param", _pooling),
    "ReLU": ("relu_param", _plain(_relu)),
    "Reshape": ("reshape_param", _reshape),
    "Scale": ("scale_param", _scale),
    "Sigmoid": ("sigmoid_param", _plain(lambda _: nn.Sigmoid())),
    "Softmax": ("softmax_param", _plain(lambda part: nn.Softmax(part.axis("axis", 1)))),
    "TanH": ("tanh_param", _plain(lambda _: nn.Tanh())),
}

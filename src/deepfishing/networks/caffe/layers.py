"""Stage 2, networks: one Caffe layer as a torch module.

Comes in: a layer, the shapes of its inputs (of one image, without the batch) and its blobs. Goes
out: the module, still without memory for its weights, the shape of its output, and the weights,
which are checked against both.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import nn

from deepfishing.networks.caffe.blobs import Array
from deepfishing.networks.caffe.graph import Layer
from deepfishing.networks.caffe.modules import (
    Concat,
    Eltwise,
    LocalResponseNorm,
    Pool,
    Reshape,
    Scale,
)
from deepfishing.networks.caffe.part import MAX_WINDOW, Part, Shape, shape_text
from deepfishing.networks.caffe.schema import FIELDS, Message

MAX_VALUES = 2**27  # of one layer's output for one image: half a gigabyte


@dataclass(frozen=True, eq=False)
class Built:
    """A module on the meta device, its output's shape, and its tensors by their torch names."""

    module: nn.Module
    shape: Shape
    tensors: Mapping[str, Array] = field(default_factory=dict)


def build(layer: Layer, shapes: Sequence[Shape], blobs: Sequence[Array], source: str) -> Built:
    """Make the module of a layer.

    Parameters
    ----------
    layer : Layer
        From the file.
    shapes : sequence of tuples of int
        Of its inputs, for one image.
    blobs : sequence of arrays
        Its weights in Caffe's order.
    source : str
        The file that the blobs come from, for error messages.

    Examples
    --------
    >>> relu = Layer("relu1", "ReLU", ("a",), ("a",), Message("LayerParameter", "net.prototxt"))
    >>> build(relu, [(96, 55, 55)], [], "net.caffemodel").module
    ReLU()
    """
    if layer.type not in _BUILDERS:
        raise layer.error(f"is not supported; supported are {', '.join(sorted(_BUILDERS))}")
    parameter, several, builder = _BUILDERS[layer.type]
    if not shapes or (len(shapes) > 1 and not several):
        raise layer.error(f"must have {'inputs' if several else 'one input'}, got {len(shapes)}")
    # the first generation has no field for the parameters that came later: all are defaults
    given = Message(FIELDS["LayerParameter"][parameter].kind, layer.message.where)
    if parameter in FIELDS[layer.message.kind]:
        given = layer.message.child(parameter)
    if given.unknown:
        raise layer.error(
            "has parameters that Caffe does not define, so what it computes is not known: "
            f"{', '.join(given.unknown[:3])}; give a deploy prototxt without them"
        )
    part = Part(layer, given, tuple(shapes), tuple(blobs), source)
    with torch.device("meta"):
        built = builder(part)
    if min(built.shape) < 1 or math.prod(built.shape) > MAX_VALUES:
        raise layer.error(
            f"makes an output of {shape_text(built.shape)} of {shape_text(shapes[0])}; "
            f"each side must be at least 1, and all at most {MAX_VALUES:,} values"
        )
    return built


def _convolution(part: Part) -> Built:
    channels, height, width = part.map_shape()
    outputs, groups = part.count("num_output", 0), part.count("group", 1)
    kernel = part.pair("kernel_size", 0)
    stride = part.pair("stride", 1)
    pad = part.pair("pad", 0, least=0)
    dilation = part.pair("dilation", 1)
    if part.given.one("axis", 1) != 1:
        raise part.layer.error("must have axis 1")
    if channels % groups or outputs % groups:
        raise part.layer.error(
            f"must have channels in multiples of its {groups} groups, got {channels} in and "
            f"{outputs} out"
        )
    bias = {"bias": (outputs,)} if part.given.one("bias_term", True) else {}
    tensors = part.weights(weight=(outputs, channels // groups, *kernel), **bias)
    size = [
        (length + 2 * pad[i] - dilation[i] * (kernel[i] - 1) - 1) // stride[i] + 1
        for i, length in enumerate((height, width))
    ]
    module = nn.Conv2d(channels, outputs, kernel, stride, pad, dilation, groups, bool(bias))
    return Built(module, (outputs, *size), tensors)


def _inner_product(part: Part) -> Built:
    inputs, outputs = math.prod(part.shape), part.count("num_output", 0)
    if part.axis("axis", 1) != 1:
        raise part.layer.error("must have axis 1")
    bias = {"bias": (outputs,)} if part.given.one("bias_term", True) else {}
    if part.given.one("transpose", False):
        tensors = part.weights(weight=(inputs, outputs), **bias)
        tensors["weight"] = tensors["weight"].T
    else:
        tensors = part.weights(weight=(outputs, inputs), **bias)
    return Built(nn.Linear(inputs, outputs, bool(bias)), (outputs,), tensors)


def _pooling(part: Part) -> Built:
    channels, *size = part.map_shape()
    average = part.choice("pool", "MAX", "AVE") == "AVE"
    if part.given.one("global_pooling", False):
        if part.pair("pad", 0, 0) != (0, 0) or part.pair("stride", 1) != (1, 1):
            raise part.layer.error("with global_pooling must have pad 0 and stride 1")
        module = nn.AdaptiveAvgPool2d(1) if average else nn.AdaptiveMaxPool2d(1)
        return Built(module, (channels, 1, 1))
    kernel = part.pair("kernel_size", 0)
    stride = part.pair("stride", 1)
    pad = part.pair("pad", 0, least=0)
    if pad[0] >= kernel[0] or pad[1] >= kernel[1]:
        raise part.layer.error(f"must have pad below its kernel {kernel}, got {pad}")
    if channels * (size[0] + 2 * pad[0]) * (size[1] + 2 * pad[1]) > MAX_VALUES:
        raise part.layer.error(f"must not pad {shape_text(part.shape)} with {pad}")
    ceil = part.choice("round_mode", "CEIL", "FLOOR") == "CEIL"
    pool = Pool(average, kernel, stride, pad, ceil)
    out = pool.output_size((size[0], size[1]))
    if any((out[i] - 1) * stride[i] - pad[i] >= size[i] for i in (0, 1)):
        # kernel below stride: Caffe itself makes -FLT_MAX of a window without a pixel
        raise part.layer.error(f"has a window outside its input of {shape_text(part.shape)}")
    return Built(pool, (channels, *out))


def _lrn(part: Part) -> Built:
    part.map_shape()
    size = part.count("local_size", 5)
    if size % 2 == 0 or size > MAX_WINDOW:
        raise part.layer.error(f"must have an odd local_size up to {MAX_WINDOW}, got {size}")
    region = part.choice("norm_region", "ACROSS_CHANNELS", "WITHIN_CHANNEL")
    module = LocalResponseNorm(
        size,
        alpha=part.given.one("alpha", 1.0),
        beta=part.given.one("beta", 0.75),
        k=part.given.one("k", 1.0),
        within=region == "WITHIN_CHANNEL",
    )
    return Built(module, part.shape)


def _relu(part: Part) -> Built:
    slope = part.given.one("negative_slope", 0.0)
    return Built(nn.LeakyReLU(slope) if slope else nn.ReLU(), part.shape)


def _prelu(part: Part) -> Built:
    slopes = 1 if part.given.one("channel_shared", False) else part.shape[0]
    return Built(nn.PReLU(slopes), part.shape, part.weights(weight=(slopes,)))


def _elu(part: Part) -> Built:
    return Built(nn.ELU(part.given.one("alpha", 1.0)), part.shape)


def _batch_norm(part: Part) -> Built:
    if not part.given.one("use_global_stats", True):
        raise part.layer.error(
            "normalises by the batch, so that an image's features would depend on the others; "
            "remove `use_global_stats: false`"
        )
    eps = part.given.one("eps", 1e-5)
    if eps < 0:
        raise part.layer.error(f"must have eps of at least 0, got {eps:g}")
    channels = (part.shape[0],)
    stored = part.weights(mean=channels, variance=channels, factor=(1,))
    # Caffe stores sums and by what to divide them; 0 before any training
    factor = float(stored["factor"][0])
    scale = 1.0 / factor if factor else 0.0
    with np.errstate(all="ignore"):  # what is not finite is found with all other weights
        tensors = {
            "running_mean": stored["mean"] * scale,
            "running_var": stored["variance"] * scale,
        }
    kind = nn.BatchNorm2d if len(part.shape) == 3 else nn.BatchNorm1d
    module = kind(*channels, eps=eps, affine=False)
    return Built(module, part.shape, tensors)


def _scale(part: Part) -> Built:
    if part.axis("axis", 1) != 1 or part.given.one("num_axes", 1) != 1:
        raise part.layer.error("must have axis 1 and num_axes 1")
    channels = (part.shape[0],)
    bias = part.given.one("bias_term", False)
    tensors = part.weights(weight=channels, **({"bias": channels} if bias else {}))
    return Built(Scale(*channels, bias), part.shape, tensors)


def _eltwise(part: Part) -> Built:
    operation = part.choice("operation", "SUM", "PROD", "MAX")
    coefficients = tuple(part.given.many("coeff"))
    if not all(map(math.isfinite, coefficients)):
        raise part.layer.error(f"must have finite coeff, got {coefficients[:3]}")
    if coefficients and (operation != "SUM" or len(coefficients) != len(part.shapes)):
        raise part.layer.error(
            f"must have one coeff per input of a SUM, got {len(coefficients)} for "
            f"{len(part.shapes)} inputs and {operation}"
        )
    if len(set(part.shapes)) > 1:
        raise part.layer.error(f"must have inputs of one shape, got {shape_text(*part.shapes)}")
    return Built(Eltwise(operation, coefficients), part.shape)


def _concat(part: Part) -> Built:
    axis = part.axis("concat_dim" if part.given.has("concat_dim") else "axis", 1)
    others = {(*shape[: axis - 1], *shape[axis:]) for shape in part.shapes}
    if len(others) > 1 or len({len(shape) for shape in part.shapes}) > 1:
        raise part.layer.error(
            f"must have inputs that differ in axis {axis} only, got {shape_text(*part.shapes)}"
        )
    joined = list(part.shape)
    joined[axis - 1] = sum(shape[axis - 1] for shape in part.shapes)
    return Built(Concat(axis), tuple(joined))


def _flatten(part: Part) -> Built:
    first, last = part.axis("axis", 1), part.axis("end_axis", -1)
    if first > last:
        raise part.layer.error(f"must have axis up to end_axis, got {first} and {last}")
    middle = math.prod(part.shape[first - 1 : last])
    return Built(nn.Flatten(first, last), (*part.shape[: first - 1], middle, *part.shape[last:]))


def _reshape(part: Part) -> Built:
    dims = part.given.child("shape").many("dim")
    if part.given.one("axis", 0) != 0 or part.given.one("num_axes", -1) != -1 or dims[:1] != [0]:
        raise part.layer.error("must keep the batch: a shape that begins with dim: 0, axis 0")
    count = math.prod(part.shape)
    shape = [part.shape[i] if d == 0 and i < len(part.shape) else d for i, d in enumerate(dims[1:])]
    if shape.count(-1) == 1:
        rest = -math.prod(shape)
        shape[shape.index(-1)] = count // rest if rest > 0 else 0
    if len(shape) > 32 or not shape or min(shape) < 1 or math.prod(shape) != count:
        raise part.layer.error(
            f"must keep {count} values of {shape_text(part.shape)}, got dims {dims}"
        )
    return Built(Reshape(tuple(shape)), tuple(shape))


def _softmax(part: Part) -> Built:
    return Built(nn.Softmax(part.axis("axis", 1)), part.shape)


def _plain(module: Callable[[], nn.Module]) -> Callable[[Part], Built]:
    return lambda part: Built(module(), part.shape)


# type -> field of its parameters, whether it takes several inputs, builder
_BUILDERS: Mapping[str, tuple[str, bool, Callable[[Part], Built]]] = {
    "BatchNorm": ("batch_norm_param", False, _batch_norm),
    "Concat": ("concat_param", True, _concat),
    "Convolution": ("convolution_param", False, _convolution),
    "Dropout": ("dropout_param", False, _plain(nn.Identity)),  # Caffe scales while training
    "ELU": ("elu_param", False, _elu),
    "Eltwise": ("eltwise_param", True, _eltwise),
    "Flatten": ("flatten_param", False, _flatten),
    "InnerProduct": ("inner_product_param", False, _inner_product),
    "LRN": ("lrn_param", False, _lrn),
    "PReLU": ("prelu_param", False, _prelu),
    "Pooling": ("pooling_param", False, _pooling),
    "ReLU": ("relu_param", False, _relu),
    "Reshape": ("reshape_param", False, _reshape),
    "Scale": ("scale_param", False, _scale),
    "Sigmoid": ("sigmoid_param", False, _plain(nn.Sigmoid)),
    "Softmax": ("softmax_param", False, _softmax),
    "TanH": ("tanh_param", False, _plain(nn.Tanh)),
}

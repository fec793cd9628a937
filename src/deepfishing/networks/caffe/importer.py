"""Import of a classifier in Caffe's files as a `Network`.

The files are a `.caffemodel` of either generation and optionally the `.prototxt` that describes the
network and a `.binaryproto` with its mean image. Modules have the names of Caffe's layers (`conv1`,
`pool5`, `fc7`, `inception_3a/1x1`). Nothing in the files is executed. Layers that the class scores
do not depend on are left out: labels, losses, accuracies, the auxiliary classifiers of a training
net. A blob may be overwritten (`top` equal to `bottom`): a layer reads the state that the layers
before it in the file left, so a file cannot describe a cycle.
"""

from __future__ import annotations

import hashlib
import math
import warnings
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import nn

from deepfishing.core.rank_one import Array
from deepfishing.errors import WeightsError
from deepfishing.images.preprocess import Preprocess
from deepfishing.networks.caffe.files import (
    given_mean,
    is_mean_pixel,
    read_binary,
    read_prototxt,
)
from deepfishing.networks.caffe.layers import MAX_VALUES, build
from deepfishing.networks.caffe.modules import CaffeNet
from deepfishing.networks.caffe.schema import V1_TYPES, Layer, Message, blob_array
from deepfishing.networks.network import Network, cast, ready, torch_target
from deepfishing.networks.reference import (
    FILES,
    MEAN,
    PROTOTXT,
    WEIGHTS,
    NetworkFile,
    Source,
)
from deepfishing.networks.weights import load_into
from deepfishing.networks.zoo import CAFFE

# Their first top is the image.
SOURCES = frozenset(
    {"Input", "Data", "ImageData", "MemoryData", "WindowData", "HDF5Data"}
)
# They measure the scores, and follow the layer that computes them.
_MEASURES = frozenset({"Accuracy", "ArgMax", "Silence", "HDF5Output"})
# They turn scores into probabilities, or compare them with labels.
_ENDS = frozenset(
    {
        "Softmax",
        "SoftmaxWithLoss",
        "MultinomialLogisticLoss",
        "InfogainLoss",
        "HingeLoss",
    }
    | {"Sigmoid", "SigmoidCrossEntropyLoss", "EuclideanLoss"}
)
_NO_LAYER = -1  # in place of the layer that computes an input, where there is none
_ELEMENT_WISE = frozenset(
    {
        "ReLU",
        "PReLU",
        "ELU",
        "Sigmoid",
        "TanH",
        "Dropout",
        "BatchNorm",
        "Scale",
        "Flatten",
    }
)
# Fields of a data layer with its preprocessing: the current one, and those of old files.
_DATA_FIELDS = (
    "transform_param",
    "data_param",
    "image_data_param",
    "window_data_param",
)


def load_caffe(
    caffemodel: str | Path,
    prototxt: str | Path | None = None,
    mean: str | Path | None = None,
    *,
    device: str | torch.device = "cpu",
    dtype: str = "float32",
    preprocess: Preprocess | None = None,
) -> Network:
    """Load a feed-forward classifier from Caffe's files.

    Without `prototxt` the definition inside the caffemodel is used; of a training version the
    layers for the phase TEST are taken. `mean` is a mean image, `.binaryproto`, whose mean pixel is
    subtracted, or the pixel itself, `"104,117,123"`: blue, green, red; without it the `mean_value`
    of the prototxt's or else the caffemodel's data layer, or else the mean pixel of ImageNet. A
    `mean_file` that they name is not looked for; a warning says which one it is. `preprocess` goes
    before all of these. `notes` of the network say which mean is used.

    A layer's name is its module's path; a dot, comma, semicolon, @ or blank in it becomes `_`, and
    a name that torch needs for itself gets `_` behind it. The module returns the scores before the
    Softmax.
    """
    torch_device, torch_dtype = torch_target(device, dtype)
    path = Path(caffemodel)
    trained = read_layers(read_binary(path, "NetParameter"))
    # its rules were applied when the training net was made, not for testing
    layers = trained
    if prototxt is not None:
        net = read_prototxt(Path(prototxt))
        layers = in_test_phase(net, read_layers(net))
    graph = trace(layers)
    notes: tuple[str, ...] = ()
    if preprocess is None:
        data = [layer for layer in (graph.source, *trained) if layer.type in SOURCES]
        pixel, origin, mean_file = _mean(data, mean)
        preprocess = _preprocess(data, pixel)
        numbers = ", ".join(f"{value:.6g}" for value in pixel)
        notes = (f"mean pixel {numbers} (blue, green, red): {origin}",)
        if mean_file:
            warnings.warn(
                f"{path.name} was trained with the mean file {mean_file!r}, which was not given; "
                f"{notes[0]}; pass --preprocess FILE or --preprocess BLUE,GREEN,RED",
                stacklevel=2,
            )
    names = _module_names(graph)
    blobs = _blobs(trained, path)
    module, arrays = _assemble(graph, names, preprocess.size, blobs, path)
    wide = np.float32
    if torch_dtype == torch.float64:
        wide = np.float64  # type: ignore[assignment]
    tensors = {}
    with np.errstate(over="ignore"):
        # `load_into` refuses numbers that are not finite
        for name, array in arrays.items():
            # the only copy of a weight: from the mapped file to the tensor
            tensors[name] = torch.from_numpy(np.array(array, dtype=wide, order="C"))
    load_into(module, cast(tensors, torch_dtype), str(path))
    files = {WEIGHTS: NetworkFile.of(path)}
    sha256 = files[WEIGHTS].sha256
    if prototxt is not None:
        files[PROTOTXT] = NetworkFile.of(prototxt)
        both = sha256 + files[PROTOTXT].sha256
        sha256 = hashlib.sha256(both.encode()).hexdigest()
    if mean is not None and not is_mean_pixel(mean):
        files[MEAN] = NetworkFile.of(mean)
    numbered = {k: names[i] for k, i in numbered_layers(graph).items()}
    return Network(
        name=path.stem,
        module=ready(module, torch_device),
        layers=numbered,
        preprocess=preprocess,
        weights_sha256=sha256,
        source=Source(kind=FILES, files=files),
        notes=notes,
    )


@dataclass(frozen=True, eq=False)
class Graph:
    """Layers that the class scores depend on."""

    source: Layer  # the input layer
    layers: tuple[Layer, ...]  # in the order in which they run
    # per layer: 0 is the image, i the output of the i-th layer
    inputs: tuple[tuple[int, ...], ...]


def read_layers(net: Message) -> list[Layer]:
    """Return all layers of a network; inputs that the file lists separately come first."""
    old, new = net.many("layers"), net.many("layer")
    if old and new:
        raise net.error(
            "a network must have `layer` or `layers`, got both; use one generation"
        )
    if any(layer.many("layer") for layer in old):
        raise net.error(
            "the format of Caffe before 2014 (V0) is not supported; convert the file with Caffe's "
            "upgrade_net_proto_text or upgrade_net_proto_binary"
        )
    if not old and not new:
        raise net.error(
            "a network must have layers, got none; is this a Caffe network?"
        )
    shapes = net.many("input_shape")
    dims = net.many("input_dim")
    if dims:  # four numbers per input
        starts = range(0, len(dims), 4)
        shapes = [Message(net.where, {"dim": dims[i : i + 4]}) for i in starts]
    layers = []
    for place, name in enumerate(net.many("input")):
        parameter = Message(net.where, {"shape": shapes[place : place + 1]})
        message = Message(net.where, {"input_param": [parameter]})
        layers.append(Layer(name, "Input", (), (name,), message))
    for message in old + new:
        if old:
            kind = message.one("type", "NONE")
            kind = V1_TYPES.get(kind, kind)
        else:
            kind = message.one("type", "None")
        bottoms, tops = tuple(message.many("bottom")), tuple(message.many("top"))
        layers.append(Layer(message.one("name", ""), kind, bottoms, tops, message))
    return layers


def in_test_phase(net: Message, layers: Iterable[Layer]) -> list[Layer]:
    """Return the layers that Caffe uses for testing, by rules on phase, level and stage."""
    state = net.child("state")
    level, stages = state.one("level", 0), set(state.many("stage"))

    def applies(rule: Message) -> bool:
        return (
            rule.one("phase", "TEST") == "TEST"
            and rule.one("min_level", level) <= level <= rule.one("max_level", level)
            and stages.issuperset(rule.many("stage"))
            and stages.isdisjoint(rule.many("not_stage"))
        )

    tested = []
    for layer in layers:
        include = layer.message.many("include")
        exclude = layer.message.many("exclude")
        if include and exclude:
            raise layer.error("must have include or exclude rules, got both")
        if include:
            is_used = any(map(applies, include))
        else:
            is_used = not any(map(applies, exclude))
        if is_used:
            tested.append(layer)
    return tested


def trace(layers: Sequence[Layer]) -> Graph:
    """Find the class scores: the last layer's output, or its input if it is a loss or SoftMax."""
    takes = _connections(layers)

    def below(place: int, most: int | None = None) -> list[int]:
        """Return the layers that compute the inputs, or the first few inputs, of a layer."""
        inputs = takes[place][:most]
        for name, taken in zip(layers[place].bottoms, inputs, strict=False):
            if taken == _NO_LAYER:
                raise layers[place].error(
                    f"takes {name!r}, which no layer before it makes; check its bottom"
                )
        return inputs

    last = []
    for place, layer in enumerate(layers):
        if layer.type not in _MEASURES | SOURCES:
            last = [place]
    while last and layers[last[0]].type in _ENDS:
        last = below(last[0], most=1)
    if not last:
        raise layers[-1].error(
            "ends a file without class scores; is this a classifier?"
        )
    end = last[0]
    needed = {end}
    for place in range(end, -1, -1):  # inputs are outputs of layers before
        if place in needed:
            needed.update(below(place))
    sources = [place for place in sorted(needed) if layers[place].type in SOURCES]
    if len(sources) != 1:
        names = ", ".join(repr(layers[place].name) for place in sources[:5]) or "none"
        raise layers[end].error(f"must depend on one image input, got {names}")
    run = sorted(needed - set(sources))
    if not run:
        raise layers[end].error(
            "is the only layer; a network must have layers after its input"
        )
    number = {place: i for i, place in enumerate(sources + run)}
    inputs = []
    for place in run:
        inputs.append(tuple(number[taken] for taken in takes[place]))
    return Graph(
        source=layers[sources[0]],
        layers=tuple(layers[place] for place in run),
        inputs=tuple(inputs),
    )


def _connections(layers: Sequence[Layer]) -> list[list[int]]:
    """Return for each layer and bottom the last layer that has computed it, or `_NO_LAYER`."""
    made: dict[str, int] = {}
    takes: list[list[int]] = []
    for place, layer in enumerate(layers):
        takes.append([made.get(name, _NO_LAYER) for name in layer.bottoms])
        for top in layer.tops:
            if top in made and top not in layer.bottoms:
                raise layer.error(
                    f"makes {top!r}, which {layers[made[top]].name!r} has made"
                )
        # a split's tops are its bottom; any other second top (a label, a mask) is not followed
        origin = place
        tops = layer.tops[:1]
        if layer.type == "Split":
            tops = layer.tops
            if layer.bottoms and takes[-1][0] != _NO_LAYER:
                origin = takes[-1][0]
        made.update(dict.fromkeys(tops, origin))
    return takes


def numbered_layers(graph: Graph) -> dict[int, int]:
    """Return the paper's numbers, k -> place in `graph.layers`; the classifier is 8.

    Between it and the scores may be element-wise layers and pooling; between it and the fully
    connected 7 and 6 element-wise layers only.
    """
    numbered: dict[int, int] = {}
    value = len(graph.layers)
    skipped = _ELEMENT_WISE | {"Pooling", "Reshape"}
    types = {"InnerProduct", "Convolution"}
    for k in (8, 7, 6):
        while value and graph.layers[value - 1].type in skipped:
            value = graph.inputs[value - 1][0]
        if not value or graph.layers[value - 1].type not in types:
            break
        numbered[k] = value - 1
        value = graph.inputs[value - 1][0]
        skipped = _ELEMENT_WISE
        types = {"InnerProduct"}
    if not numbered:
        raise graph.layers[-1].error(
            "must follow a fully connected layer or convolution that makes the class scores"
        )
    return dict(sorted(numbered.items()))


def _module_names(graph: Graph) -> list[str]:
    """Return the name of each layer's module, see `load_caffe`."""
    reserved = CaffeNet({}, ())
    names: dict[str, Layer] = {}
    for layer in graph.layers:
        letters = []
        for letter in layer.name:
            if not letter.isprintable() or letter in " .,;@":
                letter = "_"
            letters.append(letter)
        name = "".join(letters)
        if hasattr(reserved, name):
            name += "_"
        if not name:
            raise layer.error("must have a name")
        if name in names:
            raise layer.error(
                f"must have a unique name, got that of {names[name].message.where}"
            )
        names[name] = layer
    return list(names)


def _assemble(
    graph: Graph,
    names: Sequence[str],
    size: int,
    blobs: dict[str, list[Array]],
    path: Path,
) -> tuple[nn.Module, dict[str, Array]]:
    """Return the module without memory for its weights, and the weights in the mapped file."""
    shapes: list[tuple[int, ...]] = [(3, size, size)]
    modules: dict[str, nn.Module] = {}
    arrays: dict[str, Array] = {}
    for name, layer, inputs in zip(names, graph.layers, graph.inputs, strict=True):
        input_shapes = [shapes[i] for i in inputs]
        built = build(layer, input_shapes, blobs.get(layer.name, []), str(path))
        shapes.append(built.shape)
        modules[name] = built.module
        for tensor, array in built.tensors.items():
            arrays[f"{name}.{tensor}"] = array
    if math.prod(shapes[-1][1:]) != 1:
        raise graph.layers[-1].error(
            f"must make one score per class, got a map of {'x'.join(map(str, shapes[-1]))}"
        )
    return CaffeNet(modules, graph.inputs), arrays


def _blobs(layers: Sequence[Layer], path: Path) -> dict[str, list[Array]]:
    """Return the weights of each layer by its name, in the mapped file."""
    blobs_of: dict[str, list[Array]] = {}
    for layer in layers:
        blobs = layer.message.many("blobs")
        if blobs and layer.name in blobs_of:
            raise WeightsError(
                f"{path} must hold the weights of {layer.name!r} once, got two"
            )
        if blobs:
            blobs_of[layer.name] = [blob_array(blob) for blob in blobs]
    return blobs_of


def _mean(
    data: Sequence[Layer], mean: str | Path | None
) -> tuple[Sequence[float], str, str]:
    """Return the mean pixel, its origin, and a mean file that was not given."""
    if mean is not None:
        return given_mean(mean), "as given", ""
    mean_file = ""
    for layer in data:
        message = layer.message
        for parameters in map(message.child, _DATA_FIELDS):
            mean_file = mean_file or parameters.one("mean_file", "")
        pixel = message.child("transform_param").many("mean_value")
        if len(pixel) == 1:
            pixel = pixel * 3
        if pixel and (len(pixel) != 3 or not all(map(math.isfinite, pixel))):
            raise data[0].error(
                f"must have 1 or 3 finite values of mean_value, got {pixel[:4]}"
            )
        if pixel:
            return pixel, f"mean_value of {message.where}", mean_file
    origin = "ImageNet's, since neither --preprocess nor the files give one"
    return CAFFE.mean, origin, mean_file


def _preprocess(data: Sequence[Layer], pixel: Sequence[float]) -> Preprocess:
    """Return the preprocessing of a network's data layers, with this mean pixel."""
    source = data[0]
    size = _input_size(source)
    scale = _scale(data)
    if not 1e-6 < abs(scale) < 1e6:
        raise source.error(f"must have a scale between 1e-6 and 1e6, got {scale}")
    # Caffe multiplies after it has subtracted the mean
    blue, green, red = pixel
    std = (1 / scale, 1 / scale, 1 / scale)
    return Preprocess(
        size=size, short_side=size, mean=(blue, green, red), std=std, order="BGR"
    )


def _scale(data: Sequence[Layer]) -> float:
    """Return the factor on pixels: the first that a data layer has, else 1."""
    for layer in data:
        for name in _DATA_FIELDS:
            parameters = layer.message.child(name)
            if parameters.many("scale"):
                return float(parameters.one("scale", 1.0))
    return 1.0


def _input_size(source: Layer) -> int:
    """Return the side of the square images that an input layer takes."""
    message = source.message
    shape: list[int] = []
    if source.type == "Input" and message.child("input_param").many("shape"):
        shape = message.child("input_param").many("shape")[0].many("dim")[1:]
    elif source.type == "MemoryData":
        memory = message.child("memory_data_param")
        shape = [memory.one(name, 0) for name in ("channels", "height", "width")]
    else:
        crop = max(message.child(name).one("crop_size", 0) for name in _DATA_FIELDS)
        if crop:
            shape = [3, crop, crop]
    if not shape:
        raise source.error("has no size of images; give the deploy prototxt")
    if len(shape) != 3 or shape[0] != 3 or shape[1] != shape[2] or shape[1] < 1:
        raise source.error(
            f"must take square images of 3 channels, got {'x'.join(map(str, shape[:5]))}"
        )
    if math.prod(shape) > MAX_VALUES:
        raise source.error(
            f"must take images of at most {MAX_VALUES:,} values, got {shape}"
        )
    return shape[1]

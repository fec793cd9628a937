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
# They say something about the scores, and stand after what makes them.
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
_NOBODY = -1  # makes what a layer takes
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
# Where a data layer says how pixels become numbers: the first place, and those of old files.
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
    place, torch_dtype = torch_target(device, dtype)
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
        pixel, origin, unread = _mean(data, mean)
        preprocess = _preprocess(data, pixel)
        shown = ", ".join(f"{value:.6g}" for value in pixel)
        notes = (f"mean pixel {shown} (blue, green, red): {origin}",)
        if unread:
            warnings.warn(
                f"{path.name} was trained with the mean file {unread!r}, which was not given; "
                f"{notes[0]}; pass --preprocess FILE or --preprocess BLUE,GREEN,RED",
                stacklevel=2,
            )
    names = _module_names(graph)
    module, arrays = _assemble(
        graph, names, preprocess.size, _blobs(trained, path), path
    )
    wide = np.float64 if torch_dtype == torch.float64 else np.float32
    with np.errstate(over="ignore"):
        # what is not finite afterwards is refused by `load_into`
        # the only copy of a weight: from the mapped file to the tensor
        copies = {
            name: np.array(array, dtype=wide, order="C")
            for name, array in arrays.items()
        }
    tensors = {name: torch.from_numpy(copy) for name, copy in copies.items()}
    load_into(module, cast(tensors, torch_dtype), str(path))
    given = {WEIGHTS: path, PROTOTXT: prototxt}
    given[MEAN] = None if mean is None or is_mean_pixel(mean) else mean
    files = {
        role: NetworkFile.of(file) for role, file in given.items() if file is not None
    }
    # which network this is: the weights, and the prototxt if it came apart from them
    sha256 = "".join(
        files[role].sha256 for role in (WEIGHTS, PROTOTXT) if role in files
    )
    if PROTOTXT in files:
        sha256 = hashlib.sha256(sha256.encode()).hexdigest()
    return Network(
        name=path.stem,
        module=ready(module, place),
        layers={k: names[i] for k, i in numbered_layers(graph).items()},
        preprocess=preprocess,
        weights_sha256=sha256,
        source=Source(kind=FILES, files=files),
        notes=notes,
    )


@dataclass(frozen=True, eq=False)
class Graph:
    """Layers that the class scores depend on."""

    source: Layer  # where the image comes in
    layers: tuple[Layer, ...]  # in the order in which they run
    # per layer: 0 is the image, i the output of the i-th layer
    inputs: tuple[tuple[int, ...], ...]


def read_layers(net: Message) -> list[Layer]:
    """All layers of a network, the inputs that the file lists apart from them first."""
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
    if dims := net.many("input_dim"):  # four numbers per input
        starts = range(0, len(dims), 4)
        shapes = [Message(net.where, {"dim": dims[i : i + 4]}) for i in starts]
    layers = []
    for place, name in enumerate(net.many("input")):
        parameter = Message(net.where, {"shape": shapes[place : place + 1]})
        message = Message(net.where, {"input_param": [parameter]})
        layers.append(Layer(name, "Input", (), (name,), message))
    for message in old + new:
        kind = message.one("type", "NONE" if old else "None")
        kind = V1_TYPES.get(kind, kind) if old else kind
        bottoms, tops = tuple(message.many("bottom")), tuple(message.many("top"))
        layers.append(Layer(message.one("name", ""), kind, bottoms, tops, message))
    return layers


def in_test_phase(net: Message, layers: Iterable[Layer]) -> list[Layer]:
    """The layers that Caffe keeps for testing: rules on phase, level and stage."""
    state = net.child("state")
    level, stages = state.one("level", 0), set(state.many("stage"))

    def met(rule: Message) -> bool:
        return (
            rule.one("phase", "TEST") == "TEST"
            and rule.one("min_level", level) <= level <= rule.one("max_level", level)
            and stages.issuperset(rule.many("stage"))
            and stages.isdisjoint(rule.many("not_stage"))
        )

    kept = []
    for layer in layers:
        include, exclude = layer.message.many("include"), layer.message.many("exclude")
        if include and exclude:
            raise layer.error("must have include or exclude rules, got both")
        if any(map(met, include)) if include else not any(map(met, exclude)):
            kept.append(layer)
    return kept


def trace(layers: Sequence[Layer]) -> Graph:
    """Find the class scores, which the last layer makes, or takes if it is a SoftMax or a loss."""
    takes = _connections(layers)

    def below(place: int, most: int | None = None) -> list[int]:
        """The layers that a layer takes its inputs, or the first few of them, from."""
        for name, taken in list(zip(layers[place].bottoms, takes[place], strict=True))[
            :most
        ]:
            if taken == _NOBODY:
                raise layers[place].error(
                    f"takes {name!r}, which no layer before it makes; check its bottom"
                )
        return takes[place][:most]

    last = [
        i for i, layer in enumerate(layers) if layer.type not in _MEASURES | SOURCES
    ][-1:]
    while last and layers[last[0]].type in _ENDS:
        last = below(last[0], most=1)
    if not last:
        raise layers[-1].error(
            "ends a file without class scores; is this a classifier?"
        )
    end = last[0]
    needed = {end}
    for place in range(end, -1, -1):  # a layer takes what layers before it make
        if place in needed:
            needed.update(below(place))
    sources = [place for place in sorted(needed) if layers[place].type in SOURCES]
    if len(sources) != 1:
        names = ", ".join(repr(layers[place].name) for place in sources[:5]) or "none"
        raise layers[end].error(f"must depend on one image input, got {names}")
    run = sorted(needed - set(sources))
    if not run:
        raise layers[end].error(
            "is all there is; a network must have layers after its input"
        )
    number = {place: i for i, place in enumerate(sources + run)}
    inputs = tuple(tuple(number[taken] for taken in takes[place]) for place in run)
    return Graph(layers[sources[0]], tuple(layers[place] for place in run), inputs)


def _connections(layers: Sequence[Layer]) -> list[list[int]]:
    """Per layer and bottom: the place of the layer that made it last, or `_NOBODY`."""
    made: dict[str, int] = {}
    takes: list[list[int]] = []
    for place, layer in enumerate(layers):
        takes.append([made.get(name, _NOBODY) for name in layer.bottoms])
        for top in layer.tops:
            if top in made and top not in layer.bottoms:
                raise layer.error(
                    f"makes {top!r}, which {layers[made[top]].name!r} has made"
                )
        # a split's tops are its bottom; any other second top (a label, a mask) is not followed
        is_split = layer.type == "Split"
        origin = takes[-1][0] if is_split and layer.bottoms else _NOBODY
        for top in layer.tops if is_split else layer.tops[:1]:
            made[top] = place if origin == _NOBODY else origin
    return takes


def numbered_layers(graph: Graph) -> dict[int, int]:
    """The paper's numbers: k -> place in `graph.layers`, the classifier being 8.

    Between it and the scores may be element-wise layers and pooling; between it and the fully
    connected 7 and 6 element-wise layers only.
    """
    found: dict[int, int] = {}
    value, through = len(graph.layers), _ELEMENT_WISE | {"Pooling", "Reshape"}
    wanted = {"InnerProduct", "Convolution"}
    for k in (8, 7, 6):
        while value and graph.layers[value - 1].type in through:
            value = graph.inputs[value - 1][0]
        if not value or graph.layers[value - 1].type not in wanted:
            break
        found[k] = value - 1
        value, through, wanted = (
            graph.inputs[value - 1][0],
            _ELEMENT_WISE,
            {"InnerProduct"},
        )
    if not found:
        raise graph.layers[-1].error(
            "must follow a fully connected layer or convolution that makes the class scores"
        )
    return dict(sorted(found.items()))


def _module_names(graph: Graph) -> list[str]:
    reserved = CaffeNet({}, ())
    names: dict[str, Layer] = {}
    for layer in graph.layers:
        name = "".join(
            c if c.isprintable() and c not in " .,;@" else "_" for c in layer.name
        )
        name += "_" if hasattr(reserved, name) else ""
        if not name:
            raise layer.error("must have a name")
        if name in names:
            raise layer.error(
                f"must have a name of its own, got that of {names[name].message.where}"
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
    """The module without memory for its weights, and the weights where they are in the file."""
    shapes: list[tuple[int, ...]] = [(3, size, size)]
    modules: dict[str, nn.Module] = {}
    arrays: dict[str, Array] = {}
    for name, layer, inputs in zip(names, graph.layers, graph.inputs, strict=True):
        taken = [shapes[i] for i in inputs]
        built = build(layer, taken, blobs.get(layer.name, []), str(path))
        shapes.append(built.shape)
        modules[name] = built.module
        arrays |= {f"{name}.{tensor}": array for tensor, array in built.tensors.items()}
    if math.prod(shapes[-1][1:]) != 1:
        raise graph.layers[-1].error(
            f"must make one score per class, got a map of {'x'.join(map(str, shapes[-1]))}"
        )
    return CaffeNet(modules, graph.inputs), arrays


def _blobs(layers: Sequence[Layer], path: Path) -> dict[str, list[Array]]:
    found: dict[str, list[Array]] = {}
    for layer in layers:
        blobs = layer.message.many("blobs")
        if blobs and layer.name in found:
            raise WeightsError(
                f"{path} must hold the weights of {layer.name!r} once, got two"
            )
        if blobs:
            found[layer.name] = [blob_array(blob) for blob in blobs]
    return found


def _mean(
    data: Sequence[Layer], mean: str | Path | None
) -> tuple[Sequence[float], str, str]:
    """Return the mean pixel, its origin, and a mean file that was not given."""
    if mean is not None:
        return given_mean(mean), "as given", ""
    unread = ""
    for message in (layer.message for layer in data):
        for given in map(message.child, _DATA_FIELDS):
            unread = unread or given.one("mean_file", "")
        pixel = message.child("transform_param").many("mean_value")
        pixel = pixel * 3 if len(pixel) == 1 else pixel
        if pixel and (len(pixel) != 3 or not all(map(math.isfinite, pixel))):
            raise data[0].error(
                f"must have 1 or 3 finite values of mean_value, got {pixel[:4]}"
            )
        if pixel:
            return pixel, f"mean_value of {message.where}", unread
    return (
        CAFFE.mean,
        "ImageNet's, since neither --preprocess nor the files give one",
        unread,
    )


def _preprocess(data: Sequence[Layer], pixel: Sequence[float]) -> Preprocess:
    source, size = data[0], _input_size(data[0])
    scales = [layer.message.child(name) for layer in data for name in _DATA_FIELDS]
    scale = next(
        (given.one("scale", 1.0) for given in scales if given.many("scale")), 1.0
    )
    if not 1e-6 < abs(scale) < 1e6:
        raise source.error(f"must have a scale between 1e-6 and 1e6, got {scale}")
    # Caffe multiplies after it has subtracted the mean
    blue, green, red = pixel
    std = (1 / scale, 1 / scale, 1 / scale)
    return Preprocess(
        size=size, short_side=size, mean=(blue, green, red), std=std, order="BGR"
    )


def _input_size(source: Layer) -> int:
    message = source.message
    shape: list[int] = []
    if source.type == "Input" and message.child("input_param").many("shape"):
        shape = message.child("input_param").many("shape")[0].many("dim")[1:]
    elif source.type == "MemoryData":
        memory = message.child("memory_data_param")
        shape = [memory.one(name, 0) for name in ("channels", "height", "width")]
    else:
        crops = [message.child(name).one("crop_size", 0) for name in _DATA_FIELDS]
        shape = [3, max(crops), max(crops)] if any(crops) else []
    if not shape:
        raise source.error(
            "does not say how large the images are; give the deploy prototxt"
        )
    if len(shape) != 3 or shape[0] != 3 or shape[1] != shape[2] or shape[1] < 1:
        raise source.error(
            f"must take square images of 3 channels, got {'x'.join(map(str, shape[:5]))}"
        )
    if math.prod(shape) > MAX_VALUES:
        raise source.error(
            f"must take images of at most {MAX_VALUES:,} values, got {shape}"
        )
    return shape[1]

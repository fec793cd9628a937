"""Stage 2, networks: a classifier in Caffe's files -> `Network`.

Comes in: a `.caffemodel` of either generation, and optionally the `.prototxt` that describes the
network and a `.binaryproto` with its mean image. Goes out: the same `Network` as `load_network`
makes, its modules named as Caffe's layers (`conv1`, `pool5`, `fc7`, `inception_3a/1x1`). The files
are read by our own readers, nothing in them is executed, see `wire`.
"""

from __future__ import annotations

import hashlib
import math
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from deepfishing.errors import WeightsError
from deepfishing.images.preprocess import Preprocess
from deepfishing.networks.caffe.graph import (
    SOURCES,
    Graph,
    Layer,
    in_test_phase,
    numbered_layers,
    read_layers,
    trace,
)
from deepfishing.networks.caffe.layers import MAX_VALUES, build
from deepfishing.networks.caffe.modules import CaffeNet
from deepfishing.networks.caffe.prototxt import read_prototxt
from deepfishing.networks.caffe.wire import (
    Array,
    blob_array,
    given_mean,
    is_mean_pixel,
    read_binary,
)
from deepfishing.networks.network import Network, cast, ready, torch_target
from deepfishing.networks.reference import FILES, MEAN, PROTOTXT, WEIGHTS, NetworkFile, Source
from deepfishing.networks.weights import load_into
from deepfishing.networks.zoo import CAFFE

# Where a data layer says how pixels become numbers: the first place, and those of old files.
_DATA_FIELDS = ("transform_param", "data_param", "image_data_param", "window_data_param")


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
    layers = trained  # its rules were applied when the training net was made, not for testing
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
                f"{notes[0]}; pass --mean FILE or --mean BLUE,GREEN,RED",
                stacklevel=2,
            )
    names = _module_names(graph)
    module, arrays = _assemble(graph, names, preprocess.size, _blobs(trained, path), path)
    tensors = {name: _tensor(array, torch_dtype) for name, array in arrays.items()}
    load_into(module, cast(tensors, torch_dtype), str(path))
    given = {WEIGHTS: path, PROTOTXT: prototxt}
    given[MEAN] = None if mean is None or is_mean_pixel(mean) else mean
    files = {role: NetworkFile.of(file) for role, file in given.items() if file is not None}
    return Network(
        name=path.stem,
        module=ready(module, place),
        layers={k: names[i] for k, i in numbered_layers(graph).items()},
        preprocess=preprocess,
        weights_sha256=_hash(files),
        source=Source(kind=FILES, files=files),
        notes=notes,
    )


def _module_names(graph: Graph) -> list[str]:
    reserved = CaffeNet({}, ())
    names: dict[str, Layer] = {}
    for layer in graph.layers:
        name = "".join(c if c.isprintable() and c not in " .,;@" else "_" for c in layer.name)
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
    graph: Graph, names: Sequence[str], size: int, blobs: dict[str, list[Array]], path: Path
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
            raise WeightsError(f"{path} must hold the weights of {layer.name!r} once, got two")
        if blobs:
            found[layer.name] = [blob_array(blob) for blob in blobs]
    return found


def _tensor(array: Array, torch_dtype: torch.dtype) -> Tensor:
    # the only copy of a weight: from the mapped file to the tensor
    wide = np.float64 if torch_dtype == torch.float64 else np.float32
    with np.errstate(over="ignore"):  # what is not finite afterwards is refused by `load_into`
        return torch.from_numpy(np.array(array, dtype=wide, order="C"))


def _mean(data: Sequence[Layer], mean: str | Path | None) -> tuple[Sequence[float], str, str]:
    """The mean pixel that is subtracted, where it comes from, and a file that nobody gave."""
    if mean is not None:
        return given_mean(mean), "as given", ""
    unread = ""
    for message in (layer.message for layer in data):
        for given in map(message.child, _DATA_FIELDS):
            unread = unread or given.one("mean_file", "")
        pixel = message.child("transform_param").many("mean_value")
        pixel = pixel * 3 if len(pixel) == 1 else pixel
        if pixel and (len(pixel) != 3 or not all(map(math.isfinite, pixel))):
            raise data[0].error(f"must have 1 or 3 finite values of mean_value, got {pixel[:4]}")
        if pixel:
            return pixel, f"mean_value of {message.where}", unread
    return CAFFE.mean, "ImageNet's, since neither --mean nor the files give one", unread


def _preprocess(data: Sequence[Layer], pixel: Sequence[float]) -> Preprocess:
    source, size = data[0], _input_size(data[0])
    scales = [layer.message.child(name) for layer in data for name in _DATA_FIELDS]
    scale = next((given.one("scale", 1.0) for given in scales if given.many("scale")), 1.0)
    if not 1e-6 < abs(scale) < 1e6:
        raise source.error(f"must have a scale between 1e-6 and 1e6, got {scale}")
    # Caffe multiplies after it has subtracted the mean
    blue, green, red = pixel
    std = (1 / scale, 1 / scale, 1 / scale)
    return Preprocess(size=size, short_side=size, mean=(blue, green, red), std=std, order="BGR")


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
        raise source.error("does not say how large the images are; give the deploy prototxt")
    if len(shape) != 3 or shape[0] != 3 or shape[1] != shape[2] or shape[1] < 1:
        raise source.error(
            f"must take square images of 3 channels, got {'x'.join(map(str, shape[:5]))}"
        )
    if math.prod(shape) > MAX_VALUES:
        raise source.error(f"must take images of at most {MAX_VALUES:,} values, got {shape}")
    return shape[1]


def _hash(files: Mapping[str, NetworkFile]) -> str:
    """Which network this is: the weights, and the prototxt if it came apart from them."""
    if PROTOTXT not in files:
        return files[WEIGHTS].sha256
    both = files[WEIGHTS].sha256 + files[PROTOTXT].sha256
    return hashlib.sha256(both.encode()).hexdigest()

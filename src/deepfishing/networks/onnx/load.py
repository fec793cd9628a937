"""Loading of a network from an .onnx file.

A classifier becomes a `Network` of two parts: the trunk stays in ONNX and runs in onnxruntime, the
head is torch layers with the file's own weights, numbered from the top. Before it is used, both
together are compared with the file itself. Of other files a tensor is the embedding x7, and all of
the network is trunk.
"""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from deepfishing.core.features import NO_CLASSIFIER, TOP
from deepfishing.errors import (
    MissingDependencyError,
    NetworkError,
    OptionError,
    one_line,
)
from deepfishing.images.preprocess import Preprocess
from deepfishing.networks.known_files import DINOV2, DINOV2_MARGIN, KNOWN_FILES
from deepfishing.networks.network import Network, ready
from deepfishing.networks.onnx.embedding import (
    Embedding,
    add_pooling,
    asked_embedding,
    find_embedding,
    is_dinov2,
)
from deepfishing.networks.onnx.head import ENDS, Head, find_heads
from deepfishing.networks.onnx.trunk import (
    TOLERANCE,
    OnnxTrunk,
    Pixels,
    noise_images,
    package,
    start_session,
)
from deepfishing.networks.outputs import Pick
from deepfishing.networks.reference import (
    EMBEDDING,
    FILES,
    WEIGHTS,
    NetworkFile,
    Source,
    find_preprocess,
)

KEY = "deepfishing.preprocess"  # of a file's metadata: how it wants its pixels, as JSON
FLOAT32 = 1  # as ONNX numbers its types


def load_onnx(
    file: str | Path,
    preprocess: str | Path | Preprocess | None = None,
    *,
    embedding: str | None = None,
    device: str | torch.device = "cpu",
    dtype: str = "float32",
) -> Network:
    """Load a network from an .onnx file, on the CPU in float32.

    It takes float32 images (n, 3, S, S) or (n, S, S, 3). The scores of a classifier are made by a
    Gemm, a MatMul or a 1x1 Conv with weights in the file. What is in a chain below that, down to
    the first 1x1 convolution, becomes the head: layers 8, 7, 6...

    Parameters
    ----------
    file : path
    preprocess : str, path or Preprocess, optional
        As for `find_preprocess`. Without it what the file's metadata have under `KEY`, or what is
        known of the file by its checksum, or of DINOv2 if the file has its code.
    embedding : str, optional
        Name of the tensor that is x7, for a network without a classifier, with `@class`,
        `@patches` or `@mean` where it has tokens. By default the output of such a network, if it
        has one vector or one feature map per image, or the class token after the last norm.
    device, dtype : str
        Only "cpu" and "float32".
    """
    path = Path(file)
    if str(device) != "cpu" or dtype != "float32":
        raise OptionError(
            f"{path.name} runs on cpu in float32, got {device} and {dtype}"
        )
    model = _read(path)
    pixels = _find_input(model, path)
    weights = NetworkFile.of(path)
    wanted, note = _find_pixels(model, pixels, path, weights.sha256, preprocess)
    heads = [] if embedding else find_heads(model)
    if len(heads) == 1:
        network = _classifier(model, pixels, wanted, weights, heads[0])
    elif embedding:
        asked = asked_embedding(model, pixels, embedding, path.name)
        network = _without_classifier(model, pixels, wanted, weights, asked)
    else:
        chosen = find_embedding(model, pixels, str(path))
        network = _without_classifier(model, pixels, wanted, weights, chosen)
    notes = (*network.notes, note) if note else network.notes
    return replace(network, notes=notes)


def _find_pixels(
    model: Any,
    pixels: Pixels,
    path: Path,
    sha256: str,
    given: str | Path | Preprocess | None,
) -> tuple[Preprocess, str]:
    """Return the preprocessing of the network, and a note if the file has none."""
    if given is None:
        metadata = {entry.key: entry.value for entry in model.metadata_props}
        given = metadata.get(KEY)
    if given is not None:
        return find_preprocess(given, pixels.size), ""
    known = KNOWN_FILES.get(sha256)
    if known is not None and known.preprocess is not None:
        return known.preprocess, known.note
    if is_dinov2(model, pixels) and pixels.size:
        side = round(pixels.size * DINOV2_MARGIN)
        preprocess = replace(DINOV2, size=pixels.size, short_side=side)
        return preprocess, (
            "pixels as DINOv2 takes them, since the file has its code (patches of 14 pixels, "
            f"class token, layer scale): short side {side}, centre {pixels.size}, ImageNet's mean "
            "and deviation; --preprocess says otherwise"
        )
    raise OptionError(
        f"{path} does not say how it wants its pixels; pass --preprocess imagenet, a name of "
        "`deepfish models` whose network takes them alike, or a .json file with mean and std"
    )


def _classifier(
    model: Any, pixels: Pixels, wanted: Preprocess, weights: NetworkFile, head: Head
) -> Network:
    """Return a network whose scores are made by a head in torch."""
    name = Path(weights.path).name
    trunk = OnnxTrunk(model, pixels, head.outputs)
    parts = OrderedDict[str, nn.Module]([("trunk", trunk), *head.parts])
    network = Network(
        name=name,
        module=ready(nn.Sequential(parts), torch.device("cpu")),
        layers={k: f"layer{k}" for k in sorted(head.layers)},
        preprocess=wanted,
        weights_sha256=weights.sha256,
        head=ENDS[head.end][1],
        source=Source(kind=FILES, files={WEIGHTS: weights}),
        notes=(f"{name}: {', '.join(reversed(head.layers.values()))}",),
    )
    _compare(network, trunk, model, head)
    return network


def _without_classifier(
    model: Any,
    pixels: Pixels,
    wanted: Preprocess,
    weights: NetworkFile,
    embedding: Embedding,
) -> Network:
    """Return a network one tensor of which is x7."""
    name = Path(weights.path).name
    content = f"{weights.sha256} {embedding.name}"
    model, vector = add_pooling(model, embedding)
    trunk = OnnxTrunk(model, pixels, {"trunk": vector})
    trunk.shape()
    return Network(
        name=name,
        module=ready(nn.Sequential(OrderedDict(trunk=trunk)), torch.device("cpu")),
        layers={TOP: NO_CLASSIFIER},
        preprocess=wanted,
        weights_sha256=hashlib.sha256(content.encode()).hexdigest(),
        head=EMBEDDING,
        pick=Pick(embeds=True),
        source=Source(kind=FILES, files={WEIGHTS: weights}, embedding=embedding.name),
        notes=(f"{name} has no classifier: x7 is {embedding.about}",),
        embedding=embedding.about,
    )


def _read(path: Path) -> Any:
    """Return the content of a file that has all its weights."""
    try:
        model = package("onnx").load(path, load_external_data=False)
    except MissingDependencyError:
        raise
    except FileNotFoundError:
        raise NetworkError(f"network file not found: {path}; check --network") from None
    except Exception as error:
        # protobuf has errors of its own, which change with its versions
        raise NetworkError(
            f"{path} is damaged or not an ONNX file ({one_line(error)})"
        ) from None
    if not model.graph.node:
        raise NetworkError(f"{path} is damaged or not an ONNX file (it has no graph)")
    if any(tensor.external_data for tensor in model.graph.initializer):
        raise NetworkError(
            f"{path} must hold all its weights, got some in other files; write one file with "
            "`onnx.save(onnx.load(FILE), NEW)`"
        )
    return model


def _find_input(model: Any, path: Path) -> Pixels:
    """Return the input that takes the pixels."""
    weights = {tensor.name for tensor in model.graph.initializer}
    inputs = [entry for entry in model.graph.input if entry.name not in weights]
    kinds = [entry.type.tensor_type for entry in inputs]
    shapes = [[d.dim_value or d.dim_param for d in kind.shape.dim] for kind in kinds]
    if len(shapes) == 1 and len(shapes[0]) == 4 and kinds[0].elem_type == FLOAT32:
        count, *sides = shapes[0]
        channels_last = sides[0] != 3 and sides[2] == 3
        if isinstance(count, int) and count > 1 and 3 in (sides[0], sides[2]):
            raise NetworkError(
                f"{path} takes {count} images at a time; export it for any number of them"
            )
        channels = sides.pop(2 if channels_last else 0)
        high, wide = sides
        is_open = not isinstance(high, int) or not high
        if channels == 3 and (is_open or high == wide):
            return Pixels(inputs[0].name, None if is_open else high, channels_last)
    type_name = package("onnx").TensorProto.DataType.Name
    types = [type_name(kind.elem_type).lower() for kind in kinds]
    raise NetworkError(
        f"{path} must take float32 images of shape (n, 3, S, S) or (n, S, S, 3), got "
        f"{str(shapes)[:100]} of type {', '.join(types)}; export it so"
    )


def _compare(network: Network, trunk: OnnxTrunk, model: Any, head: Head) -> None:
    """Refuse a head and a trunk that do not give what the file gives."""
    whole = start_session(model.SerializeToString())
    noise = noise_images(network.preprocess.size)
    outputs = [output.name for output in model.graph.output]
    number = outputs.index(head.output)
    order = (1, 2, 0) if trunk.pixels.channels_last else (0, 1, 2)
    problem = ""
    # a file may have been made for one image at a time
    for trunk.single in (False, True):
        try:
            rows = []
            for image in noise:
                alone = np.ascontiguousarray(image.transpose(order))[None]
                rows.append(whole.run(None, {trunk.pixels.name: alone})[number])
            with torch.no_grad():
                scores = network.module(torch.from_numpy(noise))
            parts = ENDS[head.end][0](scores).numpy()
            expected = np.concatenate(rows)
            difference = np.abs(parts - expected.reshape(parts.shape)).max()
        except Exception as error:  # onnxruntime's errors have no other common class
            problem = one_line(error)
            continue
        if parts.ndim == 2 and difference <= TOLERANCE * np.abs(expected).max():
            return
        problem = f"scores {parts.shape} differ by {difference:.2g}"
    raise NetworkError(
        f"{network.name} must give the same in two parts, trunk and last layers, as in one, but "
        f"{problem}; such a network cannot be used"
    )

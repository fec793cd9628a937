"""Networks that exist only as an .onnx file.

A classifier becomes a `Network` of two parts: the trunk stays in ONNX and runs in onnxruntime, the
head is torch layers with the file's own weights, numbered from the top. Before it is used, both
together are compared with the file itself. Of other files a tensor, an output or any other, is the
embedding x7, and all of the network is trunk.
"""

from __future__ import annotations

import hashlib
from collections import Counter, OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from deepfishing.core.features import NO_CLASSIFIER, TOP
from deepfishing.errors import (
    MissingDependencyError,
    NetworkError,
    OptionError,
    check_choice,
    did_you_mean,
    explained,
    need,
    one_line,
)
from deepfishing.images.preprocess import Preprocess
from deepfishing.networks.network import Network, ready
from deepfishing.networks.outputs import EMBEDDING_PARTS, TOKENS, Pick
from deepfishing.networks.reference import (
    EMBEDDING,
    FILES,
    WEIGHTS,
    NetworkFile,
    Source,
    find_preprocess,
)

KEY = "deepfishing.preprocess"  # of a file's metadata: how it wants its pixels, as JSON
package = partial(need, extra="onnxruntime")  # onnx, or what runs it
MIN_EMBEDDING = 8  # numbers; an output of fewer is taken only if it is asked for
SUGGESTED_TENSORS = 3
POOLED = "deepfishing_pooled"  # the tensor that a step of ours makes
LAST = 2**31 - 1  # more tokens than any file has
OPSET_OF_MEAN_BY_INPUT = 18  # from which ReduceMean takes its axes as an input
ANY_SIDE = 224  # pixels, of images for a file that takes any
TOKEN_WORDS = {
    "class": "its class token",
    "patches": "the mean of all tokens but the first",
    "mean": "the mean of all tokens",
}
TOLERANCE = 1e-4  # of the largest score: head and trunk against the whole file
# What may follow the scores, and what they mean then.
_ENDS: dict[str, tuple[Callable[[Tensor], Tensor], str]] = {
    "": (lambda y: y, "softmax"),
    "Softmax": (lambda y: y.softmax(1), "softmax"),
    "LogSoftmax": (lambda y: y.log_softmax(1), "softmax"),
    "Sigmoid": (torch.sigmoid, "sigmoid"),
}


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
        As for `find_preprocess`; without it what the file's metadata say under `KEY`.
    embedding : str, optional
        Name of the tensor that is x7, for a network without a classifier, with `@class`,
        `@patches` or `@mean` where it has tokens. By default the output of such a network, if it
        has one vector or one feature map per image.
    device, dtype : str
        Only "cpu" and "float32".
    """
    path = Path(file)
    if str(device) != "cpu" or dtype != "float32":
        raise OptionError(
            f"{path.name} runs on cpu in float32, got {device} and {dtype}"
        )
    model = _read(path)
    pixels = _input(model, path)
    wanted = _wanted_pixels(model, path, preprocess)
    heads = [] if embedding else _heads(model)
    if len(heads) != 1:
        chosen = embedding or _output_embedding(model, pixels, path)
        return _embedding_network(model, pixels, wanted, path, chosen)
    head, weights = heads[0], NetworkFile.of(path)
    trunk = OnnxTrunk(model, pixels, head.outputs)
    parts = OrderedDict[str, nn.Module]([("trunk", trunk), *head.parts])
    network = Network(
        name=path.name,
        module=ready(nn.Sequential(parts), torch.device("cpu")),
        layers={k: f"layer{k}" for k in sorted(head.layers)},
        preprocess=wanted,
        weights_sha256=weights.sha256,
        head=_ENDS[head.end][1],
        source=Source(kind=FILES, files={WEIGHTS: weights}),
        notes=(f"{path.name}: {', '.join(reversed(head.layers.values()))}",),
    )
    _compare(network, trunk, model, head)
    return network


def _wanted_pixels(
    model: Any, path: Path, preprocess: str | Path | Preprocess | None
) -> Preprocess:
    """How the network wants its pixels: what the user says, or else the file."""
    said = {item.key: item.value for item in model.metadata_props}.get(KEY)
    if (wanted := preprocess or said) is None:
        raise OptionError(
            f"{path} does not say how it wants its pixels; pass --preprocess imagenet, a name of "
            "`deepfish models` whose network takes them alike, or a .json file with mean and std"
        )
    return find_preprocess(wanted, _input(model, path).size)


def _heads(model: Any) -> list[_Head]:
    """What makes the outputs that are class scores."""
    heads = [
        head for out in model.graph.output if (head := _head(model, out.name)).layers
    ]
    # an embedding that is an output, too, is no classifier
    return [h for h in heads if not any(h.output in other.below for other in heads)]


def _output_embedding(model: Any, pixels: _Pixels, path: Path) -> str:
    """The output that is an embedding; an error where that is not plain."""
    names = [output.name for output in model.graph.output]
    known = [name for name in EMBEDDING_PARTS if name in names]
    if known or len(names) == 1:
        name = known[0] if known else names[0]
        shape = OnnxTrunk(model, pixels, {"trunk": name}).shape()
        if len(shape) in (2, 4) and shape[1] >= MIN_EMBEDDING:
            return name
    made = {name: node.op_type for node in model.graph.node for name in node.output}
    outputs = ", ".join(f"{name} by {made.get(name)}" for name in names)
    raise NetworkError(
        f"{path} must have one output that is class scores, made by a Gemm, a MatMul or a 1x1 Conv "
        "with weights in the file that nothing else uses, or one that is an embedding, got "
        f"{outputs[:200]}; pass --embedding TENSOR{_some_tensors(model)}, and @class, @patches or "
        "@mean behind it where it has tokens"
    )


def _some_tensors(model: Any) -> str:
    """Some tensors that are often embeddings: what the last norms and poolings make."""
    found: dict[str, str] = {}
    for node in model.graph.node:
        scope = node.output[0].rpartition("/")[0]
        is_norm = "norm" in scope.rpartition("/")[2].lower()
        if is_norm or node.op_type in ("LayerNormalization", "GlobalAveragePool"):
            found.pop(scope, None)
            found[scope] = node.output[0]
    last = list(found.values())[-SUGGESTED_TENSORS:]
    return f", such as {' or '.join(last)}" if last else ""


def _embedding_network(
    model: Any, pixels: _Pixels, wanted: Preprocess, path: Path, embedding: str
) -> Network:
    """A network without a classifier, one tensor of which is x7."""
    name, _, tokens = (
        embedding.rpartition("@") if "@" in embedding else (embedding, "", "")
    )
    if tokens:
        check_choice("tokens of --embedding", tokens, TOKENS)
    made = {out for node in model.graph.node for out in node.output}
    if name not in made:
        raise OptionError(
            f"--embedding must be a tensor of {path.name}, got {name!r}{did_you_mean(name, made)}"
        )
    shape = OnnxTrunk(model, pixels, {"trunk": name}).shape()
    has_tokens = len(shape) == 3
    if len(shape) not in (2, 3, 4) or (has_tokens and not tokens):
        raise OptionError(
            f"--embedding must have one vector, tokens or a feature map per image, got {name} of "
            f"shape {shape}; for tokens say {name}@class, @patches or @mean"
        )
    weights = NetworkFile.of(path)
    digest = hashlib.sha256(f"{weights.sha256} {embedding}".encode()).hexdigest()
    what = {
        2: "",
        3: f", {TOKEN_WORDS.get(tokens, '')}",
        4: ", the mean of the feature map",
    }
    text = f"the tensor {name}{what[len(shape)]}"
    model, pooled = _with_pooling(model, name, len(shape), tokens)
    trunk = OnnxTrunk(model, pixels, {"trunk": pooled})
    trunk.shape()
    return Network(
        name=path.name,
        module=ready(nn.Sequential(OrderedDict(trunk=trunk)), torch.device("cpu")),
        layers={TOP: NO_CLASSIFIER},
        preprocess=wanted,
        weights_sha256=digest,
        head=EMBEDDING,
        pick=Pick(embeds=True),
        source=Source(kind=FILES, files={WEIGHTS: weights}, embedding=embedding),
        notes=(f"{path.name} has no classifier: x7 is {text}",),
        embedding=text,
    )


def _with_pooling(model: Any, tensor: str, rank: int, tokens: str) -> tuple[Any, str]:
    """A model with a step that makes one vector per image of a tensor, and the step's output."""
    if rank == 2:
        return model, tensor
    onnx = package("onnx")
    changed = onnx.ModelProto()
    changed.CopyFrom(model)
    graph, make = changed.graph, onnx.helper.make_node
    if tokens == "class":
        graph.initializer.append(_numbers("deepfishing_first", 0))
        graph.node.append(
            make("Gather", [tensor, "deepfishing_first"], [POOLED], axis=1)
        )
        return changed, POOLED
    if tokens == "patches":
        limits = {"starts": [1], "ends": [LAST], "axes": [1]}
        names = [f"deepfishing_{key}" for key in limits]
        values = zip(names, limits.values(), strict=True)
        graph.initializer.extend(_numbers(name, numbers) for name, numbers in values)
        graph.node.append(make("Slice", [tensor, *names], ["deepfishing_patches"]))
        tensor = "deepfishing_patches"
    axes = [2, 3] if rank == 4 else [1]
    opset = max(
        entry.version for entry in model.opset_import if entry.domain in ("", "ai.onnx")
    )
    if opset < OPSET_OF_MEAN_BY_INPUT:
        graph.node.append(make("ReduceMean", [tensor], [POOLED], axes=axes, keepdims=0))
    else:
        graph.initializer.append(_numbers("deepfishing_positions", axes))
        inputs = [tensor, "deepfishing_positions"]
        graph.node.append(make("ReduceMean", inputs, [POOLED], keepdims=0))
    return changed, POOLED


def _numbers(name: str, values: Any) -> Any:
    """Whole numbers as a constant of a graph."""
    return package("onnx").numpy_helper.from_array(
        np.array(values, dtype=np.int64), name
    )


@dataclass(frozen=True)
class _Pixels:
    """The input of a file: its name, the side of the square (None: any), and the axes' order."""

    name: str
    size: int | None
    channels_last: bool = False


class OnnxTrunk(nn.Module):
    """The part that stays in ONNX, which runs in the thread that calls it."""

    def __init__(self, model: Any, pixels: _Pixels, outputs: dict[str, str]) -> None:
        super().__init__()
        self.model, self.pixels = model, pixels
        # the file's tensor behind each part of the network, also the trunk
        self.outputs = outputs
        self.single = False  # whether the file takes one image at a time

    def up_to(self, part: str) -> bytes:
        """What leads from the pixels to the end of a part, for any number of images."""
        onnx = package("onnx")
        whole = onnx.ModelProto()
        whole.CopyFrom(self.model)
        graph, info = whole.graph, onnx.helper.make_tensor_value_info
        for stale in (
            "value_info",
            "input",
            "output",
        ):
            # of a fixed number of images, perhaps
            graph.ClearField(stale)
        step = onnx.helper.make_node("Identity", ["pixels"], [self.pixels.name])
        if self.pixels.channels_last:
            order = [0, 2, 3, 1]
            step = onnx.helper.make_node(
                "Transpose", ["pixels"], [self.pixels.name], perm=order
            )
        graph.node.insert(0, step)
        graph.node.append(
            onnx.helper.make_node("Identity", [self.outputs[part]], ["trunk"])
        )
        sides = ["n", 3, self.pixels.size or "high", self.pixels.size or "wide"]
        graph.value_info.extend([info("pixels", 1, sides), info("trunk", 1, None)])
        cut = onnx.utils.Extractor(whole).extract_model(["pixels"], ["trunk"])
        cut.graph.ClearField("value_info")
        return bytes(cut.SerializeToString())

    def __deepcopy__(self, memo: Any) -> OnnxTrunk:
        return self  # it has nothing that anybody could change

    @cached_property
    def session(self) -> Any:
        """What runs it."""
        return start_session(self.up_to("trunk"))

    def shape(self) -> tuple[int, ...]:
        """Shape of what it makes of two images; finds out whether it takes one at a time."""
        side = self.pixels.size or ANY_SIDE
        noise = (
            np.random.default_rng(0).normal(size=(2, 3, side, side)).astype(np.float32)
        )
        problem = ""
        for self.single in (False, True):
            try:
                both = self(torch.from_numpy(noise))
                alone = torch.cat([self(torch.from_numpy(one[None])) for one in noise])
                largest = float(alone.abs().max())
                if both.shape == alone.shape and float((both - alone).abs().max()) <= (
                    TOLERANCE * largest
                ):
                    return tuple(both.shape)
                problem = "two images together give other numbers than each alone"
            except Exception as error:
                # onnxruntime's errors have no other common class
                problem = one_line(error)
        raise NetworkError(
            f"the file must give the same for images together and alone, but {problem}; such a "
            "network cannot be used"
        )

    def forward(self, pixels: Tensor) -> Tensor:
        """Run (n, 3, S, S)."""
        values = np.ascontiguousarray(pixels.detach().numpy())
        parts = np.split(values, len(values)) if self.single else [values]
        found = [self.session.run(None, {"pixels": part})[0] for part in parts]
        return torch.from_numpy(np.concatenate(found))


def onnx_of(trunk: nn.Module) -> bytes | None:
    """What a trunk is in the file that it comes from; None if it is torch's."""
    # a network without a classifier is run as a whole, its embedding is taken already
    parts = dict(getattr(trunk, "module", trunk).named_children())
    own = parts.get("trunk")
    if not isinstance(own, OnnxTrunk):
        return None
    if own.single:
        raise NetworkError(
            "it takes one image at a time; export it with a dynamic batch axis"
        )
    return own.up_to(list(parts)[-1])


@dataclass(frozen=True)
class _Head:
    """The layers that make an output, lowest first, as torch modules."""

    output: str
    outputs: dict[str, str]  # of what goes in, `trunk`, and of each part
    parts: list[tuple[str, nn.Module]]
    layers: dict[int, str]  # k -> words for people, highest first
    end: str  # what follows the scores

    @property
    def below(self) -> set[str]:
        """The file's tensors on the way to the output."""
        return {*self.outputs.values()} - {self.output}


def _head(model: Any, output: str) -> _Head:
    """Follow an output down as long as each step is known and has one input."""
    made = {out: node for node in model.graph.node for out in node.output}
    used = Counter(name for node in model.graph.node for name in node.input)
    constants = _constants(model)
    uses = _uses(model, constants)
    end = (
        made[output].op_type if output in made and made[output].op_type in _ENDS else ""
    )
    name = top = behind = made[output].input[0] if end else output
    steps: list[tuple[str, nn.Module]] = []
    layers: dict[int, str] = {}
    outputs: dict[str, str] = {}
    bias, found = None, _Head(output, {}, [], layers, end)
    while name in made and (name == top or used[name] == 1):
        node = made[name]
        data = [i for i in node.input if i and i not in constants]
        if len(data) != 1 or (bias is not None and node.op_type != "MatMul"):
            break
        if any(
            uses[i] > 1 and constants[i].ndim > 1 for i in node.input if i in constants
        ):
            # weights that are used elsewhere, too: their gradient is more than this layer's
            break
        behind = behind if bias is not None else name
        name, values = data[0], [constants.get(i) for i in node.input]
        if node.op_type == "Add":
            bias = next(value for value in values if value is not None)
            continue
        if (module := _module(node, [*values, bias])) is None:
            break
        bias, k = None, TOP - len(layers)
        is_layer = isinstance(module, nn.Linear | nn.Conv2d)
        steps.insert(0, (f"layer{k}" if is_layer else f"step{len(steps)}", module))
        outputs[steps[0][0]] = behind
        if isinstance(module, nn.Linear | nn.Conv2d):
            D, d = module.weight.shape[:2]
            layers[k] = f"layer {k} is {node.op_type} {node.name} ({d} to {D})"
            found = _Head(output, {**outputs, "trunk": name}, list(steps), layers, end)
        if isinstance(module, nn.Conv2d) or (is_layer and k == 1):
            break
    return found


def _module(node: Any, values: list[Any]) -> nn.Module | None:
    """A step of the head in torch; None where it is not known."""
    says = {
        a.name: package("onnx").helper.get_attribute_value(a) for a in node.attribute
    }
    op, second, third = node.op_type, values[1], [*values, None][2]
    shape: tuple[int, ...] = () if second is None else second.shape
    if op in ("Gemm", "MatMul") and len(shape) == 2 and not says.get("transA"):
        W = second if says.get("transB") else second.T
        bias = None if third is None else third * says.get("beta", 1.0)
        return _layer(nn.Linear, W * says.get("alpha", 1.0), bias)
    if op == "Conv" and shape[2:] == (1, 1):
        plain = {says.get("group", 1), *says.get("strides", [1])} == {1}
        if plain and not any(says.get("pads", ())):
            return _layer(partial(nn.Conv2d, kernel_size=1), second, third)
    if op == "Clip":
        low, high = says.get("min", second), says.get("max", third)
        low, high = (
            -np.inf if low is None else float(low),
            np.inf if high is None else float(high),
        )
        return nn.ReLU6() if (low, high) == (0, 6) else nn.Hardtanh(low, high)
    axes = says.get("axes", second)
    if (
        op == "ReduceMean"
        and axes is not None
        and sorted(a % 4 for a in axes) == [2, 3]
    ):
        pool = nn.AdaptiveAvgPool2d(1)
        return pool if says.get("keepdims", 1) else nn.Sequential(pool, nn.Flatten())
    if op in (
        "Flatten",
        "Reshape",
        "Squeeze",
    ):
        # whether that is all they do, `_compare` tells
        flattens = says.get("axis", 1) == 1 if op == "Flatten" else shape == (2,)
        return nn.Flatten() if flattens else None
    known: dict[str, Callable[[], nn.Module]] = {
        "Relu": nn.ReLU,
        "Tanh": nn.Tanh,
        "Sigmoid": nn.Sigmoid,
        "HardSwish": nn.Hardswish,
        "LeakyRelu": lambda: nn.LeakyReLU(says.get("alpha", 0.01)),
        "Gelu": lambda: nn.GELU(says.get("approximate", b"none").decode()),
        "GlobalAveragePool": lambda: nn.AdaptiveAvgPool2d(1),
        **dict.fromkeys(("Identity", "Dropout"), nn.Identity),
    }
    return known[op]() if op in known else None


def _layer(kind: Callable[..., Any], W: Any, bias: Any) -> nn.Module | None:
    """A layer with weights W (D, d, ...); None where the bias is not one of outputs."""
    bias = np.zeros(1) if bias is None else bias
    if bias.size not in (1, len(W)):
        return None
    layer: nn.Module = kind(W.shape[1], W.shape[0], device="meta")
    weight, bias = (
        np.array(W, np.float32),
        np.zeros(len(W), np.float32) + bias.reshape(-1),
    )
    layer.weight, layer.bias = (
        nn.Parameter(torch.from_numpy(v)) for v in (weight, bias)
    )
    return layer.float()


def _constants(model: Any) -> dict[str, Any]:
    """What is known without an image: initialisers, constants, and those transposed."""
    read = package("onnx").numpy_helper.to_array
    found = {tensor.name: read(tensor) for tensor in model.graph.initializer}
    for node in model.graph.node:
        says = {a.name: a for a in node.attribute}
        if node.op_type == "Constant" and "value" in says:
            found[node.output[0]] = read(says["value"].t)
        elif node.op_type in ("Identity", "Transpose") and node.input[0] in found:
            order = list(says["perm"].ints) if "perm" in says else None
            value = found[node.input[0]]
            found[node.output[0]] = (
                value if node.op_type == "Identity" else value.transpose(order)
            )
    return found


def _uses(model: Any, constants: dict[str, Any]) -> Counter[str]:
    """How many nodes use a constant, as it is or transposed."""
    root = {name: name for name in constants}
    moves = [n for n in model.graph.node if n.op_type in ("Identity", "Transpose")]
    for node in moves:
        if node.output[0] in root:
            root[node.output[0]] = root[node.input[0]]
    nodes = [node for node in model.graph.node if node.output[0] not in root]
    count = Counter(root[name] for node in nodes for name in node.input if name in root)
    return Counter({name: count[first] for name, first in root.items()})


def _read(path: Path) -> Any:
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
    if any(tensor.external_data for tensor in model.graph.initializer):
        raise NetworkError(
            f"{path} must hold all its weights, got some in other files; write one file with "
            "`onnx.save(onnx.load(FILE), NEW)`"
        )
    return model


def _input(model: Any, path: Path) -> _Pixels:
    """The input that takes the pixels."""
    constants = {tensor.name for tensor in model.graph.initializer}
    inputs = [i for i in model.graph.input if i.name not in constants]
    kinds = [i.type.tensor_type for i in inputs]
    shapes = [[d.dim_value or d.dim_param for d in kind.shape.dim] for kind in kinds]
    match shapes:
        case [[int(n), 3, _, _]] | [[int(n), _, _, 3]] if n > 1:
            raise NetworkError(
                f"{path} takes {n} images at a time; export it for any number of them"
            )
        case [[_, 3, high, wide]] if kinds[0].elem_type == 1 and (
            high == wide or not isinstance(high, int)
        ):
            return _Pixels(
                inputs[0].name, high if isinstance(high, int) and high else None
            )
        case [[_, high, wide, 3]] if kinds[0].elem_type == 1 and (
            high == wide or not isinstance(high, int)
        ):
            side = high if isinstance(high, int) and high else None
            return _Pixels(inputs[0].name, side, channels_last=True)
    raise NetworkError(
        f"{path} must take float32 images of shape (n, 3, S, S) or (n, S, S, 3), got "
        f"{str(shapes)[:100]} of type {[kind.elem_type for kind in kinds]}; export it so"
    )


def _compare(network: Network, trunk: OnnxTrunk, model: Any, head: _Head) -> None:
    """Refuse a head and a trunk that do not give what the file gives."""
    whole, side = start_session(model.SerializeToString()), network.preprocess.size
    noise = np.random.default_rng(0).normal(size=(2, 3, side, side)).astype(np.float32)
    number = [o.name for o in model.graph.output].index
    problem = ""
    for trunk.single in (
        False,
        True,
    ):
        # a file may have been made for one image at a time
        try:
            order = (1, 2, 0) if trunk.pixels.channels_last else (0, 1, 2)
            images = [np.ascontiguousarray(one.transpose(order))[None] for one in noise]
            outputs = [whole.run(None, {trunk.pixels.name: image}) for image in images]
            with torch.no_grad():
                found = _ENDS[head.end][0](
                    network.module(torch.from_numpy(noise))
                ).numpy()
            expected = np.concatenate([out[number(head.output)] for out in outputs])
            error = np.abs(found - expected.reshape(found.shape)).max()
            if found.ndim == 2 and error <= TOLERANCE * np.abs(expected).max():
                return
            problem = f"scores {found.shape} differ by {error:.2g}"
        except Exception as error:  # onnxruntime's errors have no other common class
            problem = one_line(error)
    raise NetworkError(
        f"{network.name} must give the same in two parts, trunk and last layers, as in one, but "
        f"{problem}; such a network cannot be used"
    )


def start_session(model: bytes) -> Any:
    """What runs a model, each call on one core."""
    runtime = package("onnxruntime")
    options = runtime.SessionOptions()
    # callers bring the threads
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    options.log_severity_level = 3
    with explained(NetworkError, "onnxruntime cannot run the .onnx file"):
        return runtime.InferenceSession(
            model, options, providers=["CPUExecutionProvider"]
        )

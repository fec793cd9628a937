"""The embedding of an .onnx file without scores: an output, or any tensor of the file."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

import numpy as np

from deepfishing.errors import (
    NetworkError,
    OptionError,
    check_choice,
    did_you_mean,
)
from deepfishing.networks.onnx.trunk import OnnxTrunk, Pixels, package
from deepfishing.networks.outputs import EMBEDDING_PARTS, TOKENS

MIN_EMBEDDING = 8  # numbers; an output of fewer is taken only if it is asked for
SUGGESTED_TENSORS = 3
POOLED = "deepfishing_pooled"  # the tensor that our own node makes
LAST = 2**31 - 1  # more tokens than any file has
OPSET_OF_MEAN_BY_INPUT = 18  # from which ReduceMean takes its axes as an input
MAX_REGISTERS = 16  # tokens between the class token and those of the patches
DINOV2_PATCH = 14
# how transformers, timm and the authors of DINOv2 call the factor behind a block
LAYER_SCALE = re.compile(r"(layer_scale1\.lambda1|ls1\.gamma)$")
COPIES = ("Expand", "Tile", "Cast", "Identity")  # nodes that repeat a token
TOKEN_WORDS = {
    "class": "its class token",
    "patches": "the mean of all tokens but the first",
    "mean": "the mean of all tokens",
}
HOW_TOKENS = "@class, @patches or @mean"


@dataclass(frozen=True)
class Embedding:
    """One vector per image: a tensor, the aggregation of its positions, and the reason."""

    tensor: str
    rank: int  # number of axes
    tokens: str = ""
    why: str = ""

    @property
    def name(self) -> str:
        """The name, as an argument of `--embedding`."""
        if self.tokens:
            return f"{self.tensor}@{self.tokens}"
        return self.tensor

    @property
    def about(self) -> str:
        """Description of the tensor, with the reason for its choice."""
        text = f"the tensor {self.tensor}"
        if self.why:
            return f"{self.why}: {text}"
        if self.rank == 3:
            text += f", {TOKEN_WORDS[self.tokens]}"
        if self.rank == 4:
            text += ", the mean of the feature map"
        return text


def asked_embedding(model: Any, pixels: Pixels, asked: str, file: str) -> Embedding:
    """Return the embedding that a user asks for as TENSOR or TENSOR@TOKENS."""
    tensor, at, tokens = asked.rpartition("@")
    if not at:
        tensor, tokens = asked, ""
    if tokens:
        check_choice("tokens of --embedding", tokens, TOKENS)
    tensors: set[str] = set()
    for node in model.graph.node:
        tensors.update(node.output)
    if tensor not in tensors:
        raise OptionError(
            f"--embedding must be a tensor of {file}, got {tensor!r}"
            f"{did_you_mean(tensor, tensors)}"
        )
    shape = _shape(model, pixels, tensor)
    if len(shape) not in (2, 3, 4) or (len(shape) == 3 and not tokens):
        raise OptionError(
            "--embedding must have one vector, tokens or a feature map per image, got "
            f"{tensor} of shape {shape}; for tokens write {tensor}@class, @patches or @mean"
        )
    if len(shape) != 3:
        tokens = ""
    return Embedding(tensor, len(shape), tokens)


def find_embedding(model: Any, pixels: Pixels, file: str) -> Embedding:
    """Return the embedding of a file without scores; an error where that is not certain.

    It is an output with one vector or feature map per image, or else the class token after the
    last norm.
    """
    outputs = [output.name for output in model.graph.output]
    candidates = [name for name in EMBEDDING_PARTS if name in outputs]
    if not candidates and len(outputs) == 1:
        candidates = outputs
    if candidates:
        output = candidates[0]
        shape = _shape(model, pixels, output)
        if len(shape) in (2, 4) and shape[1] >= MIN_EMBEDDING:
            return Embedding(output, len(shape))
    tensor = _tokens_after_last_norm(model, pixels)
    if tensor is not None:
        listed = ", ".join(outputs)[:80]
        why = f"the class token after the last norm, since {listed} is no embedding"
        return Embedding(tensor, 3, "class", why)
    operators = {}
    for node in model.graph.node:
        operators.update(dict.fromkeys(node.output, node.op_type))
    got = ", ".join(f"{name} by {operators.get(name)}" for name in outputs)
    raise NetworkError(
        f"{file} must have one output that is class scores, made by a Gemm, a MatMul or a 1x1 Conv "
        "with weights in the file that nothing else uses, or one that is an embedding, got "
        f"{got[:200]}; pass --embedding TENSOR{_suggestion(model)}, and {HOW_TOKENS} behind it "
        "where it has tokens"
    )


def _shape(model: Any, pixels: Pixels, tensor: str) -> tuple[int, ...]:
    """Return the shape of a tensor for two images."""
    return OnnxTrunk(model, pixels, {"trunk": tensor}).shape()


def _tokens_after_last_norm(model: Any, pixels: Pixels) -> str | None:
    """Return the tokens (n, t, d) of a vision transformer with a class token, None without."""
    token = _class_token(model)
    patch = _patch_size(model, pixels)
    norms = _norms_and_poolings(model)
    if token is None or patch is None or not norms or pixels.size is None:
        return None
    shape = _shape(model, pixels, norms[-1])
    patches = (pixels.size // patch) ** 2
    if len(shape) != 3 or shape[2] != token.dims[-1]:
        return None
    extra_tokens = shape[1] - patches
    if not 1 <= extra_tokens <= 1 + MAX_REGISTERS:
        return None
    return norms[-1]


def is_dinov2(model: Any, pixels: Pixels) -> bool:
    """Whether a file has DINOv2's code: patches of 14 pixels, a class token and layer scale."""
    names = [tensor.name for tensor in model.graph.initializer]
    return (
        _patch_size(model, pixels) == DINOV2_PATCH
        and _class_token(model) is not None
        and any(LAYER_SCALE.search(name) for name in names)
    )


def _class_token(model: Any) -> Any | None:
    """Return the weights (1, 1, d) that are put before the tokens of the patches."""
    weights = {tensor.name: tensor for tensor in model.graph.initializer}
    origin = {}
    for node in model.graph.node:
        if node.op_type in COPIES:
            origin[node.output[0]] = node.input[0]
    for node in model.graph.node:
        if node.op_type != "Concat" or _attributes(node).get("axis") not in (1, -2):
            continue
        first = node.input[0]
        while first in origin:
            first = origin[first]
        token = weights.get(first)
        if token is not None and list(token.dims[:-1]) == [1, 1]:
            return token
    return None


def _patch_size(model: Any, pixels: Pixels) -> int | None:
    """Return the side of the patches that a convolution cuts the image into."""
    makers = {node.output[0]: node for node in model.graph.node}
    for node in model.graph.node:
        source = next(iter(node.input), "")
        while source in makers and makers[source].op_type in ("Cast", "Transpose"):
            source = makers[source].input[0]
        if node.op_type != "Conv" or source != pixels.name:
            continue
        attributes = _attributes(node)
        sides = {*attributes.get("kernel_shape", ()), *attributes.get("strides", ())}
        if len(sides) != 1:
            return None
        return int(sides.pop())
    return None


def _attributes(node: Any) -> dict[str, Any]:
    read = package("onnx").helper.get_attribute_value
    return {entry.name: read(entry) for entry in node.attribute}


def _norms_and_poolings(model: Any) -> list[str]:
    """Return the tensors that norms and poolings make, in their order."""
    by_scope: dict[str, str] = {}
    for node in model.graph.node:
        if not node.output:
            continue
        scope = node.output[0].rpartition("/")[0]
        is_norm = "norm" in scope.rpartition("/")[2].lower()
        if is_norm or node.op_type in ("LayerNormalization", "GlobalAveragePool"):
            by_scope.pop(scope, None)
            by_scope[scope] = node.output[0]
    return list(by_scope.values())


def _suggestion(model: Any) -> str:
    """Return the names of some tensors that are often embeddings, for an error."""
    last = _norms_and_poolings(model)[-SUGGESTED_TENSORS:]
    if not last:
        return ""
    return f", such as {' or '.join(last)}"


def add_pooling(model: Any, embedding: Embedding) -> tuple[Any, str]:
    """Return a model that makes one vector per image of an embedding, and the vector's tensor."""
    if embedding.rank == 2:
        return model, embedding.tensor
    changed = package("onnx").ModelProto()
    changed.CopyFrom(model)
    if embedding.tokens == "class":
        _add_node(changed, "Gather", [embedding.tensor], [("first", 0)], axis=1)
        return changed, POOLED
    tensor = embedding.tensor
    if embedding.tokens == "patches":
        tensor = "deepfishing_patches"
        limits = [("starts", [1]), ("ends", [LAST]), ("axes", [1])]
        _add_node(changed, "Slice", [embedding.tensor], limits, output=tensor)
    axes = [1]
    if embedding.rank == 4:
        axes = [2, 3]
    if _opset(changed) < OPSET_OF_MEAN_BY_INPUT:
        _add_node(changed, "ReduceMean", [tensor], [], axes=axes, keepdims=0)
    else:
        _add_node(changed, "ReduceMean", [tensor], [("positions", axes)], keepdims=0)
    return changed, POOLED


def _opset(model: Any) -> int:
    own = [entry for entry in model.opset_import if entry.domain in ("", "ai.onnx")]
    return max(int(entry.version) for entry in own)


def _add_node(
    model: Any,
    operator: str,
    inputs: list[str],
    constants: list[tuple[str, Any]],
    *,
    output: str = POOLED,
    **attributes: Any,
) -> None:
    """Append a node whose last inputs are whole numbers, given by name."""
    onnx = package("onnx")
    names = list(inputs)
    for name, numbers in constants:
        names.append(f"deepfishing_{name}")
        values = np.array(numbers, dtype=np.int64)
        model.graph.initializer.append(onnx.numpy_helper.from_array(values, names[-1]))
    node = onnx.helper.make_node(operator, names, [output], **attributes)
    model.graph.node.append(node)

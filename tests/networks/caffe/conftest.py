"""Writes Caffe's files by hand, text and binary, both generations.

The field numbers below are written down again from Caffe's definition, not taken from the
package: OpenCV, which has its own, reads the same files.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import cv2
import numpy as np
import pytest
import torch

from deepfishing.errors import DeepFishingError
from deepfishing.networks.caffe.importer import load_caffe
from deepfishing.networks.network import Network


class Enum(str):
    """A name that text files have without quotes, binary files as its number."""

    number: int

    def __new__(cls, name: str, number: int) -> Enum:
        made = super().__new__(cls, name)
        made.number = number
        return made


MAX, AVE = Enum("MAX", 0), Enum("AVE", 1)
PROD, SUM, ELTWISE_MAX = Enum("PROD", 0), Enum("SUM", 1), Enum("MAX", 2)
WITHIN_CHANNEL = Enum("WITHIN_CHANNEL", 1)
FLOOR = Enum("FLOOR", 1)
TRAIN, TEST = Enum("TRAIN", 0), Enum("TEST", 1)

# type -> field of its parameters, its number in `layer` and in `layers`, V1's name and number
KINDS: dict[str, tuple[str, int, int, Enum | None]] = {
    "Accuracy": ("", 0, 0, Enum("ACCURACY", 1)),
    "ArgMax": ("", 0, 0, Enum("ARGMAX", 30)),
    "BatchNorm": ("batch_norm_param", 139, 0, None),
    "Concat": ("concat_param", 104, 9, Enum("CONCAT", 3)),
    "Convolution": ("convolution_param", 106, 10, Enum("CONVOLUTION", 4)),
    "Data": ("data_param", 107, 11, Enum("DATA", 5)),
    "Dropout": ("dropout_param", 108, 12, Enum("DROPOUT", 6)),
    "ELU": ("elu_param", 140, 0, None),
    "Eltwise": ("eltwise_param", 110, 24, Enum("ELTWISE", 25)),
    "Flatten": ("flatten_param", 135, 0, Enum("FLATTEN", 8)),
    "InnerProduct": ("inner_product_param", 117, 17, Enum("INNER_PRODUCT", 14)),
    "Input": ("input_param", 143, 0, None),
    "LRN": ("lrn_param", 118, 18, Enum("LRN", 15)),
    "MVN": ("", 0, 0, Enum("MVN", 34)),
    "MemoryData": ("memory_data_param", 119, 22, Enum("MEMORY_DATA", 29)),
    "PReLU": ("prelu_param", 131, 0, None),
    "Pooling": ("pooling_param", 121, 19, Enum("POOLING", 17)),
    "ReLU": ("relu_param", 123, 30, Enum("RELU", 18)),
    "Reshape": ("reshape_param", 133, 0, None),
    "Scale": ("scale_param", 142, 0, None),
    "Sigmoid": ("sigmoid_param", 124, 38, Enum("SIGMOID", 19)),
    "Silence": ("", 0, 0, Enum("SILENCE", 36)),
    "Softmax": ("softmax_param", 125, 39, Enum("SOFTMAX", 20)),
    "SoftmaxWithLoss": ("", 0, 0, Enum("SOFTMAX_LOSS", 21)),
    "Split": ("", 0, 0, Enum("SPLIT", 22)),
    "TanH": ("tanh_param", 127, 37, Enum("TANH", 23)),
}
NUMBERS: dict[str, dict[str, int]] = {
    "batch_norm_param": {"use_global_stats": 1, "eps": 3},
    "concat_param": {"concat_dim": 1, "axis": 2},
    "convolution_param": {
        "num_output": 1, "bias_term": 2, "pad": 3, "kernel_size": 4, "group": 5, "stride": 6,
        "pad_h": 9, "pad_w": 10, "kernel_h": 11, "kernel_w": 12, "stride_h": 13, "stride_w": 14,
        "dilation": 18, "unheard_of": 77,
    },
    "data_param": {"scale": 2, "batch_size": 4, "crop_size": 5},
    "dropout_param": {"dropout_ratio": 1},
    "elu_param": {"alpha": 1},
    "eltwise_param": {"operation": 1, "coeff": 2},
    "flatten_param": {"axis": 1, "end_axis": 2},
    "inner_product_param": {"num_output": 1, "bias_term": 2, "axis": 5, "transpose": 6},
    "input_param": {"shape": 1},
    "lrn_param": {"local_size": 1, "alpha": 2, "beta": 3, "norm_region": 4, "k": 5},
    "memory_data_param": {"batch_size": 1, "channels": 2, "height": 3, "width": 4},
    "pooling_param": {
        "pool": 1, "kernel_size": 2, "stride": 3, "pad": 4, "kernel_h": 5, "kernel_w": 6,
        "stride_h": 7, "stride_w": 8, "pad_h": 9, "pad_w": 10, "global_pooling": 12,
        "round_mode": 13,
    },
    "prelu_param": {"channel_shared": 2},
    "relu_param": {"negative_slope": 1},
    "reshape_param": {"shape": 1, "axis": 2},
    "scale_param": {"axis": 1, "bias_term": 4},
    "softmax_param": {"axis": 2},
    "shape": {"dim": 1},
    "transform_param": {"scale": 1, "crop_size": 3, "mean_file": 4, "mean_value": 5},
    "include": {"phase": 1, "min_level": 2, "max_level": 3, "stage": 4, "not_stage": 5},
}  # fmt: skip
NUMBERS["exclude"] = NUMBERS["include"]
_NEW = {"name": 1, "bottom": 3, "top": 4, "blobs": 7, "include": 8, "exclude": 9}
_NEW["transform_param"] = 100
_OLD = {"name": 4, "bottom": 2, "top": 3, "blobs": 6, "include": 32, "exclude": 33}
_OLD["transform_param"] = 36


@dataclass
class L:
    """A layer: `tops` is its name and `params` those of its type if not said otherwise."""

    name: str
    type: str
    bottoms: list[str] = field(default_factory=list)
    tops: list[str] | None = None
    blobs: list[np.ndarray] = field(default_factory=list)
    params: dict[str, Any] = field(default_factory=dict)
    # include, exclude, transform_param
    extra: dict[str, Any] = field(default_factory=dict)

    def made(self) -> list[str]:
        return [self.name] if self.tops is None else self.tops


# --- binary -------------------------------------------------------------------------------------


def varint(value: int) -> bytes:
    value &= (1 << 64) - 1
    out = bytearray()
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*out, value])


def tagged(number: int, wire_type: int, content: bytes) -> bytes:
    length = varint(len(content)) if wire_type == 2 else b""
    return varint(number << 3 | wire_type) + length + content


def encode(
    kind: str, values: dict[str, Any], numbers: dict[str, int] | None = None
) -> bytes:
    """A message: ints, bools, floats, texts, enums, dicts, and lists of them."""
    out = b""
    for name, value in values.items():
        number = (numbers or NUMBERS[kind])[name]
        for one in value if isinstance(value, list) else [value]:
            if isinstance(one, dict):
                out += tagged(number, 2, encode(name, one))
            elif isinstance(one, Enum):
                out += tagged(number, 0, varint(one.number))
            elif isinstance(one, str):
                out += tagged(number, 2, one.encode())
            elif isinstance(one, float):
                out += tagged(number, 5, struct.pack("<f", one))
            else:
                out += tagged(number, 0, varint(int(one)))
    return out


def encode_blob(array: np.ndarray, style: str = "shape") -> bytes:
    """A BlobProto. Styles: shape (new), legacy (four axes), unpacked, double."""
    if style == "legacy":
        four = (1,) * (4 - array.ndim) + array.shape
        out = b"".join(tagged(i + 1, 0, varint(n)) for i, n in enumerate(four))
    else:
        out = tagged(7, 2, tagged(1, 2, b"".join(map(varint, array.shape))))
    if style == "unpacked":
        return out + b"".join(tagged(5, 5, struct.pack("<f", v)) for v in array.ravel())
    if style == "double":
        return out + tagged(8, 2, array.astype("<f8").tobytes())
    return out + tagged(5, 2, array.astype("<f4").tobytes())


def encode_layer(layer: L, old: bool, style: str) -> bytes:
    numbers = _OLD if old else _NEW
    field_name, new_number, old_number, v1 = KINDS.get(layer.type, ("", 0, 0, None))
    out = tagged(numbers["name"], 2, layer.name.encode())
    if old:
        out += tagged(5, 0, varint((v1 or Enum("", 99)).number))
    else:
        out += tagged(2, 2, layer.type.encode())
    out += b"".join(tagged(numbers["bottom"], 2, b.encode()) for b in layer.bottoms)
    out += b"".join(tagged(numbers["top"], 2, t.encode()) for t in layer.made())
    out += b"".join(
        tagged(numbers["blobs"], 2, encode_blob(b, style)) for b in layer.blobs
    )
    out += encode("", layer.extra, numbers)
    if layer.params:
        out += tagged(
            old_number if old else new_number, 2, encode(field_name, layer.params)
        )
    return out


def encode_net(layers: list[L], old: bool = False, style: str = "") -> bytes:
    style = style or ("legacy" if old else "shape")
    out = tagged(1, 2, b"test")
    return out + b"".join(
        tagged(2 if old else 100, 2, encode_layer(x, old, style)) for x in layers
    )


# --- text ---------------------------------------------------------------------------------------


def print_message(values: dict[str, Any], indent: str = "  ") -> str:
    out = ""
    for name, value in values.items():
        for one in value if isinstance(value, list) else [value]:
            if isinstance(one, dict):
                out += f"{indent}{name} {{\n{print_message(one, indent + '  ')}{indent}}}\n"
                continue
            text = (
                f'"{one}"'
                if isinstance(one, str) and not isinstance(one, Enum)
                else str(one)
            )
            text = text.lower() if isinstance(one, bool) else text
            out += f"{indent}{name}: {text}\n"
    return out


def print_layer(layer: L, old: bool) -> str:
    field_name, _, _, v1 = KINDS.get(layer.type, ("", 0, 0, None))
    values: dict[str, Any] = {"name": layer.name, "type": v1 if old else layer.type}
    values |= {"bottom": layer.bottoms, "top": layer.made()} | layer.extra
    if layer.params:
        values[field_name] = layer.params
    return f"{'layers' if old else 'layer'} {{\n{print_message(values)}}}\n"


def print_net(layers: list[L], old: bool = False, size: int | None = None) -> str:
    head = 'name: "test"\n'
    if size:
        head += f'input: "data"\ninput_dim: 1\ninput_dim: 3\ninput_dim: {size}\ninput_dim: {size}\n'
    return head + "".join(print_layer(layer, old) for layer in layers)


# --- running ------------------------------------------------------------------------------------


def opencv_outputs(
    prototxt: Path, caffemodel: Path, images: np.ndarray, names: Any
) -> Any:
    """What OpenCV computes for these layers, by name."""
    net = cv2.dnn.readNetFromCaffe(str(prototxt), str(caffemodel))
    net.setPreferableBackend(cv2.dnn.DNN_BACKEND_OPENCV)
    net.enableFusion(False)
    net.setInput(images)
    return dict(zip(names, net.forward(list(names)), strict=True))


def our_outputs(
    network: Network, images: np.ndarray
) -> tuple[dict[str, np.ndarray], np.ndarray]:
    """What each of our modules computes, by name, and the scores."""
    found: dict[str, np.ndarray] = {}
    for name, module in network.module.named_children():
        module.register_forward_hook(
            lambda m, a, y, name=name: found.update({name: y.numpy()})
        )
    return found, network.module(torch.from_numpy(images)).numpy()


def a_bit_of_everything(w: Any, old: bool = False) -> list[L]:
    """A network for images of 10 pixels in 3 kB, for damaging."""
    layers = [
        L("conv", "Convolution", ["data"], blobs=[w(4, 3, 3, 3), w(4)],
          params={"num_output": 4, "kernel_size": 3, "stride": 2, "pad": 1, "group": 1}),
        L("bn", "BatchNorm", ["conv"], ["conv"], [w(4), abs(w(4)), np.ones(1)]),
        L("scale", "Scale", ["conv"], ["conv"], [w(4), w(4)], {"bias_term": True}),
        L("relu", "ReLU", ["conv"], ["conv"], params={"negative_slope": 0.1}),
        L("lrn", "LRN", ["conv"], params={"local_size": 3, "alpha": 0.1}),
        L("pool", "Pooling", ["lrn"],
          params={"pool": AVE, "kernel_size": 3, "stride": 2, "pad": 1}),
        L("both", "Concat", ["pool", "pool"], params={"axis": 1}),
        L("sum", "Eltwise", ["both", "both"], params={"operation": SUM, "coeff": [1.0, 2.0]}),
        L("fc", "InnerProduct", ["sum"], blobs=[w(5, 72), w(5)], params={"num_output": 5}),
        L("prob", "Softmax", ["fc"]),
    ]  # fmt: skip
    return [layer for layer in layers if not old or KINDS[layer.type][3]]


def loads_and_runs(caffemodel: Path, prototxt: Path | None = None) -> bool:
    """Whether the files make a network that runs; if not, one of our errors says why."""
    try:
        network = load_caffe(caffemodel, prototxt)
    except DeepFishingError as error:
        message = str(error)
    else:
        size = min(network.preprocess.size, 100)
        if size < 100:
            assert network.module(torch.zeros(1, 3, size, size)).ndim == 2
        return True
    assert "\n" not in message
    assert len(message) < 3000
    return False


@pytest.fixture
def w(rng: np.random.Generator) -> Any:
    """Random weights, whose outputs keep the size of their inputs."""

    def make(*shape: int) -> np.ndarray:
        return (rng.normal(size=shape) / np.sqrt(np.prod(shape[1:]))).astype(np.float32)

    return make


@pytest.fixture
def caffe() -> SimpleNamespace:
    """The writer."""
    return SimpleNamespace(**globals())


@pytest.fixture
def write(tmp_path: Path):
    """Write a net of square images as prototxt and caffemodel; returns both paths."""

    def write(
        layers: list[L], size: int = 16, old: bool = False, style: str = ""
    ) -> Any:
        data = L("data", "Input", params={"shape": {"dim": [1, 3, size, size]}})
        prototxt, caffemodel = tmp_path / "net.prototxt", tmp_path / "net.caffemodel"
        text = print_net(layers, old, size) if old else print_net([data, *layers])
        prototxt.write_text(text)
        # a net that Caffe has trained begins with a data layer
        crop = {"transform_param": {"crop_size": size}}
        fed = L("data", "Data", tops=["data", "label"], extra=crop) if old else data
        caffemodel.write_bytes(encode_net([fed, *layers], old, style))
        return prototxt, caffemodel

    return write

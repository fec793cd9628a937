"""Targets: Caffe's binary and text files.

The sound inputs are one small network of each generation, written with the package's own table of
fields. A binary one is changed as the tree of messages that it is, so that lengths stay right.
"""

from __future__ import annotations

import random
import struct
from collections.abc import Mapping
from copy import deepcopy
from pathlib import Path
from typing import Any

import numpy as np
import torch

from deepfishing.networks.caffe.files import mean_pixel
from deepfishing.networks.caffe.importer import load_caffe
from deepfishing.networks.caffe.schema import ENUMS, FIELDS
from deepfishing.networks.network import Network
from fuzz.rule import obey
from fuzz.target import Run, Target, put

Node = list[Any]  # number, wire type, content: an int, bytes, or nodes
SIDE = 6  # pixels
_MOST_SIDE = 40


def encode(kind: str, values: Mapping[str, Any]) -> bytes:
    """A message in bytes."""
    out = b""
    for name, value in values.items():
        for one in value if isinstance(value, list) else [value]:
            out += _encode_node(_node(FIELDS[kind][name], one))
    return out


def _node(field: tuple[int, str], one: Any) -> Node:
    number, kind = field
    if kind in FIELDS:
        return [number, 2, encode(kind, one)]
    if kind in ENUMS:
        return [number, 0, ENUMS[kind].index(one)]
    if isinstance(one, str):
        return [number, 2, one.encode()]
    if isinstance(one, np.ndarray):
        return [number, 2, one.astype("<f4").tobytes()]
    if isinstance(one, float):
        return [number, 5, struct.pack("<f", one)]
    return [number, 0, int(one)]


def _varint(value: int) -> bytes:
    value &= (1 << 64) - 1
    out = bytearray()
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*out, value])


def _encode_node(node: Node) -> bytes:
    number, wire_type, content = node
    tag = _varint(number << 3 | wire_type)
    if isinstance(content, int):
        return tag + _varint(content)
    if isinstance(content, list):
        content = b"".join(map(_encode_node, content))
    return tag + (_varint(len(content)) if wire_type == 2 else b"") + content


def text(kind: str, values: Mapping[str, Any]) -> str:
    """A message as a prototxt."""
    out = []
    for name, value in values.items():
        _, inner = FIELDS[kind][name]
        for one in value if isinstance(value, list) else [value]:
            if inner in FIELDS:
                out.append(f"{name} {{ {text(inner, one)} }}\n")
            elif isinstance(one, bool):
                out.append(f"{name}: {str(one).lower()}")
            else:
                out.append(
                    f'{name}: "{one}"' if inner == "string" else f"{name}: {one}"
                )
    return " ".join(out)


def network(with_weights: bool = True) -> dict[str, Any]:
    """A classifier of the second generation with a layer of every type."""

    def layer(
        name: str, kind: str, bottom: Any = (), blobs: Any = (), **more: Any
    ) -> Any:
        found = {
            "name": name,
            "type": kind,
            "bottom": list(bottom),
            "top": [name],
            **more,
        }
        return found | (
            {"blobs": [_blob(*shape) for shape in blobs]} if with_weights else {}
        )

    conv = {"num_output": 4, "kernel_size": 3, "stride": 2, "pad": 1, "group": 1}
    pool = {"pool": "AVE", "kernel_size": 3, "stride": 2, "pad": 1}
    size = {"shape": {"dim": [1, 3, SIDE, SIDE]}}
    layers = [
        layer(
            "data",
            "Input",
            input_param=size,
            transform_param={"mean_value": 9.5, "scale": 0.5},
        ),
        layer(
            "conv",
            "Convolution",
            ["data"],
            [(4, 3, 3, 3), (4,)],
            convolution_param=conv,
        ),
        layer(
            "bn",
            "BatchNorm",
            ["conv"],
            [(4,), (4,), (1,)],
            batch_norm_param={"eps": 0.001},
        ),
        layer("scale", "Scale", ["bn"], [(4,), (4,)], scale_param={"bias_term": True}),
        layer("relu", "ReLU", ["scale"], relu_param={"negative_slope": 0.1}),
        layer(
            "lrn", "LRN", ["relu"], lrn_param={"local_size": 3, "alpha": 0.1, "k": 1.5}
        ),
        layer("pool", "Pooling", ["lrn"], pooling_param=pool),
        layer("prelu", "PReLU", ["pool"], [(4,)]),
        layer("elu", "ELU", ["pool"], elu_param={"alpha": 0.5}),
        layer("both", "Concat", ["prelu", "elu"], concat_param={"axis": 1}),
        layer("sum", "Eltwise", ["both", "both"], eltwise_param={"coeff": [1.0, 2.0]}),
        layer("flat", "Flatten", ["sum"], flatten_param={"axis": 1}),
        layer(
            "shape", "Reshape", ["flat"], reshape_param={"shape": {"dim": [0, 8, -1]}}
        ),
        layer(
            "fc7",
            "InnerProduct",
            ["shape"],
            [(6, 32), (6,)],
            inner_product_param=_inner(6),
        ),
        layer("tanh", "TanH", ["fc7"]),
        layer("drop", "Dropout", ["tanh"], include=[{"phase": "TEST"}]),
        layer(
            "fc8",
            "InnerProduct",
            ["drop"],
            [(5, 6), (5,)],
            inner_product_param=_inner(5),
        ),
        layer("prob", "Softmax", ["fc8"]),
    ]
    return {"name": "new", "layer": layers}


def old_network(with_weights: bool = True) -> dict[str, Any]:
    """A classifier of the first generation."""

    def layer(name: str, kind: str, bottom: str, blobs: Any = (), **more: Any) -> Any:
        found = {"name": name, "type": kind, "bottom": bottom, "top": name, **more}
        return found | (
            {"blobs": [_blob(*shape) for shape in blobs]} if with_weights else {}
        )

    shapes = [(6, 3 * SIDE * SIDE), (1, 1, 1, 6)]
    layers = [
        layer("fc7", "INNER_PRODUCT", "data", shapes, inner_product_param=_inner(6)),
        layer("relu", "RELU", "fc7"),
        layer(
            "fc8",
            "INNER_PRODUCT",
            "relu",
            [(5, 6), (5,)],
            inner_product_param=_inner(5),
        ),
        layer("prob", "SOFTMAX", "fc8"),
    ]
    return {
        "name": "old",
        "input": "data",
        "input_dim": [1, 3, SIDE, SIDE],
        "layers": layers,
    }


def _inner(n: int) -> dict[str, Any]:
    return {"num_output": n, "bias_term": True}


def _blob(*shape: int) -> dict[str, Any]:
    values = np.random.default_rng(sum(shape)).random(shape)
    if len(shape) == 4:  # the first generation's way
        return dict(zip(("num", "channels", "height", "width"), shape, strict=True)) | {
            "data": values
        }
    return {"shape": {"dim": list(shape)}, "data": values}


def _tree(data: bytes, kind: str) -> list[Node]:
    """The nodes of a message, as far as its bytes are sound."""
    fields = dict(FIELDS[kind].values())
    nodes: list[Node] = []
    place = 0
    while place < len(data):
        tag, place = _read_varint(data, place)
        number, wire_type = tag >> 3, tag & 7
        if wire_type == 0:
            content, place = _read_varint(data, place)
            nodes.append([number, 0, content])
            continue
        size = {1: 8, 5: 4}.get(wire_type, 0)
        if wire_type == 2:
            size, place = _read_varint(data, place)
        inner = data[place : place + size]
        place += size
        known = wire_type == 2 and fields.get(number) in FIELDS
        nodes.append(
            [number, wire_type, _tree(inner, fields[number]) if known else inner]
        )
    return nodes


def _read_varint(data: bytes, place: int) -> tuple[int, int]:
    value = shift = 0
    while place < len(data) and shift < 64:
        value |= (data[place] & 0x7F) << shift
        place, shift = place + 1, shift + 7
        if data[place - 1] < 0x80:
            break
    return value, place


def mutate_message(kind: str, data: bytes, rng: random.Random) -> bytes:
    """One field of a message, at any depth, becomes another one."""
    nodes = _tree(data, kind)
    lists, texts = [nodes], [b"data"]
    for inner in lists:  # grows while it is read
        lists += [node[2] for node in inner if isinstance(node[2], list) and node[2]]
        texts += [
            node[2]
            for node in inner
            if isinstance(node[2], bytes) and len(node[2]) < 20
        ]
    inner = rng.choice(lists)
    if not inner:
        return data
    place = rng.randrange(len(inner))
    number, wire_type, content = inner[place]
    way = rng.randrange(8)
    if way == 0:
        del inner[place]
    elif way == 1:
        inner.insert(rng.randint(0, len(inner)), inner[place])
    elif way == 2:
        rng.choice(lists).append(deepcopy(inner[place]))  # it may go into itself
    elif way == 3:
        inner[place] = [
            rng.choice((number + 1, number - 1, rng.randint(1, 145))),
            *inner[place][1:],
        ]
    elif isinstance(content, int):
        numbers = (
            0,
            1,
            2,
            3,
            4,
            content + 1,
            content - 1,
            100,
            9999,
            1 << 31,
            1 << 40,
            (1 << 64) - 1,
        )
        inner[place] = [number, wire_type, rng.choice(numbers)]
    elif wire_type == 5:
        new = rng.choice((0.0, -1.0, 1e-30, 1e38, float("nan"), float("inf")))
        inner[place] = [number, 5, struct.pack("<f", new)]
    elif isinstance(content, bytes):
        end = rng.randint(0, len(content))
        new_bytes = rng.choice(
            (rng.choice(texts), content[:end], content[: end // 4 * 4], content * 2)
        )
        inner[place] = [number, wire_type, new_bytes]
    return b"".join(map(_encode_node, nodes))


def _use(found: Network) -> None:
    """Run a network, unless it would take long: large images, or padding that makes them large."""
    side = found.preprocess.size
    pads = [
        getattr(m, "pad", getattr(m, "padding", (0, 0)))
        for m in found.module.children()
    ]
    if max(side, *(max(pad) for pad in pads)) <= _MOST_SIDE:
        with torch.inference_mode():
            found.module(torch.zeros(1, 3, side, side))


def _caffemodel(folder: Path) -> Run:
    path = folder / "net.caffemodel"
    return lambda data: obey(lambda: _use(load_caffe(put(path, data))))


def _prototxt(folder: Path) -> Run:
    path = folder / "net.prototxt"
    models = [
        put(folder / f"{n}.caffemodel", encode("NetParameter", net))
        for n, net in enumerate((network(), old_network()))
    ]

    def run(data: bytes) -> None:
        model = models[b"layers" in data]
        obey(lambda: _use(load_caffe(model, put(path, data))))

    return run


def _binaryproto(folder: Path) -> Run:
    path = folder / "mean.binaryproto"
    return lambda data: obey(lambda: mean_pixel(put(path, data)))


def _means() -> list[bytes]:
    blobs = (_blob(1, 3, 4, 4), _blob(3, 2, 2), _blob(3))
    return [encode("BlobProto", blob) for blob in blobs]


_WORDS = (
    b"layer {",
    b"}",
    b"type:",
    b"dim:",
    b'"',
    b"'",
    b"[",
    b"]",
    b"<",
    b">",
    b"-",
    b"inf",
)
_WORDS += tuple(name.encode() for fields in FIELDS.values() for name in fields)

TARGETS = {
    "caffemodel": Target(
        "Caffe's binary networks, both generations, and their shapes run",
        _caffemodel,
        lambda: [encode("NetParameter", net) for net in (network(), old_network())],
        mutate=lambda data, rng: mutate_message("NetParameter", data, rng),
    ),
    "prototxt": Target(
        "Caffe's text networks, with sound weights",
        _prototxt,
        lambda: [
            text("NetParameter", net).encode()
            for net in (network(False), old_network(False))
        ],
        tokens=_WORDS,
    ),
    "binaryproto": Target(
        "Caffe's mean images",
        _binaryproto,
        _means,
        mutate=lambda data, rng: mutate_message("BlobProto", data, rng),
    ),
}

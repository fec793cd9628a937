"""Targets: weight files, which come from anywhere.

Inputs go into a small module of their own shapes and into a network of the zoo, which takes its
widths from them. `torch-pickle` puts the pickle inside a torch file, whose zip is then sound.
"""

from __future__ import annotations

import io
import zipfile
from collections.abc import Callable
from pathlib import Path

import safetensors.torch
import torch
from torch import nn

from deepfishing.networks.load import load_network
from deepfishing.networks.weights import load_into, read_weights
from fuzz.parts import join, split
from fuzz.rule import obey
from fuzz.target import Run, Target, put

_PIECES = ("data.pkl", "byteorder", "version", *(f"data/{n}" for n in range(9)))


def _module() -> nn.Module:
    with torch.device("meta"):
        return nn.Sequential(nn.Conv2d(3, 2, 2), nn.BatchNorm2d(2), nn.Linear(2, 3))


def _tensors() -> list[dict[str, torch.Tensor]]:
    torch.manual_seed(0)
    small = nn.Sequential(
        nn.Conv2d(3, 2, 2), nn.BatchNorm2d(2), nn.Linear(2, 3)
    ).state_dict()
    zoo = {
        "features.0.weight": torch.zeros(2, 3),
        "classifier.1.weight": torch.ones(3, 2),
    }
    zoo |= {
        "classifier.4.weight": torch.zeros(4, 0),
        "classifier.6.bias": torch.zeros(2).half(),
    }
    return [small, {f"module.{name}": t for name, t in small.items()}, zoo]


def _read(path: Path) -> Callable[[bytes], None]:
    def run(data: bytes) -> None:
        put(path, data)
        obey(lambda: load_into(_module(), read_weights(path), str(path)))
        if b"classifier" in data:
            obey(lambda: load_network("alexnet-torchvision", path))

    return run


def _saved(value: object, new: bool = True) -> bytes:
    out = io.BytesIO()
    torch.save(value, out, _use_new_zipfile_serialization=new)
    return out.getvalue()


def _torch_files() -> list[bytes]:
    found = _tensors()
    values = [*found, {"state_dict": found[0], "epoch": 3}, found[0]["0.weight"]]
    return [_saved(value) for value in values] + [_saved(found[0], new=False)]


def _pieces(saved: bytes) -> bytes:
    with zipfile.ZipFile(io.BytesIO(saved)) as archive:
        names = {name.partition("/")[2]: name for name in archive.namelist()}
        return join([archive.read(names[p]) if p in names else b"" for p in _PIECES])


def _torch_pickle(folder: Path) -> Run:
    read = _read(folder / "net.pth")

    def run(data: bytes) -> None:
        out = io.BytesIO()
        with zipfile.ZipFile(out, "w") as archive:
            for name, content in zip(_PIECES, split(data, len(_PIECES)), strict=True):
                archive.writestr(f"archive/{name}", content)
        read(out.getvalue())

    return run


_PICKLE = (
    b"ctorch._utils\n_rebuild_tensor_v2\n",
    b"ctorch._utils\n_rebuild_parameter\n",
    b"ctorch\nFloatStorage\n",
    b"ctorch\nHalfStorage\n",
    b"ccollections\nOrderedDict\n",
    b"ctorch\nSize\n",
    b"cos\nsystem\n",
    b"cbuiltins\neval\n",
    b"X\x02\x00\x00\x00id",
    *(
        b"\x80\x02",
        b"(",
        b"t",
        b"R",
        b"Q",
        b"}",
        b"]",
        b"s",
        b"u",
        b"b",
        b".",
        b"K\x01",
        b"J",
    ),
    *(
        b"q\x01",
        b"h\x01",
        b"\x85",
        b"\x86",
        b"\x87",
        b"N",
        b"\x88",
        b"\x8a\x08",
        b"M\xff\xff",
    ),
)

TARGETS = {
    "safetensors": Target(
        "weights as safetensors",
        lambda folder: _read(folder / "net.safetensors"),
        lambda: [safetensors.torch.save(tensors) for tensors in _tensors()],
        tokens=(
            b'"F32"',
            b'"F16"',
            b'"I64"',
            b'"BF16"',
            b'"F8_E4M3"',
            b"[0,0]",
            b"classifier",
        ),
    ),
    "torch-file": Target(
        "weights as torch files, new and old",
        lambda folder: _read(folder / "net.pth"),
        _torch_files,
        tokens=(b"PK\x01\x02", b"PK\x03\x04", b"PK\x05\x06", b"data.pkl", *_PICKLE),
    ),
    "torch-pickle": Target(
        "the pickle in a sound torch file",
        _torch_pickle,
        lambda: [_pieces(saved) for saved in _torch_files()[:-1]],
        parts=len(_PIECES),
        tokens=_PICKLE,
    ),
}

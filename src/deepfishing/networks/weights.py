"""Reading of weight files, which are untrusted.

A `.pth`, `.pt` or `.safetensors` file becomes {name: tensor}, checked against the module that is to
have them. Nothing in a file is ever executed: `.pth` files are read with torch's weights-only
reader, which refuses all objects except tensors and containers.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Mapping
from pathlib import Path

import safetensors
import safetensors.torch
import torch
from torch import Tensor, nn

from deepfishing.errors import WeightsError, one_line
from deepfishing.networks.known_files import WEIGHTS_SUFFIXES
from deepfishing.networks.reference import weights_errors

# where training scripts put the weights, and what wrappers of modules put before their names
KEYS = (
    "state_dict",
    "model_state_dict",
    "model",
    "net",
    "state_dict_ema",
    "model_ema",
    "ema",
)
PREFIXES = ("module.", "_orig_mod.", "model.", "net.")
COUNTER = "num_batches_tracked"  # of batch normalisation


def read_weights(path: str | Path) -> dict[str, Tensor]:
    """Read the tensors of a weight file, half precision widened to float32.

    A state dict under one of `KEYS` is found, and one of `PREFIXES` that every name begins with is
    taken off.
    """
    path = Path(path)
    if path.suffix.lower() not in WEIGHTS_SUFFIXES:
        raise WeightsError(
            f"weights must be a .pth, .pt or .safetensors file, got {path}; convert it first"
        )
    with weights_errors(path):
        if not path.stat().st_size or path.is_dir():
            what = "a folder" if path.is_dir() else "an empty file"
            raise WeightsError(
                f"weights must be a file with tensors, got {what}: {path}"
            )
    return _plain_tensors(_read(path), path)


def load_into(module: nn.Module, tensors: Mapping[str, Tensor], source: str) -> None:
    """Put tensors from a `source` into a module that must have exactly these.

    The module may be on the meta device, without memory; the tensors become its own.
    """
    expected = _without_counters(module.state_dict())
    given = _without_counters(tensors)
    problems = _differences(expected, given)
    if problems:
        raise WeightsError(
            f"{source} does not fit the network: {'; '.join(problems)}; "
            "give the weights of this network, see `deepfish models`"
        )
    broken = []
    for name, tensor in given.items():
        if not tensor.isfinite().all():
            broken.append(f"{name} ({tensor.dtype})")
    if broken:
        raise WeightsError(
            f"weights must be finite, got NaN or infinity in {len(broken)}: {_first_few(broken)} "
            f"of {source}; get the file again"
        )
    # torch itself sets absent counters to 0; weights that layers share stay shared if there are any
    is_empty = any(tensor.is_meta for tensor in module.state_dict().values())
    module.load_state_dict(given, assign=is_empty)


def _without_counters(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return tensors without the counters of batch normalisation, which files may lack."""
    return {name: t for name, t in tensors.items() if not name.endswith(COUNTER)}


def _differences(
    expected: Mapping[str, Tensor], given: Mapping[str, Tensor]
) -> list[str]:
    """Return the tensors that are missing, unexpected or wrong, a text for each of these."""
    missing = []
    wrong = []
    for name, tensor in expected.items():
        if name not in given:
            missing.append(f"{name} {tuple(tensor.shape)}")
        elif _kind(given[name]) != _kind(tensor):
            wrong.append(f"{name} must be {_kind(tensor)}, got {_kind(given[name])}")
    unexpected = []
    for name, tensor in given.items():
        if name not in expected:
            unexpected.append(f"{name} {tuple(tensor.shape)}")
    texts = []
    for kind, problems in (
        ("missing", missing),
        ("unexpected", unexpected),
        ("wrong", wrong),
    ):
        if problems:
            texts.append(f"{len(problems)} {kind}: {_first_few(problems)}")
    return texts


def _read(path: Path) -> object:
    is_torch = path.suffix.lower() != ".safetensors"
    try:
        with warnings.catch_warnings():
            # of old formats; what matters is checked below
            warnings.simplefilter("ignore")
            if is_torch:
                return torch.load(path, map_location="cpu", weights_only=True)
            return safetensors.torch.load_file(path)
    except Exception as error:  # damaged bytes make both readers raise almost anything
        if "TorchScript" in str(error):
            raise WeightsError(
                f"{path} is a TorchScript program, which has its own network; if you trust who "
                f"made it, give --network torchscript:{path} without --weights"
            ) from None
        if is_torch and (forbidden := re.search(r"GLOBAL ([\w.]+)", str(error))):
            raise WeightsError(
                f"{path} holds the Python object {forbidden[1]}, and a file with more than tensors "
                "is not loaded, because it could run code; save `module.state_dict()` instead"
            ) from None
        kind = "torch file" if is_torch else f"safetensors file ({one_line(error)})"
        raise WeightsError(f"{path} is damaged or not a {kind}; get it again") from None


def _plain_tensors(content: object, path: Path) -> dict[str, Tensor]:
    """Return the tensors of a file's content, half precision widened, without prefixes."""
    tensors = _find_state_dict(content, path)
    if not isinstance(tensors, dict) or not tensors:
        size = len(tensors) if isinstance(tensors, dict) else 1
        raise WeightsError(
            f"{path} must hold a dict of named tensors, got {type(tensors).__name__} of {size}; "
            "save `module.state_dict()`"
        )
    others = [
        f"{name} ({type(value).__name__})"
        for name, value in tensors.items()
        if not _is_plain(name, value)
    ]
    if others:
        raise WeightsError(
            f"{path} must hold named dense tensors only, got {len(others)} other: "
            f"{_first_few(others)}; save `module.state_dict()`"
        )
    prefix = _common_prefix(tensors)
    return {name.removeprefix(prefix): _widened(t) for name, t in tensors.items()}


def _find_state_dict(content: object, path: Path) -> object:
    """Return the weights among what a training script has saved, or the content as it is."""
    for key in KEYS:
        if isinstance(content, dict) and isinstance(content.get(key), dict):
            content = content[key]
    if not isinstance(content, dict):
        return content
    inside = [key for key, value in content.items() if _is_state_dict(value)]
    if len(inside) > 1:
        raise WeightsError(
            f"{path} must hold the weights of one network, got those of "
            f"{_first_few([str(key) for key in inside])}; save one of them alone"
        )
    if not inside:
        return content
    return content[inside[0]]


def _is_state_dict(value: object) -> bool:
    if not isinstance(value, dict) or not value:
        return False
    return all(isinstance(tensor, Tensor) for tensor in value.values())


def _common_prefix(names: Mapping[str, object]) -> str:
    """Return what wrappers of modules have put before all names."""
    prefix = ""
    while True:
        for more in PREFIXES:
            longer = prefix + more
            if all(name.startswith(longer) for name in names):
                prefix = longer
                break
        else:
            return prefix


def _widened(tensor: Tensor) -> Tensor:
    """Return half precision as float32, other tensors as they are."""
    if not tensor.is_floating_point() or tensor.dtype == torch.float64:
        return tensor
    return tensor.float()


def _is_plain(name: object, value: object) -> bool:
    return (
        isinstance(name, str)
        and isinstance(value, Tensor)
        and value.layout == torch.strided
        and not value.is_quantized
        and value.device.type == "cpu"
        # one number stretched over a large shape would fill the memory later
        and value.numel() * value.element_size() <= value.untyped_storage().nbytes()
    )


def _kind(tensor: Tensor) -> str:
    """Return the shape of a tensor, with its type if it is not a float."""
    shape = str(tuple(tensor.shape))
    if tensor.is_floating_point():
        return shape
    return f"{shape} of {tensor.dtype}"


def _first_few(items: list[str], few: int = 3) -> str:
    text = ", ".join(items[:few])
    if len(items) > few:
        text += ", ..."
    return " ".join(text.split())  # a name from a file may hold a line break

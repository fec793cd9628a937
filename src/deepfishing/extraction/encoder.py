"""Stage 3, gradients: from a few images to their factors, without torch where that is possible.

The first run, which has torch, keeps a program in `home()/engines` under a hash of everything that
decides it; later runs need it alone, provided that the network's files are still the same.
"""

from __future__ import annotations

import hashlib
import importlib.util
import json
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from deepfishing.core.features import Factor
from deepfishing.errors import NetworkError, version_of
from deepfishing.extraction.batches import Batch
from deepfishing.extraction.engines import keep, kept, missing_packages, start_onnx
from deepfishing.extraction.options import Resources
from deepfishing.extraction.program import Program
from deepfishing.extraction.settings import Settings
from deepfishing.images.preprocess import ImageLike

if TYPE_CHECKING:
    from deepfishing.networks.network import Network

FEW = 64  # images; with more, torch's batches win back the time that it takes to load
# by what a network's name begins with: the package whose code decides the network, too
LIBRARIES = {
    "timm": "timm",
    "torchvision": "torchvision",
    "hf": "transformers",
    "open_clip": "open_clip_torch",
}
QUICKEST = ("onnxruntime", "openvino")  # to start, not to run

Encode = Callable[[Sequence[ImageLike]], Iterator[Batch]]  # an unreadable image is reported


def make_encoder(
    settings: Settings,
    factors: Sequence[Factor],
    load: Callable[[], Network],
    *,
    resources: Resources,
    weights: str | Path | None = None,
    own: bool = False,
) -> Encode:
    """Return an encoder for a few images: a program on disk, or torch, which writes one.

    `load` gives the network of the settings, `weights` is its weight file if it is elsewhere now,
    and `own` says that it was given in Python: then nothing is kept of it.
    """
    engine = next((name for name in QUICKEST if importlib.util.find_spec(name)), "")
    plain = settings.network.dtype == "float32" and resources.device == "cpu" and not own
    key = ""
    if engine and plain and settings.network.is_unchanged(weights):
        key = _key(settings, factors, engine)
    model = kept(key) if key else None
    if model:
        return Program(start_onnx(engine, model, threads=1), settings, factors)
    from deepfishing.extraction.extract import Extractor  # torch takes seconds to load

    made = Extractor(load(), factors, settings=settings, resources=resources)
    if key and model is None and not missing_packages(engine):
        from deepfishing.extraction.record import make_program

        try:
            keep(key, make_program(made.compute, engine))
        except NetworkError:
            keep(key, b"")  # so that it is not tried again
    return made


def _key(settings: Settings, factors: Sequence[Factor], engine: str) -> str:
    """Hash of all that decides a program, and of the code that makes one."""
    library, colon, _ = settings.network.name.partition(":")
    packages = [engine, "torch"]
    if colon and library in LIBRARIES:
        packages.append(LIBRARIES[library])
    versions = [f"{name} {version_of(name)}" for name in packages]
    facts = [settings.digest, [factor.name for factor in factors], versions, _source()]
    return hashlib.sha256(json.dumps(facts).encode()).hexdigest()[:32]


@cache
def _source() -> str:
    root, patterns = (
        Path(__file__).parents[1],
        ("*.py", "core/**/*.py", "extraction/*.py", "networks/**/*.py"),
    )
    files = (path for pattern in patterns for path in sorted(root.glob(pattern)))
    return hashlib.sha256(b"".join(path.read_bytes() for path in files)).hexdigest()

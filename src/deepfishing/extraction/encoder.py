"""Factors of a few images, without torch where possible.

The first run, which loads torch, keeps a program in `home()/engines` under a hash of everything
that determines its results. Later runs need only the program if the network's files are unchanged.
A program computes all factors of the paper's table, so other features need no other program.
"""

from __future__ import annotations

import hashlib
import importlib.util
import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from deepfishing.core.features import Factor, needed_factors
from deepfishing.core.recipes import parse_recipes
from deepfishing.errors import LayerError, NetworkError, version_of
from deepfishing.extraction.batches import Batch
from deepfishing.extraction.engines import keep, kept, missing_packages, start_onnx
from deepfishing.extraction.options import Resources
from deepfishing.extraction.program import Program
from deepfishing.extraction.settings import Settings
from deepfishing.images.preprocess import ImageLike

if TYPE_CHECKING:
    from deepfishing.extraction.extract import Extractor
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

# an unreadable image is reported
Encode = Callable[[Sequence[ImageLike]], Iterator[Batch]]
Notice = Callable[[str], None]


def make_encoder(
    settings: Settings,
    factors: Sequence[Factor],
    load: Callable[[], Network],
    *,
    resources: Resources,
    weights: str | Path | None = None,
    own: bool = False,
    notice: Notice | None = None,
) -> Encode:
    """Return an encoder for a few images: a program on disk, or torch, which writes one.

    `load` gives the network of the settings, `weights` is its weight file if it is elsewhere now,
    and `own` says that it was given in Python: then nothing is kept of it. `notice` is called with
    a line before a program is made, which takes a few seconds.
    """
    engine = next((name for name in QUICKEST if importlib.util.find_spec(name)), "")
    plain = (
        settings.network.dtype == "float32" and resources.device == "cpu" and not own
    )
    if engine and plain and settings.network.is_unchanged(weights):
        for chosen in _choices(settings, factors):
            key = _key(settings, chosen, engine)
            model = kept(key)
            if model:
                return Program(start_onnx(engine, model, threads=1), settings, factors)
            if model is None and not missing_packages(engine):
                if notice is not None:
                    notice(
                        f"preparing {settings.network.name} for single photos: some seconds, once "
                        "on this machine"
                    )
                made = _first_run(settings, chosen, load, resources, engine, key)
                if made is not None:
                    return _only(made, factors)
    from deepfishing.extraction.extract import Extractor  # torch takes seconds to load

    return Extractor(load(), factors, settings=settings, resources=resources)


def _choices(settings: Settings, factors: Sequence[Factor]) -> list[tuple[Factor, ...]]:
    """The factors of a program that has these: all of the table, or else these alone."""
    alone = tuple(factors)
    shared = needed_factors(parse_recipes("all", settings.network.layers))
    return [shared, alone] if set(alone) < set(shared) else [alone]


def _first_run(
    settings: Settings,
    factors: Sequence[Factor],
    load: Callable[[], Network],
    resources: Resources,
    engine: str,
    key: str,
) -> Extractor | None:
    """Keep a program of the factors and return the extractor that it was made of, if there is one.

    Torch has one thread and no other engine meanwhile: for passes as short as these, threads that
    wait for each other cost more than they save, and so does compiling the trunk.
    """
    from deepfishing.extraction.extract import Extractor  # torch takes seconds to load
    from deepfishing.extraction.record import make_program

    made = None
    with _one_thread():
        try:
            alone = replace(resources, engine="torch")
            made = Extractor(load(), factors, settings=settings, resources=alone)
            keep(key, make_program(made.compute, engine))
        except (NetworkError, LayerError):
            keep(key, b"")  # so that it is not tried again
    return made


def _only(encode: Encode, factors: Sequence[Factor]) -> Encode:
    """Return this encoder restricted to some factors."""

    def encode_some(images: Sequence[ImageLike]) -> Iterator[Batch]:
        for batch in encode(images):
            values = {f.name: batch.factors[f.name] for f in factors if batch.factors}
            yield replace(batch, factors=values)

    return encode_some


@contextmanager
def _one_thread() -> Iterator[None]:
    import torch  # takes seconds to load

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


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

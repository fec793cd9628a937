"""Factors of a few images, without torch where possible.

The first run, which loads torch, caches a program in `home()/engines` by a hash of everything that
determines its results. Later runs need only the program if the network's files are unchanged. A
program computes all factors of the paper's table, so other features need no other program.
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
from deepfishing.extraction.engines import (
    missing_packages,
    read_cached,
    start_onnx,
    write_cached,
)
from deepfishing.extraction.options import Resources
from deepfishing.extraction.program import Program
from deepfishing.extraction.settings import Settings
from deepfishing.images.preprocess import ImageLike

if TYPE_CHECKING:
    from deepfishing.extraction.extract import Extractor
    from deepfishing.networks.network import Network

MAX_IMAGES_WITHOUT_TORCH = (
    64  # with more, torch's batches save more time than it takes to load
)
# by the prefix of a network's name: the package whose version determines the network, too
LIBRARIES = {
    "timm": "timm",
    "torchvision": "torchvision",
    "hf": "transformers",
    "open_clip": "open_clip_torch",
}
BY_START_TIME = ("onnxruntime", "openvino")  # the quickest to start, not to run

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
    """Return an encoder for a few images: a cached program, or torch, which makes one.

    Parameters
    ----------
    settings, factors, resources
        As for `Extractor`.
    load : callable
        Returns the network of the settings.
    weights : path, optional
        The network's weight file, if it is elsewhere now.
    own : bool
        Whether the network was given in Python; then no program is cached.
    notice : callable, optional
        Called with a line before a program is made, which takes a few seconds.
    """
    network = settings.network
    installed = [name for name in BY_START_TIME if importlib.util.find_spec(name)]
    is_plain = network.dtype == "float32" and resources.device == "cpu" and not own
    if installed and is_plain and network.is_unchanged(weights):
        engine = installed[0]
        for chosen in _choices(settings, factors):
            key = _key(settings, chosen, engine)
            model = read_cached(key)
            if model:
                return Program(start_onnx(engine, model, threads=1), settings, factors)
            if model is None and not missing_packages(engine):
                if notice is not None:
                    notice(
                        f"preparing {network.name} for single photos: some seconds, once on this "
                        "machine"
                    )
                extractor = _first_run(settings, chosen, load, resources, engine, key)
                if extractor is not None:
                    return _restrict(extractor, factors)
    from deepfishing.extraction.extract import Extractor  # torch takes seconds to load

    return Extractor(load(), factors, settings=settings, resources=resources)


def _choices(settings: Settings, factors: Sequence[Factor]) -> list[tuple[Factor, ...]]:
    """Return the factors of a program that computes these: all of the table, or these alone."""
    alone = tuple(factors)
    shared = needed_factors(parse_recipes("all", settings.network.layers))
    if set(alone) < set(shared):
        return [shared, alone]
    return [alone]


def _first_run(
    settings: Settings,
    factors: Sequence[Factor],
    load: Callable[[], Network],
    resources: Resources,
    engine: str,
    key: str,
) -> Extractor | None:
    """Cache a program of the factors and return its extractor; None if the network has no program.

    Torch has one thread and no other engine meanwhile: in passes as short as these, threads that
    wait for each other cost more than they save, and so does compiling the trunk.
    """
    # torch takes seconds to load
    from deepfishing.extraction.extract import Extractor
    from deepfishing.extraction.record import make_program

    extractor = None
    with _one_thread():
        try:
            alone = replace(resources, engine="torch")
            extractor = Extractor(load(), factors, settings=settings, resources=alone)
            write_cached(key, make_program(extractor.compute, engine))
        except (NetworkError, LayerError):
            write_cached(key, b"")  # so that it is not tried again
    return extractor


def _restrict(encode: Encode, factors: Sequence[Factor]) -> Encode:
    """Return this encoder restricted to some factors."""

    def encode_some(images: Sequence[ImageLike]) -> Iterator[Batch]:
        for batch in encode(images):
            if batch.factors:
                values = {factor.name: batch.factors[factor.name] for factor in factors}
                batch = replace(batch, factors=values)
            yield batch

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
    """Return a hash of all that determines a program, and of the code that makes it."""
    library, colon, _ = settings.network.name.partition(":")
    packages = [engine, "torch"]
    if colon and library in LIBRARIES:
        packages.append(LIBRARIES[library])
    versions = [f"{name} {version_of(name)}" for name in packages]
    facts = [settings.digest, [factor.name for factor in factors], versions, _source()]
    return hashlib.sha256(json.dumps(facts).encode()).hexdigest()[:32]


@cache
def _source() -> str:
    """Return a hash of the code."""
    root = Path(__file__).parents[1]
    digest = hashlib.sha256()
    for pattern in ("*.py", "core/**/*.py", "extraction/*.py", "networks/**/*.py"):
        for path in sorted(root.glob(pattern)):
            digest.update(path.read_bytes())
    return digest.hexdigest()

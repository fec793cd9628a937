"""Stage 3, gradients: factors of a few images without torch, which takes seconds to load.

Comes in: settings, factors and images. Goes out: what an `Extractor` gives. A program is one ONNX
model of all of the work on one input, forward and backward. The first run, which has torch, makes
it (`engine.make_program`) and keeps it under a hash of all that decides it; later ones need it
alone, provided that the network's files are still the same.
"""

from __future__ import annotations

import hashlib
import importlib.util
import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from deepfishing.errors import ImageError, NetworkError
from deepfishing.features import Factor
from deepfishing.gradients.resources import Resources
from deepfishing.gradients.runtime import RunOnnx, keep, kept, missing_packages, start_onnx
from deepfishing.images.preprocess import ImageLike, find_views
from deepfishing.rank_one import Array, RankOne
from deepfishing.settings import Settings
from deepfishing.two_sided import two_sided

if TYPE_CHECKING:
    from deepfishing.networks.network import Network

FEW = 64  # images; with more, torch's batches win back the time that it takes to load
HUBS = ("timm", "torchvision")  # whose code decides a network, too
QUICKEST = ("onnxruntime", "openvino")  # to start, not to run


@dataclass(frozen=True, eq=False)
class Batch:
    """Factors of the images at `indices` by name, and the images that could not be read."""

    indices: list[int]
    factors: dict[str, Array]
    failures: dict[int, str]


Describer = Callable[[Sequence[ImageLike]], Iterator[Batch]]  # an unreadable image is reported


def gather(batches: Iterable[Batch]) -> dict[str, Array]:
    """Factors of all batches together; an image that could not be read is an error."""
    parts: dict[str, list[Array]] = {}
    for batch in batches:
        if batch.failures:
            raise ImageError(next(iter(batch.failures.values())))
        for name, values in batch.factors.items():
            parts.setdefault(name, []).append(values)
    return {name: np.concatenate(values) for name, values in parts.items()}


def describer(
    settings: Settings,
    factors: Sequence[Factor],
    load: Callable[[], Network],
    *,
    resources: Resources,
    weights: str | Path | None = None,
    own: bool = False,
) -> Describer:
    """What describes a few images: the program that was kept, or torch, which makes one to keep.

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
    from deepfishing.gradients.extract import Extractor  # torch takes seconds to load

    made = Extractor(load(), factors, settings=settings, resources=resources)
    if key and model is None and not missing_packages(engine):
        from deepfishing.gradients.engine import make_program

        try:
            keep(key, make_program(made.compute, engine))
        except NetworkError:
            keep(key, b"")  # so that it is not tried again
    return made


class Program:
    """A network's work on one input at a time: `run` makes parts of factors by `part_name`."""

    def __init__(self, run: RunOnnx, settings: Settings, factors: Sequence[Factor]) -> None:
        self.run, self.factors = run, factors
        self.preprocess, self.views = settings.network.preprocess, find_views(settings.views)

    def __call__(self, images: Sequence[ImageLike]) -> Iterator[Batch]:
        """Compute the factors of some images, one by one."""
        for index, image in enumerate(images):
            try:
                inputs = self.preprocess.see(image, self.views)
            except ImageError as error:
                yield Batch([], {}, {index: str(error)})
                continue
            each = [self.factors_of(one[None]) for one in inputs]
            joined = {f: np.concatenate([values[f] for values in each]) for f in self.factors}
            means = {f.name: aggregate(f, value, len(inputs)) for f, value in joined.items()}
            yield Batch([index], means, {})

    def factors_of(self, pixels: Array) -> dict[Factor, Array]:
        """Factors of one input (1, 3, S, S)."""
        outputs = self.run(pixels)
        found = {}
        for factor in self.factors:
            names = part_name(factor, 0), part_name(factor, 1)
            found[factor] = finish(factor, [outputs[name] for name in names if name in outputs])
        return found


def part_name(factor: Factor, number: int) -> str:
    """What a program calls a part of a factor: a projection is made of x and delta."""
    return f"{factor.name}/{number}"


def finish(factor: Factor, parts: Sequence[Array]) -> Array:
    """A factor of its parts: itself, or what is projected from both sides."""
    if isinstance(factor.positions, tuple):
        return two_sided(RankOne(*parts) if len(parts) > 1 else parts[0], *factor.positions)
    return parts[0]


def _key(settings: Settings, factors: Sequence[Factor], engine: str) -> str:
    """Hash of all that decides a program, and of the code that makes one."""
    packages = [engine, "torch", *(h for h in HUBS if settings.network.name.startswith(f"{h}:"))]
    versions = [f"{name} {version(name)}" for name in packages]
    facts = [settings.digest, [factor.name for factor in factors], versions, _source()]
    return hashlib.sha256(json.dumps(facts).encode()).hexdigest()[:32]


@cache
def _source() -> str:
    root, patterns = Path(__file__).parents[1], ("*.py", "gradients/*.py", "networks/**/*.py")
    files = (path for pattern in patterns for path in sorted(root.glob(pattern)))
    return hashlib.sha256(b"".join(path.read_bytes() for path in files)).hexdigest()


def aggregate(factor: Factor, values: Array, V: int) -> Array:
    """One descriptor per image of those of its V views, which follow each other.

    Forward factors and the factors of a gradient are averaged. Mean x times mean delta keeps the
    gradient rank-1; it approximates the mean of the V rank-1 gradients, which is not rank-1, and is
    exact if x or delta is the same in all views. Projected gradients are averaged too, and there
    the mean is exact since a projection is linear. Nor is anything lost behind `@exact`: positions
    of different views show different places, so the views' positions are put side by side and
    delta is divided by V, which makes the sum over all of them the mean of the V gradients. Values
    (n * V, d) or (n * V, P, d) become (n, d), or (n, V * P, d) behind `@exact`.

    >>> two_views = np.array([[1.0, 2.0], [3.0, 6.0]])
    >>> aggregate(Factor("delta", 8), two_views, V=2)
    array([[2., 4.]])
    >>> aggregate(Factor("delta", 8, "exact"), two_views, V=2).tolist()
    [[[0.5, 1.0], [1.5, 3.0]]]
    """
    if V == 1:
        return values
    if factor.positions == "exact":
        positions = values.reshape(len(values) // V, -1, values.shape[-1])
        return positions / V if factor.kind == "delta" else positions
    means: Array = values.reshape(-1, V, *values.shape[1:]).mean(axis=1)
    return means

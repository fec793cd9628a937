"""Stage 3, gradients: from images to features.

Comes in: a network and images. Goes out: forward features as arrays and gradients as `RankOne`,
l2-normalised. Images are decoded in threads while the network works, a batch at a time, so the
memory in use does not depend on how many images there are. An image may be described by several
views of it, whose descriptors are averaged (`aggregate`).
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from deepfishing.errors import ImageError, LayerError, NetworkError, OptionError
from deepfishing.features import EXACT, TOP, assemble, needed_factors, parse_features
from deepfishing.gradients.batch_size import (
    BatchSize,
    check_batch_size,
    choose_batch_size,
)
from deepfishing.gradients.cut import Cut, cut
from deepfishing.gradients.engine import Run, choose_engines, start_engine
from deepfishing.gradients.factors import gradient_factors, spread_groups
from deepfishing.gradients.objective import Label, cross_entropy, sigmoid_cross_entropy
from deepfishing.gradients.peak import peak_bytes
from deepfishing.gradients.pipeline import prepare
from deepfishing.gradients.rows import few_rows, without_zeros
from deepfishing.gradients.tap import Objective, Taps, find_module, tap
from deepfishing.images.preprocess import ImageLike
from deepfishing.images.views import find_views
from deepfishing.networks.network import Network
from deepfishing.projections import two_sided
from deepfishing.rank_one import Array, RankOne

BATCHES = 3  # about as many wait between trunk and head
TOLERANCE = 1e-3  # of a factor's largest value; in float32 engines differ by about 1e-5


@dataclass(frozen=True, eq=False)
class Batch:
    """Factors of the images at `indices`, and the images that could not be read."""

    indices: list[int]
    factors: dict[str, Array]
    failures: dict[int, str]


def extract(
    network: Network,
    images: Sequence[ImageLike],
    features: str | Iterable[str] = "all",
    tau: float = 2.0,
    label: Label = "uniform",
    batch_size: BatchSize = "auto",
    engine: str = "auto",
    views: str = "centre",
    memory: int | str | None = None,
) -> dict[str, Array | RankOne]:
    """Features of images, all from one forward and one short backward pass per batch.

    Parameters
    ----------
    network : Network
        From `load_network`.
    images : sequence of paths, PIL images or uint8 arrays
        An unreadable one raises `ImageError`.
    features : str or list of str
        Names such as `x7`, `x6;x7`, `dW7`; `all` gives the rows of the paper's Table 1.
    tau, label
        Temperature and label vector of the error, see `cross_entropy`.
    batch_size : int or "auto"
        Images per pass; the result does not depend on it, except for the last bits. `auto` is 32
        divided by the number of views, as a power of two, or what `memory` allows.
    engine : "auto", "torch", "onnxruntime" or "openvino"
        What runs the network below the lowest layer asked for; `auto` is the fastest installed.
    views : "centre", "flip", "scales" or "crops"
        What of an image the network sees: the central square as in the paper, or several views,
        see `find_views` and `aggregate`.
    memory : int or str
        What a batch may need, in bytes or as `2GB`; by default a quarter of the memory that there
        is, at most 2 GiB. Only `batch_size="auto"` looks at it.

    Returns
    -------
    dict
        By name: an array (n, d) for forward features, a `RankOne` for gradients; normalised.
    """
    wanted = parse_features(features, network.layers)
    factors = needed_factors(wanted)
    parts: dict[str, list[Array]] = {name: [] for name in factors}
    options = (tau, label, batch_size, engine, views, memory)
    for batch in extract_factors(network, images, factors, *options):
        if batch.failures:
            raise ImageError(next(iter(batch.failures.values())))
        for name, values in batch.factors.items():
            parts[name].append(values)
    if not len(images):
        raise OptionError("images must hold at least one image, got none")
    arrays = {name: np.concatenate(chunks) for name, chunks in parts.items()}
    return {feature.name: assemble(feature, arrays) for feature in wanted}


def extract_factors(
    network: Network,
    images: Sequence[ImageLike],
    factors: Sequence[str],
    tau: float = 2.0,
    label: Label = "uniform",
    batch_size: BatchSize = "auto",
    engine: str = "auto",
    views: str = "centre",
    memory: int | str | None = None,
) -> Iterator[Batch]:
    """Compute factors batch by batch; an unreadable image is reported, not raised."""
    yield from Extractor(network, factors, tau, label, batch_size, engine, views, memory)(images)


class Extractor:
    """`extract_factors` for several calls: the engine is started and checked once."""

    def __init__(
        self,
        network: Network,
        factors: Sequence[str],
        tau: float = 2.0,
        label: Label = "uniform",
        batch_size: BatchSize = "auto",
        engine: str = "auto",
        views: str = "centre",
        memory: int | str | None = None,
    ) -> None:
        check_batch_size(batch_size)
        self.views = find_views(views)
        self.preprocess = partial(network.preprocess.see, views=self.views)
        self.compute = _Computer(network, factors, tau, label, engine)
        if batch_size == "auto":
            size = self.compute.bytes_per_input()
            batch_size = choose_batch_size(size, len(self.views), memory)
        self.batch_size = batch_size

    def __call__(self, images: Sequence[ImageLike]) -> Iterator[Batch]:
        """Compute the factors of some images."""
        compute, V = self.compute, len(self.views)
        cores = torch.get_num_threads()
        todo = prepare(images, self.preprocess, compute.run, self.batch_size, cores, V)
        try:
            for batch in todo:
                # beside a trunk on every core the head needs few threads, and more would wait
                torch.set_num_threads(max(1, cores // 4) if compute.cut else cores)
                values = {} if batch.values is None else compute(batch.values)
                means = {factor: aggregate(factor, value, V) for factor, value in values.items()}
                yield Batch(batch.indices, means, batch.failures)
        finally:
            todo.close()
            torch.set_num_threads(cores)


def aggregate(factor: str, values: Array, V: int) -> Array:
    """One descriptor per image of those of its V views, which follow each other.

    Forward factors and the factors of a gradient are averaged. Mean x times mean delta keeps the
    gradient rank-1; it approximates the mean of the V rank-1 gradients, which is not rank-1, and is
    exact if x or delta is the same in all views. Projected gradients are averaged too, and there
    the mean is exact since a projection is linear. Nor is anything lost behind `@exact`: positions
    of different views show different places, so the views' positions are put side by side and
    delta is divided by V, which makes the sum over all of them the mean of the V gradients.

    Parameters
    ----------
    factor : str
        Its name.
    values : ndarray of shape (n * V, d) or (n * V, P, d)
        One row per input.
    V : int
        Views an image.

    Returns
    -------
    ndarray of shape (n, d), or (n, V * P, d) behind `@exact`

    Examples
    --------
    >>> two_views = np.array([[1.0, 2.0], [3.0, 6.0]])
    >>> aggregate("delta8", two_views, V=2)
    array([[2., 4.]])
    >>> aggregate("delta8@exact", two_views, V=2).tolist()
    [[[0.5, 1.0], [1.5, 3.0]]]
    """
    if V == 1:
        return values
    if factor.endswith(EXACT):
        positions = values.reshape(len(values) // V, -1, values.shape[-1])
        return positions / V if factor.startswith("delta") else positions
    means: Array = values.reshape(-1, V, *values.shape[1:]).mean(axis=1)
    return means


class _Computer:
    """The two parts of the work: `run` from pixels to the cut, and from there to the factors."""

    def __init__(
        self,
        network: Network,
        factors: Sequence[str],
        tau: float,
        label: Label,
        engine: str,
    ):
        self.network = network
        self.factors = factors
        self.objective = _objective(network, tau, label)
        self.gradients = list(dict.fromkeys(map(self.path, filter(_is_backward, factors))))
        self.read = [self.path(factor) for factor in factors if factor != f"x{TOP}"]
        self.checked = False
        self.skips: bool | None = None  # tokens without a gradient; the first pass tells
        # until an engine is found: nothing is cut off, all of the network is head
        self.module = network.module
        self.run: Run = torch.from_numpy
        self.cut = self.start(engine)

    def __call__(self, batch: Tensor) -> dict[str, Array]:
        values = self.compute(self.module, batch)
        if not self.checked and len(batch) > 1:
            alone = self.compute(self.module, batch[:1])
            if difference := self.difference({f: v[:1] for f, v in values.items()}, alone):
                raise NetworkError(
                    f"{self.network.name} must treat each image on its own, but {difference} "
                    "with the rest of its batch; use --batch-size 1 --views centre"
                )
            self.checked = True
        return values

    def compute(self, module: nn.Module, batch: Tensor) -> dict[str, Array]:
        batch = batch.to(self.network.device, self.network.dtype)
        taps = tap(module, batch, self.read, self.gradients, self.objective, bool(self.skips))
        values = {factor: self.factor(factor, taps) for factor in self.factors}
        if self.skips is None:
            deltas = [call.delta for path in self.gradients for call in taps.calls[path]]
            self.skips = bool(deltas) and few_rows(deltas)
            return self.skipping(module, batch, values) if self.skips else values
        return values

    def skipping(
        self, module: nn.Module, batch: Tensor, plain: dict[str, Array]
    ) -> dict[str, Array]:
        """Leave tokens without a gradient out from now on, if that gives the same."""
        try:
            values = self.compute(module, batch)
        except RuntimeError:  # code that writes to tensors which torch alone need not keep
            values = {}
        self.skips = bool(values) and not self.difference(values, plain)
        return values if self.skips else plain

    def bytes_per_input(self) -> int:
        """What one more input of a batch needs, with a margin."""
        batch = self.run(self.noise(1)).clone()
        # twice what is counted: not seen are NumPy's copies and the kernels' own memory
        head = 2 * peak_bytes(lambda: self.compute(self.module, batch))
        return head + BATCHES * batch.nbytes

    def start(self, engine: str) -> bool:
        """Cut the network and start the first engine that gives what torch gives."""
        names = choose_engines(engine)
        parts = self.parts()
        if parts is None:
            if engine not in ("auto", "torch"):
                raise NetworkError(
                    f"engine {engine} runs the part below the lowest layer asked for, in float32 "
                    f"on a CPU, and {self.network.name} cannot be cut there; take --engine torch"
                )
            return False
        pixels = self.noise(2)
        alone = [self.compute(self.network.module, torch.from_numpy(p[None])) for p in pixels]
        expected = {f: np.concatenate([values[f] for values in alone]) for f in self.factors}
        for name in names:
            try:
                run = start_engine(name, parts.trunk, pixels.shape[-1], torch.get_num_threads())
                got = self.compute(parts.head, run(pixels).clone())
                problem = self.difference(got, expected)
            except NetworkError as error:
                problem = str(error)
            if not problem:
                self.module, self.run, self.checked = parts.head, run, True
                return True
            if name != "torch":  # which then runs the network as it is
                message = f"{self.network.name} does not run in {name} as in torch: {problem}"
                if engine != "auto":
                    raise NetworkError(f"{message}; take --engine torch")
                warnings.warn(f"{message}; not used", stacklevel=2)
        return False

    def noise(self, n: int) -> Array:
        """Inputs that show nothing, to try things out."""
        size = self.network.preprocess.size
        images = np.random.default_rng(0).integers(0, 256, (n, size, size, 3), dtype=np.uint8)
        return np.stack([self.network.preprocess(image) for image in images])

    def parts(self) -> Cut | None:
        """The network cut below the lowest layer that is read, if that helps."""
        if self.network.device.type != "cpu" or self.network.dtype != torch.float32:
            return None
        return cut(self.network.module, self.read or [self.network.layers[TOP]])

    def path(self, factor: str) -> str:
        """The module that a factor is read from."""
        factor = factor.partition("@")[0]
        if ":" in factor:
            return factor.split(":", 1)[1]
        if factor.startswith("x"):
            return self.network.layers[int(factor[1:]) + 1]
        return self.network.layers[int(factor.lstrip("ydeltaW"))]

    def factor(self, factor: str, taps: Taps) -> Array:
        if factor == f"x{TOP}":
            y = _scores(self.network, taps.output).float()
            return _to_numpy(y.sigmoid() if self.network.head == "sigmoid" else y.softmax(dim=1))
        path = self.path(factor)
        calls = taps.calls[path]
        if not _is_backward(factor):
            if len(calls) > 1:
                raise LayerError(
                    f"{factor} must come from a layer that runs once, but {path} runs "
                    f"{len(calls)} times; choose another layer"
                )
            of_output = factor.startswith(("y", "x:"))
            return _to_numpy(_pool(calls[0].y if of_output else calls[0].x))
        layer = find_module(self.network.module, path)
        x, delta = gradient_factors(layer, calls)
        if "@" in factor and isinstance(layer, torch.nn.Conv2d) and layer.groups > 1:
            x, delta = spread_groups(x, delta, layer.groups)
        if factor.startswith("dW"):
            m1, m2 = map(int, factor.rpartition("@")[2].split("x"))
            x, delta = without_zeros(x, delta) if self.skips else (x, delta)
            return two_sided(RankOne(_to_numpy(x), _to_numpy(delta)), m1, m2)
        value = delta if factor.startswith("delta") else x
        if factor.endswith(EXACT) or value.ndim == 2:
            return _to_numpy(value)
        return _to_numpy(value.sum(dim=1) if factor.startswith("delta") else value.mean(dim=1))

    def difference(self, got: dict[str, Array], expected: dict[str, Array]) -> str:
        """Which factor differs by more than a thousandth of its largest value, and how much."""
        coarse = self.network.dtype in (torch.float16, torch.bfloat16)
        for factor, value in expected.items():
            error = np.abs(got[factor] - value).max()
            if not error <= (5e-2 if coarse else TOLERANCE) * np.abs(value).max() + 1e-12:
                return f"{factor} of an image changes by {error:.2g}"
        return ""


def _objective(network: Network, tau: float, label: Label) -> Objective:
    """E as a function of the module's output."""
    if callable(network.head):
        return network.head
    make = sigmoid_cross_entropy if network.head == "sigmoid" else cross_entropy
    error = make(tau, label)
    return lambda output: error(_scores(network, output))


def _scores(network: Network, output: Any) -> Tensor:
    scores: Tensor = output if network.pick is None else network.pick(output)
    return scores


def _is_backward(factor: str) -> bool:
    """Whether a factor needs the backward pass, for itself or to belong to its delta."""
    return factor.startswith(("delta", "in:", "dW")) or factor.endswith(EXACT)


def _pool(value: Tensor) -> Tensor:
    """(n, d) as it is; a map (n, d, H, W) or tokens (n, T, d) averaged over positions."""
    if value.ndim == 4:
        return value.mean(dim=(2, 3))
    return value.flatten(1, -2).mean(dim=1) if value.ndim == 3 else value


def _to_numpy(value: Tensor) -> Array:
    value = value if value.dtype == torch.float64 else value.float()
    array: Array = value.detach().cpu().numpy()
    return array

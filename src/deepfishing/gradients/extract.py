"""Stage 3, gradients: from images to features.

Comes in: a network and images. Goes out: forward features as arrays and gradients as `RankOne`,
l2-normalised. Images are decoded in threads while the network works, a batch at a time, so the
memory in use does not depend on how many images there are.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from itertools import islice
from typing import Any

import numpy as np
import torch
from torch import Tensor

from deepfishing.errors import ImageError, LayerError, NetworkError, OptionError
from deepfishing.features import EXACT, TOP, assemble, needed_factors, parse_features
from deepfishing.gradients.factors import gradient_factors, spread_groups
from deepfishing.gradients.objective import Label, cross_entropy, sigmoid_cross_entropy
from deepfishing.gradients.tap import Objective, Taps, find_module, tap
from deepfishing.images.preprocess import ImageLike
from deepfishing.networks.network import Network
from deepfishing.projections import two_sided
from deepfishing.rank_one import Array, RankOne


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
    batch_size: int = 32,
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
    batch_size : int
        Images per pass; the result does not depend on it.

    Returns
    -------
    dict
        By name: an array (n, d) for forward features, a `RankOne` for gradients; normalised.
    """
    wanted = parse_features(features, network.layers)
    factors = needed_factors(wanted)
    parts: dict[str, list[Array]] = {name: [] for name in factors}
    for batch in extract_factors(network, images, factors, tau, label, batch_size):
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
    batch_size: int = 32,
) -> Iterator[Batch]:
    """Compute factors batch by batch; an unreadable image is reported, not raised."""
    check_batch_size(batch_size)
    compute = _Computer(network, factors, tau, label)
    decoded = _decode_ahead(network, images, ahead=2 * batch_size)
    while chunk := list(islice(decoded, batch_size)):
        good = [(index, pixels) for index, pixels in chunk if not isinstance(pixels, str)]
        failures = {index: pixels for index, pixels in chunk if isinstance(pixels, str)}
        values = compute(np.stack([pixels for _, pixels in good])) if good else {}
        yield Batch([index for index, _ in good], values, failures)


def check_batch_size(batch_size: int) -> None:
    """Refuse a batch without images."""
    if batch_size < 1:
        raise OptionError(f"batch size must be at least 1, got {batch_size}")


def _decode_ahead(
    network: Network, images: Sequence[ImageLike], ahead: int
) -> Iterator[tuple[int, Array | str]]:
    """Decode in threads, at most `ahead` images early; a failure comes as its message."""
    waiting: deque[tuple[int, Future[Array]]] = deque()
    with ThreadPoolExecutor(os.cpu_count() or 1) as pool:
        todo = iter(enumerate(images))
        try:
            while True:
                for index, image in islice(todo, ahead - len(waiting)):
                    waiting.append((index, pool.submit(network.preprocess, image)))
                if not waiting:
                    return
                index, future = waiting.popleft()
                try:
                    yield index, future.result()
                except ImageError as error:
                    yield index, str(error)
        finally:
            for _, future in waiting:
                future.cancel()


class _Computer:
    """A batch of pixels in, a dict of factors out."""

    def __init__(self, network: Network, factors: Sequence[str], tau: float, label: Label):
        self.network = network
        self.factors = factors
        self.objective = _objective(network, tau, label)
        self.gradients = list(dict.fromkeys(map(self.path, filter(_is_backward, factors))))
        self.read = [self.path(factor) for factor in factors if factor != f"x{TOP}"]
        self.checked = False

    def __call__(self, pixels: Array) -> dict[str, Array]:
        batch = torch.from_numpy(pixels).to(self.network.device, self.network.dtype)
        values = self.compute(batch)
        if not self.checked and len(batch) > 1:
            self.check_alone(batch[:1], values)
            self.checked = True
        return values

    def compute(self, batch: Tensor) -> dict[str, Array]:
        taps = tap(self.network.module, batch, self.read, self.gradients, self.objective)
        return {factor: self.factor(factor, taps) for factor in self.factors}

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
            return two_sided(RankOne(_to_numpy(x), _to_numpy(delta)), m1, m2)
        value = delta if factor.startswith("delta") else x
        if factor.endswith(EXACT) or value.ndim == 2:
            return _to_numpy(value)
        return _to_numpy(value.sum(dim=1) if factor.startswith("delta") else value.mean(dim=1))

    def check_alone(self, first: Tensor, values: dict[str, Array]) -> None:
        """One image alone must give what it gave among others."""
        alone = self.compute(first)
        coarse = self.network.dtype in (torch.float16, torch.bfloat16)
        for factor, value in alone.items():
            error = np.abs(value[0] - values[factor][0]).max()
            if error > (5e-2 if coarse else 1e-3) * np.abs(value).max() + 1e-12:
                raise NetworkError(
                    f"{self.network.name} must treat each image on its own, but {factor} of an "
                    f"image changes by {error:.2g} with the rest of its batch; use --batch-size 1"
                )


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

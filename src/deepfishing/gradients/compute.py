"""Stage 3, gradients: from a batch of pixels to factors.

Comes in: a network, the factors wanted, pixels. Goes out: one array per factor, a row per input.
The part of the network below the lowest layer that is read runs in the fastest engine, provided
that it gives what torch gives.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from deepfishing.errors import LayerError, NetworkError
from deepfishing.features import TOP, Factor
from deepfishing.gradients.cut import Cut, cut
from deepfishing.gradients.engine import Run, choose_engines, start_engine
from deepfishing.gradients.factors import gradient_factors, spread_groups
from deepfishing.gradients.objective import Label, cross_entropy, sigmoid_cross_entropy
from deepfishing.gradients.peak import peak_bytes
from deepfishing.gradients.rows import few_rows, without_zeros
from deepfishing.gradients.tap import Objective, Taps, find_module, tap
from deepfishing.networks.network import Network
from deepfishing.projections import two_sided
from deepfishing.rank_one import Array, RankOne

BATCHES = 3  # about as many wait between trunk and head
TOLERANCE = 1e-3  # of a factor's largest value; in float32 engines differ by about 1e-5


class Computer:
    """The two parts of the work: `run` from pixels to the cut, and from there to the factors."""

    def __init__(
        self,
        network: Network,
        factors: Sequence[Factor],
        tau: float,
        label: Label,
        engine: str,
    ):
        self.network = network
        self.factors = factors
        self.objective = _objective(network, tau, label)
        paths = {f: f.path(network.layers) for f in factors if f.kind != "probabilities"}
        self.gradients = list(dict.fromkeys(path for f, path in paths.items() if f.needs_backward))
        self.read = list(paths.values())
        self.checked = False
        self.skips: bool | None = None  # tokens without a gradient; the first pass tells
        # until an engine is found: nothing is cut off, all of the network is head
        self.module = network.module
        self.run: Run = torch.from_numpy
        self.cut = self.start(engine)

    def __call__(self, batch: Tensor) -> dict[Factor, Array]:
        """Factors of a batch; the first is compared with one input alone."""
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

    def compute(self, module: nn.Module, batch: Tensor) -> dict[Factor, Array]:
        """Factors of what the module makes of a batch."""
        batch = batch.to(self.network.device, self.network.dtype)
        taps = tap(module, batch, self.read, self.gradients, self.objective, bool(self.skips))
        values = {factor: self.factor(factor, taps) for factor in self.factors}
        if self.skips is None:
            deltas = [call.delta for path in self.gradients for call in taps.calls[path]]
            self.skips = bool(deltas) and few_rows(deltas)
            return self.skipping(module, batch, values) if self.skips else values
        return values

    def skipping(
        self, module: nn.Module, batch: Tensor, plain: dict[Factor, Array]
    ) -> dict[Factor, Array]:
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

    def factor(self, factor: Factor, taps: Taps) -> Array:
        """One factor of a pass."""
        if factor.kind == "probabilities":
            y = _scores(self.network, taps.output)
            y = y if y.dtype == torch.float64 else y.float()
            return _to_numpy(y.sigmoid() if self.network.head == "sigmoid" else y.softmax(dim=1))
        path = factor.path(self.network.layers)
        calls = taps.calls[path]
        if not factor.needs_backward:
            if len(calls) > 1:
                raise LayerError(
                    f"{factor.name} must come from a layer that runs once, but {path} runs "
                    f"{len(calls)} times; choose another layer"
                )
            return _to_numpy(_pool(calls[0].y if factor.kind == "output" else calls[0].x))
        layer = find_module(self.network.module, path)
        x, delta = gradient_factors(layer, calls)
        if factor.positions != "pooled" and isinstance(layer, torch.nn.Conv2d) and layer.groups > 1:
            x, delta = spread_groups(x, delta, layer.groups)
        if isinstance(factor.positions, tuple):
            x, delta = without_zeros(x, delta) if self.skips else (x, delta)
            return two_sided(RankOne(_to_numpy(x), _to_numpy(delta)), *factor.positions)
        value = delta if factor.kind == "delta" else x
        if factor.positions == "exact" or value.ndim == 2:
            return _to_numpy(value)
        return _to_numpy(value.sum(dim=1) if factor.kind == "delta" else value.mean(dim=1))

    def difference(self, got: dict[Factor, Array], expected: dict[Factor, Array]) -> str:
        """Which factor differs by more than a thousandth of its largest value, and how much."""
        coarse = self.network.dtype in (torch.float16, torch.bfloat16)
        for factor, value in expected.items():
            error = np.abs(got[factor] - value).max()
            if not error <= (5e-2 if coarse else TOLERANCE) * np.abs(value).max() + 1e-12:
                return f"{factor.name} of an image changes by {error:.2g}"
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


def _pool(value: Tensor) -> Tensor:
    """(n, d) as it is; a map (n, d, H, W) or tokens (n, T, d) averaged over positions."""
    if value.ndim == 4:
        return value.mean(dim=(2, 3))
    return value.flatten(1, -2).mean(dim=1) if value.ndim == 3 else value


def _to_numpy(value: Tensor) -> Array:
    value = value if value.dtype == torch.float64 else value.float()
    array: Array = value.detach().cpu().numpy()
    return array

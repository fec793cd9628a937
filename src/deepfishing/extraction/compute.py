"""Computation of factors from a batch of pixels.

A `Computer` chooses once how each factor is read (`reader`), finds the layouts of the layers, and
compares their gradients with torch's. The part of the network below the lowest layer that is read
runs in the fastest engine whose results agree with those of torch.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from itertools import chain
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np
import torch
from torch import Tensor, nn

from deepfishing.core.features import TOKENS, TOP, Factor, has_classifier
from deepfishing.core.rank_one import Array
from deepfishing.errors import LayerError, NetworkError, OptionError
from deepfishing.extraction.batches import finish
from deepfishing.extraction.engines import choose_engines
from deepfishing.extraction.factors import (
    Use,
    block_gradients,
    check_gradients,
    gradient_factors,
    is_grouped,
    pooled_factors,
    sharing_weights,
)
from deepfishing.extraction.layout import (
    Layout,
    find_layouts,
    mean_over_positions,
    own_axis,
)
from deepfishing.extraction.options import FeatureOptions
from deepfishing.extraction.peak import peak_bytes
from deepfishing.extraction.settings import Settings
from deepfishing.extraction.tap import ErrorFunction, Taps, find_module, tap
from deepfishing.extraction.trunk import (
    Cut,
    RunTrunk,
    RunTrunkModule,
    Taken,
    cut,
    cut_by_running,
    start_engine,
)
from deepfishing.networks.network import Network
from deepfishing.networks.objectives import find_objective
from deepfishing.networks.reference import EMBEDDING

WAITING_BATCHES = 3  # between trunk and head, about
TOLERANCE = 1e-3  # of a factor's largest value; in float32 engines differ by about 1e-5
HALF_TOLERANCE = 5e-2  # the same in half precision

Layouts = dict[str, tuple[Layout, ...]]
# from the tensors of a batch to the parts of a factor, which `finish` puts together
Reader = Callable[[Taps], tuple[Tensor, ...]]

# layouts of the networks that were examined, by the factors that were asked for
_layouts: WeakKeyDictionary[Network, dict[Any, Layouts]] = WeakKeyDictionary()


class Computer:
    """Computes factors: `run` goes from pixels to the cut, a call from there to the factors."""

    def __init__(
        self,
        network: Network,
        factors: Sequence[Factor],
        *,
        settings: Settings,
        engine: str,
    ) -> None:
        self.network, self.factors, self.settings = network, factors, settings
        self.device, self.dtype = network.device, network.dtype
        self.objective = _error(network, settings)
        # per factor the module that it is read from, and the others that have the same weights
        self.paths: dict[Factor, tuple[str, ...]] = {}
        for factor in factors:
            if _of_output(factor, network):
                continue
            path = factor.path(network.layers)
            if _of_module(factor):
                self.paths[factor] = (path,)
            else:
                self.paths[factor] = sharing_weights(network.module, path)
        self.backward = [factor for factor in factors if factor.needs_backward]
        self.read = _each(self.paths.values())
        self.gradients = _each(self.paths[factor] for factor in self.backward)
        self.layers = {path: find_module(network.module, path) for path in self.read}
        self.checked = False
        # until an engine is started the whole network is the head
        self.module: nn.Module = network.module
        self.run: RunTrunk = torch.from_numpy
        self.layouts = self.learn()
        self.readers = {factor: self.reader(factor) for factor in factors}
        self.cut = self.start(engine)

    def __call__(self, batch: Tensor, n: int) -> dict[Factor, Array]:
        """Return the factors of a batch of n inputs.

        In the first batch the first input is compared with the same input alone.
        """
        values = self.compute(self.module, batch)
        for factor, value in values.items():
            if len(value) != n:
                raise LayerError(
                    f"{factor.name} must have a row per image, got {len(value)} rows for {n} "
                    f"images of {self.network.name}; choose another layer"
                )
        if not self.checked and n > 1:
            alone = self.compute(self.module, batch[:1])
            in_batch = {factor: value[:1] for factor, value in values.items()}
            difference = self.difference(in_batch, alone)
            if difference:
                raise NetworkError(
                    f"{self.network.name} must treat each image on its own, but {difference} "
                    "with the rest of its batch; use --batch-size 1 --views centre"
                )
            self.checked = True
        return values

    def compute(self, module: nn.Module, batch: Tensor) -> dict[Factor, Array]:
        """Run a module on a batch and return its factors."""
        batch = batch.to(self.device, self.dtype)
        taps = tap(module, batch, self.read, self.gradients, self.objective)
        values = {}
        for factor, read in self.readers.items():
            parts = [_to_numpy(part) for part in read(taps)]
            values[factor] = finish(factor, parts)
        return values

    def bytes_per_input(self) -> int:
        """Return the memory that one more input of a batch needs, with a margin."""
        batch = self.run(self.noise(1)).clone()
        # twice the counted bytes: NumPy's copies and the kernels' own memory are not counted
        head = 2 * peak_bytes(lambda: self.compute(self.module, batch))
        return head + WAITING_BATCHES * batch.nbytes

    def learn(self) -> Layouts:
        """Return the layout of every layer that is read; computed once per network, on noise.

        Gradients of one input are also compared with those of a backward pass of torch.
        """
        key = tuple(self.factors)
        layouts = _layouts.setdefault(self.network, {})
        if key not in layouts:
            layouts[key] = self._learn()
        return layouts[key]

    def _learn(self) -> Layouts:
        module = self.network.module
        inputs = torch.from_numpy(self.noise(2)).to(self.device, self.dtype)
        first_input = inputs[:1]
        alone = tap(module, first_input, self.read, self.gradients, self.objective)
        again = tap(module, first_input, self.read, self.gradients, self.objective)
        if _differ(self.tensors(alone), self.tensors(again), self.tolerance):
            raise NetworkError(
                f"{self.network.name} must give the same for the same image, and does not; "
                "leave dropout and other noise out of it"
            )
        outputs = _each(self.paths[f] for f in self.paths if _of_module(f))
        layouts = find_layouts(module, inputs, alone, outputs, self.tolerance)
        uses = {}
        for factor in self.backward:
            uses[self.paths[factor][0]] = self.uses(factor, alone, layouts)
        check_gradients(module, first_input, self.objective, uses, self.tolerance)
        return layouts

    def tensors(self, taps: Taps) -> list[Tensor]:
        """Return all tensors that factors are made of."""
        tensors = []
        for call in chain.from_iterable(taps.calls.values()):
            tensors += [call.x, call.y]
            if call.delta is not None:
                tensors.append(call.delta)
        if not callable(self.network.head):
            tensors.append(_scores(self.network, taps.output))
        return tensors

    @property
    def tolerance(self) -> float:
        """Largest difference between two computations of a factor, relative to its maximum."""
        if self.dtype in (torch.float16, torch.bfloat16):
            return HALF_TOLERANCE
        return TOLERANCE

    def start(self, engine: str) -> bool:
        """Cut the network and start the first engine whose results agree with torch's.

        Return whether the network is cut.
        """
        names = choose_engines(engine)
        parts = self.parts()
        if parts is None:
            return self.stay_whole(engine)
        pixels = self.noise(2)
        expected = self.compute_one_by_one(pixels)
        for name in names:
            try:
                run = start_engine(
                    name, parts.trunk, pixels.shape[-1], torch.get_num_threads()
                )
                middle = run(pixels)
                if not _is_batch_of_each(run, pixels, middle):
                    return self.stay_whole(engine)
                if not _takes_any_number(run, self.noise(3)):
                    raise NetworkError(
                        "it gives other numbers for one image than for three"
                    )
                factors = self.compute(parts.head, middle.clone())
                problem = self.difference(factors, expected)
            except (NetworkError, LayerError, RuntimeError) as error:
                problem = str(error)
            if not problem:
                self.module = parts.head
                self.run = run
                self.checked = True
                return True
            if name == "torch":  # the network is used whole
                continue
            message = (
                f"{self.network.name} does not run in {name} as in torch: {problem}"
            )
            if engine != "auto":
                raise NetworkError(f"{message}; take --engine torch")
            # a network that only `cut_by_running` cuts is used whole without a warning
            if not isinstance(parts.trunk, RunTrunkModule):
                warnings.warn(f"{message}; not used", stacklevel=2)
        return False

    def compute_one_by_one(self, pixels: Array) -> dict[Factor, Array]:
        """Return the factors of inputs that are passed through the whole network on their own."""
        module = self.network.module
        alone = [self.compute(module, torch.from_numpy(one[None])) for one in pixels]
        factors = {}
        for factor in self.factors:
            factors[factor] = np.concatenate([values[factor] for values in alone])
        return factors

    def stay_whole(self, engine: str) -> bool:
        """Leave the network in one piece, unless an engine is asked for by name."""
        if engine not in ("auto", "torch"):
            raise NetworkError(
                f"engine {engine} runs the part below the lowest layer asked for, in float32 on a "
                f"CPU, and {self.network.name} cannot be cut there; take --engine torch"
            )
        return False

    def noise(self, n: int) -> Array:
        """Return n inputs of random noise."""
        size = self.network.preprocess.size
        images = np.random.default_rng(0).integers(
            0, 256, (n, size, size, 3), dtype=np.uint8
        )
        return np.stack([self.network.preprocess(image) for image in images])

    def parts(self) -> Cut | None:
        """Return the network cut below the lowest layer that is read; None if it is not cut."""
        network = self.network
        if self.device.type != "cpu" or self.dtype != torch.float32:
            return None
        read = self.read
        if not read and has_classifier(network.layers):
            read = [network.layers[TOP]]
        parts = None
        if read:
            parts = cut(network.module, read)
        reads_top_only = read in ([], [network.layers.get(TOP)])
        if parts is None and reads_top_only and not callable(network.head):
            return cut_by_running(network.module, read, network.pick)
        return parts

    def uses(self, factor: Factor, taps: Taps, layouts: Layouts) -> list[Use]:
        """Return all runs of the modules that a factor is read from, images first."""
        uses = []
        for path in self.paths[factor]:
            for layout, call in zip(layouts[path], taps.calls[path], strict=True):
                uses.append((self.layers[path], layout.regroup(call)))
        return uses

    def reader(self, factor: Factor) -> Reader:
        """Return the function that reads a factor from the tensors of a batch."""
        if _is_embedding(factor, self.network):
            return self.read_scores
        if factor.kind == "probabilities":
            return self.read_probabilities
        if _of_module(factor):
            return partial(self.read_module, factor)
        if factor.needs_backward:
            is_block_diagonal = is_grouped(self.layers[self.paths[factor][0]])
            return partial(self.read_gradient, factor, is_block_diagonal)
        axis = own_axis(self.layers[self.paths[factor][0]]) or -1
        return partial(self.read_layer, factor, axis)

    def read_scores(self, taps: Taps) -> tuple[Tensor]:
        """Return the scores, or the embedding that takes their place."""
        return (_scores(self.network, taps.output),)

    def read_probabilities(self, taps: Taps) -> tuple[Tensor]:
        """Return the probabilities of the classes."""
        y = _scores(self.network, taps.output)
        if y.dtype != torch.float64:
            y = y.float()
        head = self.network.head
        name = "softmax" if callable(head) else head
        return (find_objective(name).probabilities(y),)

    def read_layer(self, factor: Factor, axis: int, taps: Taps) -> tuple[Tensor]:
        """Return input or output of a layer; the axes but `axis`, its channels, are averaged."""
        uses = self.uses(factor, taps, self.layouts)
        values = []
        for _, call in uses:
            if factor.kind == "output":
                values.append(call.y)
            else:
                values.append(call.x)
        return (mean_over_positions(values, [axis] * len(values)),)

    def read_gradient(
        self, factor: Factor, is_block_diagonal: bool, taps: Taps
    ) -> tuple[Tensor, ...]:
        """Return both factors of a gradient that is projected, or the one that is asked for."""
        uses = self.uses(factor, taps, self.layouts)
        if isinstance(factor.positions, tuple):
            if is_block_diagonal:
                return (block_gradients(uses),)
            return gradient_factors(uses)
        is_delta = factor.kind == "delta"
        if factor.positions == "pooled":
            return (pooled_factors(uses)[is_delta],)
        if not is_block_diagonal:
            return (gradient_factors(uses)[is_delta],)
        # no larger than the weights: x is the whole gradient, and delta is 1
        blocks = block_gradients(uses).flatten(1)
        if is_delta:
            return (torch.ones_like(blocks[:, :1]),)
        return (blocks,)

    def read_module(self, factor: Factor, taps: Taps) -> tuple[Tensor]:
        """Return a module's output, averaged over positions or over some tokens."""
        (path,) = self.paths[factor]
        outputs = []
        axes = []
        for layout, call in zip(self.layouts[path], taps.calls[path], strict=True):
            output = layout.images_first(call.y)
            if factor.positions in TOKENS:
                output = self.tokens(factor, output)
            outputs.append(output)
            axes.append(layout.channel or 0)
        return (mean_over_positions(outputs, axes),)

    def tokens(self, factor: Factor, value: Tensor) -> Tensor:
        """Return the class token or the patch tokens of an output (n, tokens, channels)."""
        prefix = self.network.prefix_tokens
        if not prefix or value.ndim != 3:
            raise LayerError(
                f"{factor.name} needs a module with a class token, got an output of shape "
                f"{tuple(value.shape[1:])} per image in a network with {prefix} such tokens; take "
                f"x:{factor.layer}, the mean over all positions"
            )
        if factor.positions == "class":
            return value[:, :1]
        return value[:, prefix:]

    def difference(
        self, got: dict[Factor, Array], expected: dict[Factor, Array]
    ) -> str:
        """Return which factor differs by more than the tolerance, and by how much, or ""."""
        for factor, value in expected.items():
            if got[factor].shape != value.shape:
                return f"{factor.name} of {len(value)} images has shape {got[factor].shape}"
            error = np.abs(got[factor] - value).max()
            if not error <= self.tolerance * np.abs(value).max() + 1e-12:
                return f"{factor.name} of an image changes by {error:.2g}"
        return ""


def _differ(once: Sequence[Tensor], twice: Sequence[Tensor], tolerance: float) -> bool:
    """Whether a tensor differs by more than the tolerance, relative to its largest value."""
    if len(once) != len(twice):
        return True
    for a, b in zip(once, twice, strict=True):
        if a.shape != b.shape:
            return True
        difference = float((a.detach() - b.detach()).abs().max())
        if difference > tolerance * float(a.detach().abs().max()):
            return True
    return False


def _is_batch_of_each(run: RunTrunk, pixels: Array, together: Tensor) -> bool:
    """Whether a trunk's output for several inputs is that of each of them, concatenated."""
    if len(together) == len(pixels):
        return True
    each = torch.cat([run(one[None]) for one in pixels])
    return _is_close(together, each)


def _takes_any_number(run: RunTrunk, pixels: Array) -> bool:
    """Whether a trunk gives the same for several inputs together as for each alone."""
    each = torch.cat([run(one[None]) for one in pixels])
    return _is_close(run(pixels), each)


def _is_close(a: Tensor, b: Tensor) -> bool:
    atol = TOLERANCE * float(b.abs().max())
    return a.shape == b.shape and torch.allclose(a, b, rtol=0, atol=atol)


def _error(network: Network, settings: Settings) -> ErrorFunction:
    """Return the error E as a function of the module's output."""
    if network.head == EMBEDDING:
        return _no_error
    if callable(network.head):
        usual = FeatureOptions()
        if (settings.tau, settings.label) != (usual.tau, usual.label):
            raise OptionError(
                f"tau and label are for softmax and sigmoid, and {network.name} has its own error; "
                f"leave them out, got tau {settings.tau} and label {settings.label!r}"
            )
        return network.head
    error = find_objective(network.head).error(settings.tau, settings.label)
    return lambda output: error(_scores(network, output))


def _no_error(output: Any) -> Tensor:
    raise LayerError(
        "gradients need class scores, got an embedding; take own(x7), gradients of a head made of "
        'your photos, or say what the output means with wrap(..., head="softmax")'
    )


def _scores(network: Network, output: Any) -> Tensor:
    """Return the scores (n, classes), or the embedding (n, d), of a module's output."""
    if isinstance(output, Taken):
        return output.value
    if network.pick is not None:
        output = network.pick(output)
    scores: Tensor = output
    return scores


def _of_output(factor: Factor, network: Network) -> bool:
    """Whether a factor is read from the network's output, not from a layer."""
    return factor.kind == "probabilities" or _is_embedding(factor, network)


def _is_embedding(factor: Factor, network: Network) -> bool:
    """Whether a factor is x7 of a network without a classifier."""
    is_x7 = factor.kind == "input" and factor.layer == TOP
    return is_x7 and not has_classifier(network.layers)


def _of_module(factor: Factor) -> bool:
    """Whether a factor is the output of a module; the others belong to a layer's weights."""
    return factor.kind == "output" and isinstance(factor.layer, str)


def _each(paths: Iterable[Sequence[str]]) -> list[str]:
    """Return all paths of several lists, each once."""
    return list(dict.fromkeys(chain.from_iterable(paths)))


def _to_numpy(value: Tensor) -> Array:
    if value.dtype != torch.float64:
        value = value.float()
    array: Array = value.detach().cpu().numpy()
    return array

"""Computation of factors from a batch of pixels.

The part of the network below the lowest layer that is read runs in the fastest engine whose results
agree with those of torch.
"""

from __future__ import annotations

import warnings
import weakref
from collections.abc import Callable, Iterable, Sequence
from itertools import chain
from typing import Any, cast
from weakref import WeakKeyDictionary

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

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
from deepfishing.extraction.layout import Layout, find_layouts, mean_over_positions, own_axis
from deepfishing.extraction.options import FeatureOptions
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

BATCHES = 3  # about as many wait between trunk and head
TOLERANCE = 1e-3  # of a factor's largest value; in float32 engines differ by about 1e-5
COARSE = 5e-2  # the same in half precision

Layouts = dict[str, tuple[Layout, ...]]

# what was found out about networks, by the layers that it is about
_known: WeakKeyDictionary[Network, dict[Any, Layouts]] = WeakKeyDictionary()


class Computer:
    """The two parts of the work: `run` from pixels to the cut, and from there to the factors."""

    def __init__(
        self, network: Network, factors: Sequence[Factor], *, settings: Settings, engine: str
    ) -> None:
        self.network, self.factors, self.settings = network, factors, settings
        self.objective = _error(network, settings)
        # per factor the module that it is read from, and the others that have the same weights
        paths = {f: f.path(network.layers) for f in factors if not _of_output(f, network)}
        self.paths = {
            f: (path,) if _of_module(f) else sharing_weights(network.module, path)
            for f, path in paths.items()
        }
        self.backward = [factor for factor in factors if factor.needs_backward]
        self.read = _each(self.paths.values())
        self.gradients = _each(self.paths[factor] for factor in self.backward)
        self.layers = {path: find_module(network.module, path) for path in self.read}
        self.checked = False
        # until an engine is found: nothing is cut off, all of the network is head
        self.module, self.run = network.module, cast("RunTrunk", torch.from_numpy)
        self.layouts = self.learn()
        self.cut = self.start(engine)

    def __call__(self, batch: Tensor, n: int) -> dict[Factor, Array]:
        """Factors of a batch of n inputs; the first is compared with one input alone."""
        values = self.compute(self.module, batch)
        for factor, value in values.items():
            if len(value) != n:
                raise LayerError(
                    f"{factor.name} must have a row per image, got {len(value)} rows for {n} "
                    f"images of {self.network.name}; choose another layer"
                )
        if not self.checked and n > 1:
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
        taps = tap(module, batch, self.read, self.gradients, self.objective)
        return {
            factor: finish(factor, [_to_numpy(part) for part in self.factor(factor, taps)])
            for factor in self.factors
        }

    def bytes_per_input(self) -> int:
        """What one more input of a batch needs, with a margin."""
        batch = self.run(self.noise(1)).clone()
        # twice what is counted: not seen are NumPy's copies and the kernels' own memory
        head = 2 * peak_bytes(lambda: self.compute(self.module, batch))
        return head + BATCHES * batch.nbytes

    def learn(self) -> Layouts:
        """Where the images are in every layer that is read; once per network and layers, on noise.

        The gradients of one input are compared with those of a backward pass of torch, too.
        """
        key = tuple(self.factors)
        known = _known.setdefault(self.network, {})
        if key not in known:
            module, inputs = self.network.module, torch.from_numpy(self.noise(2))
            inputs = inputs.to(self.network.device, self.network.dtype)
            outputs = _each(paths for factor, paths in self.paths.items() if _of_module(factor))
            alone, again = (
                tap(module, inputs[:1], self.read, self.gradients, self.objective) for _ in range(2)
            )
            if _differ(self.tensors(alone), self.tensors(again), self.tolerance):
                raise NetworkError(
                    f"{self.network.name} must give the same for the same image, and does not; "
                    "leave dropout and other noise out of it"
                )
            layouts = find_layouts(module, inputs, alone, outputs, self.tolerance)
            uses = {self.paths[f][0]: self.uses(f, alone, layouts) for f in self.backward}
            check_gradients(module, inputs[:1], self.objective, uses, self.tolerance)
            known[key] = layouts
        return known.get(key, {})

    def tensors(self, taps: Taps) -> list[Tensor]:
        """All that factors are made of."""
        calls = [call for found in taps.calls.values() for call in found]
        read = [t for call in calls for t in (call.x, call.y, call.delta) if t is not None]
        return read if callable(self.network.head) else [*read, _scores(self.network, taps.output)]

    @property
    def tolerance(self) -> float:
        """By how much of its largest value a factor may differ between two ways to compute it."""
        return COARSE if self.network.dtype in (torch.float16, torch.bfloat16) else TOLERANCE

    def start(self, engine: str) -> bool:
        """Cut the network and start the first engine that gives what torch gives."""
        names, parts = choose_engines(engine), self.parts()
        if parts is None:
            return self.stay_whole(engine)
        is_run = isinstance(parts.trunk, RunTrunkModule)
        pixels = self.noise(2)
        alone = [self.compute(self.network.module, torch.from_numpy(p[None])) for p in pixels]
        expected = {f: np.concatenate([values[f] for values in alone]) for f in self.factors}
        for name in names:
            try:
                run = start_engine(name, parts.trunk, pixels.shape[-1], torch.get_num_threads())
                middle = run(pixels)
                if not _joins(run, pixels, middle):
                    return self.stay_whole(engine)
                if not _takes_any_number(run, self.noise(3)):
                    raise NetworkError("it gives other numbers for one image than for three")
                problem = self.difference(self.compute(parts.head, middle.clone()), expected)
            except (NetworkError, LayerError, RuntimeError) as error:
                problem = str(error)
            if not problem:
                self.module, self.run, self.checked = parts.head, run, True
                return True
            if name != "torch":  # which then runs the network as it is
                message = f"{self.network.name} does not run in {name} as in torch: {problem}"
                if engine != "auto":
                    raise NetworkError(f"{message}; take --engine torch")
                if is_run:  # as other networks that cannot be cut
                    continue
                warnings.warn(f"{message}; not used", stacklevel=2)
        return False

    def stay_whole(self, engine: str) -> bool:
        """Leave the network in one piece, unless an engine is asked for by name."""
        if engine not in ("auto", "torch"):
            raise NetworkError(
                f"engine {engine} runs the part below the lowest layer asked for, in float32 on a "
                f"CPU, and {self.network.name} cannot be cut there; take --engine torch"
            )
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
        network, read = self.network, self.read
        if not read and has_classifier(network.layers):
            read = [network.layers[TOP]]
        parts = cut(network.module, read) if read else None
        top_only = read in ([], [network.layers.get(TOP)])
        if parts is None and top_only and not callable(network.head):
            return cut_by_running(network.module, read, network.pick)
        return parts

    def uses(self, factor: Factor, taps: Taps, layouts: Layouts) -> list[Use]:
        """All runs of the modules that a factor is read from, images first."""
        return [
            (self.layers[path], layout.regroup(call))
            for path in self.paths[factor]
            for layout, call in zip(layouts[path], taps.calls[path], strict=True)
        ]

    def factor(self, factor: Factor, taps: Taps) -> tuple[Tensor, ...]:
        """What `finish` makes one factor of."""
        if _is_embedding(factor, self.network):
            return (_scores(self.network, taps.output),)
        if factor.kind == "probabilities":
            y, head = _scores(self.network, taps.output), self.network.head
            y = y if y.dtype == torch.float64 else y.float()
            return (find_objective("softmax" if callable(head) else head).probabilities(y),)
        if _of_module(factor):
            (path,) = self.paths[factor]
            layouts = self.layouts[path]
            pairs = zip(layouts, taps.calls[path], strict=True)
            outputs = [layout.images_first(call.y) for layout, call in pairs]
            if factor.positions in TOKENS:
                outputs = [self.tokens(factor, value) for value in outputs]
            return (mean_over_positions(outputs, [lo.channel or 0 for lo in layouts]),)
        uses = self.uses(factor, taps, self.layouts)
        layer = uses[0][0]
        if not factor.needs_backward:
            values = [call.y if factor.kind == "output" else call.x for _, call in uses]
            return (mean_over_positions(values, [own_axis(layer) or -1] * len(values)),)
        if isinstance(factor.positions, tuple):
            if is_grouped(layer):
                return (block_gradients(uses),)
            return gradient_factors(uses)
        is_delta = factor.kind == "delta"
        if factor.positions == "pooled":
            return (pooled_factors(uses)[is_delta],)
        if not is_grouped(layer):
            return (gradient_factors(uses)[is_delta],)
        # block-diagonal and no larger than the weights: the whole gradient, times 1
        blocks = block_gradients(uses).flatten(1)
        return (torch.ones_like(blocks[:, :1]) if is_delta else blocks,)

    def tokens(self, factor: Factor, value: Tensor) -> Tensor:
        """The class token, or the patch tokens, of a module's output (n, tokens, channels)."""
        prefix = self.network.prefix_tokens
        if not prefix or value.ndim != 3:
            raise LayerError(
                f"{factor.name} needs a module with a class token, got an output of shape "
                f"{tuple(value.shape[1:])} per image in a network with {prefix} such tokens; take "
                f"x:{factor.layer}, the mean over all positions"
            )
        return value[:, :1] if factor.positions == "class" else value[:, prefix:]

    def difference(self, got: dict[Factor, Array], expected: dict[Factor, Array]) -> str:
        """Which factor differs by more than the tolerance, and by how much; or nothing."""
        for factor, value in expected.items():
            if got[factor].shape != value.shape:
                return f"{factor.name} of {len(value)} images has shape {got[factor].shape}"
            error = np.abs(got[factor] - value).max()
            if not error <= self.tolerance * np.abs(value).max() + 1e-12:
                return f"{factor.name} of an image changes by {error:.2g}"
        return ""


def _differ(once: Sequence[Tensor], twice: Sequence[Tensor], tolerance: float) -> bool:
    """Whether two lists of tensors differ, by more than so much of the largest value of each."""
    pairs = [(a.detach(), b.detach()) for a, b in zip(once, twice, strict=False)]
    return len(once) != len(twice) or any(
        a.shape != b.shape or float((a - b).abs().max()) > tolerance * float(a.abs().max())
        for a, b in pairs
    )


def _joins(run: RunTrunk, two: Array, both: Tensor) -> bool:
    """Whether what a trunk makes of two inputs, one below the other, is what it makes of both."""
    if len(both) == len(two):
        return True
    each, atol = torch.cat([run(one[None]) for one in two]), TOLERANCE * float(both.abs().max())
    return each.shape == both.shape and torch.allclose(each, both, rtol=0, atol=atol)


def _takes_any_number(run: RunTrunk, three: Array) -> bool:
    """Whether a trunk makes the same of three inputs together as of each alone."""
    both = run(three)
    each = torch.cat([run(one[None]) for one in three])
    atol = TOLERANCE * float(each.abs().max())
    return both.shape == each.shape and torch.allclose(both, each, rtol=0, atol=atol)


def _error(network: Network, settings: Settings) -> ErrorFunction:
    """E as a function of the module's output."""
    if network.head == EMBEDDING:
        return _no_error
    if callable(network.head):
        usual = FeatureOptions()
        if (settings.tau, settings.label) != (usual.tau, usual.label):
            raise OptionError(
                f"tau and label are for softmax and sigmoid, and {network.name} has an error of "
                f"your own; leave them out, got tau {settings.tau} and label {settings.label!r}"
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
    """The scores (n, classes), or the embedding (n, d), in a module's output."""
    if isinstance(output, Taken):
        return output.value
    scores: Tensor = output if network.pick is None else network.pick(output)
    return scores


def _of_output(factor: Factor, network: Network) -> bool:
    """Whether a factor is read from the network's output, not from a layer."""
    return factor.kind == "probabilities" or _is_embedding(factor, network)


def _is_embedding(factor: Factor, network: Network) -> bool:
    """Whether it is x7 of a network without a classifier."""
    is_x7 = factor.kind == "input" and factor.layer == TOP
    return is_x7 and not has_classifier(network.layers)


def _of_module(factor: Factor) -> bool:
    """Whether it is the output of a module; the others are of a layer's weights."""
    return factor.kind == "output" and isinstance(factor.layer, str)


def _each(paths: Iterable[Sequence[str]]) -> list[str]:
    return list(dict.fromkeys(chain.from_iterable(paths)))


def _to_numpy(value: Tensor) -> Array:
    value = value if value.dtype == torch.float64 else value.float()
    array: Array = value.detach().cpu().numpy()
    return array


def peak_bytes(compute: Callable[[], Any]) -> int:
    """Run a function and give the most bytes of new tensors that were alive at a time.

    Those that a backward pass waits for are included, on any device; a kernel's own memory is not.
    """
    watch = _Watch()
    with watch:
        compute()
    return watch.peak


class _Watch(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Sees every operation; a storage is known until it is freed."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.alive = self.peak = 0
        self.known: set[int] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        self.meet((args, kwargs), new=False)  # weights and inputs, which exist anyway
        result = func(*args, **kwargs)
        self.meet(result, new=True)
        self.peak = max(self.peak, self.alive)
        return result

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # nothing is compiled here; otherwise torch would load its compiler

    def meet(self, tree: Any, new: bool) -> None:
        for tensor in tree_leaves(tree):
            if isinstance(tensor, Tensor):
                storage = tensor.untyped_storage()
                address = storage.data_ptr()
                if address not in self.known:
                    self.known.add(address)
                    size = storage.nbytes() if new else 0
                    self.alive += size
                    weakref.finalize(storage, self.forget, address, size)

    def forget(self, address: int, size: int) -> None:
        self.known.discard(address)
        self.alive -= size

"""Search for the numbered layers of a module.

Layer 8 is the one that makes the scores; the others are the fully connected ones right below it.
Every layer's output begins a new graph of autograd, so the graph of the scores, or of a layer's
input, ends at the layers that they are computed from, in whatever order these ran.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from deepfishing.core.features import TOP
from deepfishing.errors import LayerError, one_line
from deepfishing.images.preprocess import Preprocess

CLOSE = 1e-3  # what probabilities may differ by, also in half precision
# How autograd names steps that follow the last layer of an embedding and never class scores.
_EMBEDDING_STEPS = {
    "Tanh": "tanh",
    "NativeLayerNorm": "layer norm",
    "NativeBatchNorm": "batch norm",
    "Gelu": "GELU",
    "Silu": "SiLU",
    "LinalgVectorNorm": "division by its length",
    "Norm": "division by its length",
}


@dataclass(frozen=True, eq=False)
class _Run:
    """One run of a layer; `y` begins a new graph, so that its uses can be traced."""

    path: str
    layer: Any
    x: Any
    y: Tensor


@dataclass(frozen=True)
class Found:
    """Numbered layers of a module, what was assumed, and why its output is an embedding.

    `no_scores` is empty where a layer makes class scores.
    """

    layers: dict[int, str]
    notes: tuple[str, ...] = ()
    no_scores: str = ""


def find_layers(
    module: nn.Module,
    preprocess: Preprocess,
    pick: Callable[[Any], Tensor],
    is_scores: bool = False,
) -> Found:
    """Find the classifier and the fully connected layers right below it.

    If the output is known to be class scores, others may be added to those of the classifier, such
    as the largest over all patches.
    """
    runs, scores = _run_blank(module, preprocess, pick)
    makers = _made_of(scores, runs)
    _check_scores(scores, makers)
    tops = [run for run in makers if _is_classifier(run, scores)]
    if not tops or not (is_scores or tops[-1] is makers[-1]):
        return Found({}, no_scores="no fully connected layer makes it")
    top = tops[-1]
    step = _step_behind(scores, top)
    if step is not None:
        return Found({}, no_scores=f"its layer {top.path} is followed by a {step}")
    layers = _chain(top, runs)
    names = list(dict.fromkeys(run.path for run in makers))
    if len(names) < 2:
        return Found(layers)
    note = f"the scores are made of {' and '.join(names)}; layer {TOP} is {top.path}"
    return Found(layers, (note,))


def find_below(
    module: nn.Module, preprocess: Preprocess, pick: Callable[[Any], Tensor]
) -> dict[int, str]:
    """Find the fully connected layers that an embedding is made of, 7 the last of them."""
    runs, embedding = _run_blank(module, preprocess, pick)
    makers = _made_of(embedding, runs)
    if not makers or not _is_connected(makers[-1]):
        return {}
    if len({run.path for run in makers}) > 1:
        return {}
    same_width = makers[-1].y.shape[1] == embedding.shape[1]
    if not same_width or _step_behind(embedding, makers[-1]) is not None:
        return {}
    return _chain(makers[-1], runs, top=TOP - 1)


def _chain(first: _Run, runs: Sequence[_Run], top: int = TOP) -> dict[int, str]:
    """Number a layer and the fully connected ones right below it, downwards."""
    layers = {top: first.path}
    # a number is that of weights, wherever they are used
    weights = [first.layer.weight]
    below = _made_of(first.x, runs)
    while below and len(layers) < top:
        run = below[-1]
        is_used_again = any(run.layer.weight is weight for weight in weights)
        if is_used_again or not _is_connected(run):
            break
        weights.append(run.layer.weight)
        layers[top - len(layers)] = run.path
        below = _made_of(run.x, runs)
    return layers


def _is_connected(run: _Run) -> bool:
    return isinstance(run.layer, nn.Linear) and run.y.ndim == 2 and len(run.y) == 1


def _is_classifier(run: _Run, scores: Tensor) -> bool:
    """Whether a layer makes the scores, perhaps pooled or scaled afterwards."""
    makes_numbers = _is_connected(run) or _is_pointwise(run.layer)
    return makes_numbers and run.y.shape[1] == scores.shape[1]


def _step_behind(scores: Tensor, run: _Run) -> str | None:
    """Return a step behind a layer that class scores do not have, such as a tanh, or None."""
    names = {type(node).__name__ for node in _nodes(scores)}
    for start, step in _EMBEDDING_STEPS.items():
        if any(name.startswith(start) for name in names):
            return step
    rectified = any(name.startswith("Relu") for name in names)
    if rectified and _is_connected(run):
        return "ReLU"
    return None


def _run_blank(
    module: nn.Module, preprocess: Preprocess, pick: Callable[[Any], Tensor]
) -> tuple[list[_Run], Tensor]:
    """Return the layers that run on a blank image, in order, and the scores."""
    runs: list[_Run] = []

    def hook_for(path: str) -> Callable[..., Tensor | None]:
        def hook(layer: nn.Module, args: Any, kwargs: Any, y: Tensor) -> Tensor | None:
            if y.is_inference():
                return None
            x = next(iter((*args, *kwargs.values())), None)
            runs.append(_Run(path, layer, x, y.detach().requires_grad_()))
            return runs[-1].y.clone()  # since an in-place operation may follow

        return hook

    handles = []
    for path, layer in module.named_modules():
        if isinstance(layer, nn.Linear | nn.Conv2d):
            handle = layer.register_forward_hook(hook_for(path), with_kwargs=True)
            handles.append(handle)
    modes = {m: m.training for m in module.modules()}
    # graphs begin at the outputs of layers; what a module keeps of its weights gets none
    learned = [p for p in module.parameters() if p.requires_grad]
    try:
        for parameter in learned:
            parameter.requires_grad_(False)
        like = next(module.parameters(), torch.zeros(0))
        blank = torch.zeros(1, 3, preprocess.size, preprocess.size).to(like)
        with torch.enable_grad():
            return runs, pick(module.eval()(blank))
    except LayerError:
        raise
    except Exception as error:  # whatever the code of a module may raise
        raise LayerError(
            f"the module must take images of shape (n, 3, {preprocess.size}, {preprocess.size}), "
            f"but a blank one fails ({one_line(error)}); give preprocess, or layers"
        ) from None
    finally:
        for handle in handles:
            handle.remove()
        for parameter in learned:
            parameter.requires_grad_(True)
        for m, training in modes.items():
            m.training = training


def run_blank(module: nn.Module, preprocess: Preprocess) -> Any:
    """Return the output of a module for one blank image."""
    return _run_blank(module, preprocess, lambda output: output)[1]


def _made_of(value: Any, runs: Sequence[_Run]) -> list[_Run]:
    """Return the runs whose outputs lead to a tensor without another layer in between."""
    leaves = {id(getattr(node, "variable", None)) for node in _nodes(value)}
    return [run for run in runs if id(run.y) in leaves]


def _nodes(value: Any) -> set[Any]:
    """Return the steps of autograd's graph that lead to a tensor."""
    seen: set[Any] = set()
    todo = [value.grad_fn] if isinstance(value, Tensor) else []
    while todo:
        node = todo.pop()
        if node is not None and node not in seen:
            seen.add(node)
            todo += [before for before, _ in node.next_functions]
    return seen


def _check_scores(scores: Tensor, makers: Sequence[_Run]) -> None:
    """Refuse probabilities, since E would take the SoftMax of a SoftMax."""
    values = scores.detach().double()
    outputs = [run.y.detach().double() for run in makers if run.y.shape == scores.shape]
    is_softmax = len(values[0]) > 1 and float(values.min()) >= 0
    is_softmax = is_softmax and abs(float(values.sum()) - 1) < CLOSE
    is_sigmoid = any(float((y.sigmoid() - values).abs().max()) < CLOSE for y in outputs)
    if is_softmax or is_sigmoid:
        end, back = "sigmoid", "torch.logit"
        if is_softmax:
            end, back = "SoftMax", "torch.log"
        raise LayerError(
            f"the module's output must be scores, got probabilities: it ends with a {end}; wrap "
            f"the module without it, or take it back with wrap(..., logits={back})"
        )


def is_program(module: nn.Module) -> bool:
    """Whether it is a program that was made of a module: by torch.jit or torch.export."""
    return isinstance(module, torch.jit.ScriptModule) or "eval" in vars(module)


def _is_pointwise(layer: nn.Module | None) -> bool:
    return isinstance(layer, nn.Conv2d) and set(layer.kernel_size) == {1}


def check_layers(module: nn.Module, layers: Mapping[int, str]) -> None:
    """Refuse a number out of 1 to 8, and a layer that is not fully connected."""
    modules = dict(module.named_modules())
    for k, path in layers.items():
        layer = modules.get(path)
        if not isinstance(k, int) or not 1 <= k <= TOP:
            raise LayerError(
                f"layers are numbered 1 to {TOP}, {TOP} the classifier, got {k!r}"
            )
        if not (isinstance(layer, nn.Linear) or _is_pointwise(layer)):
            raise LayerError(
                f"a numbered layer must be the path of a Linear or a 1x1 Conv2d, got {path!r} for "
                f"{k}; others need no number, ask for dW:PATH"
            )

"""Stage 2, networks: a module of your own becomes a `Network`.

Comes in: any torch module that maps a batch of images to scores or embeddings. Goes out: a
`Network` whose features can be extracted, with its classifier found and its weights hashed.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
from torch import Tensor, nn

from deepfishing.errors import LayerError, OptionError
from deepfishing.features import TOP
from deepfishing.images.preprocess import Preprocess
from deepfishing.networks.identity import architecture, identity
from deepfishing.networks.network import Network
from deepfishing.networks.reference import RANDOM, UNTOLD
from deepfishing.networks.zoo import IMAGENET
from deepfishing.objectives import find_objective

Head = str | Callable[[Any], Tensor]
RANDOM_CLASSES = 1000  # of the head of an embedding


def wrap(
    module: nn.Module,
    layers: Mapping[int, str] | None = None,
    preprocess: Preprocess = IMAGENET,
    name: str = "",
    head: Head = "softmax",
    logits: str | int | Callable[[Any], Tensor] | None = None,
    seed: int = 0,
) -> Network:
    """Make a `Network` of any torch module.

    Every Linear and Conv2d of it is then a gradient layer, `dW:PATH` with its dotted path;
    `layers` gives some of them the short names.

    Parameters
    ----------
    module : nn.Module
        It is not changed, and its mode and `requires_grad` are restored after each use.
    layers : mapping from int to str, optional
        k -> path of the module that holds W_k, 8 being the classifier: fully connected layers or
        1x1 convolutions. Without it the classifier and the fully connected layers right below it
        are found by running the module on a blank image; where the last layer that runs does not
        make the scores, no layer has a short name.
    preprocess : Preprocess
        How it wants its pixels; ImageNet's mean and deviation at 224 px by default.
    name : str
        The module's class by default.
    head : "softmax", "sigmoid", "random" or callable
        What the output means: scores of one class per image; of any number of classes per image;
        an embedding without a classifier, which gets a fixed random linear head of 1,000 classes;
        or the error E(output) itself, summed over the batch.
    logits : str, int or callable, optional
        Where the scores are in an output that is a dict, a tuple or an object.
    seed : int
        Of the random head.

    Examples
    --------
    >>> net = wrap(nn.Sequential(nn.Flatten(), nn.Linear(3 * 224 * 224, 5), nn.ReLU(),
    ...                          nn.Linear(5, 4)))
    >>> net.layers
    {7: '1', 8: '3'}
    """
    if not isinstance(module, nn.Module):
        raise OptionError(f"module must be a torch module, got {type(module).__name__}")
    if isinstance(head, str) and head != RANDOM:
        find_objective(head)
    pick = _Pick(logits, seed if head == RANDOM else None)
    if layers is None:
        has_classifier = isinstance(head, str) and head != RANDOM
        layers = _discover(module, preprocess, pick) if has_classifier else {}
    else:
        _check_layers(module, layers)
    known = architecture(module) + state_sha256(module).encode()
    return Network(
        name=name or type(module).__name__,
        module=module,
        layers=dict(sorted(layers.items())),
        preprocess=preprocess,
        weights_sha256=hashlib.sha256(known).hexdigest(),
        head="softmax" if head == RANDOM else head,
        pick=pick,
    )


@dataclass(frozen=True)
class _Pick:
    """Takes the scores out of an output, or makes scores of the embedding that it finds there."""

    logits: str | int | Callable[[Any], Tensor] | None  # name, number or function of the part
    seed: int | None  # of the random head of an embedding

    def __call__(self, output: Any) -> Tensor:
        logits = self.logits
        if callable(logits):
            output = logits(output)
        elif logits is not None:
            try:
                output = output[logits]
            except (KeyError, IndexError, TypeError):
                output = getattr(output, str(logits), None)
        if isinstance(output, Tensor) and output.ndim == 2:
            if self.seed is None:
                return output
            return torch.mm(output, _random_head(self.seed, output.shape[1]).to(output))
        got = f"shape {tuple(output.shape)}" if isinstance(output, Tensor) else _kind(output)
        raise LayerError(
            f"the network's output must be scores of shape (n, classes), got {got}; say which part "
            "of it with wrap(..., logits=NAME or INDEX or FUNCTION)"
        )

    def identity(self) -> str:
        """Which part it takes, empty if all of it, and which random head."""
        part = "" if self.logits is None else repr(self.logits)
        part = identity(self.logits) if callable(self.logits) else part
        if self.seed is None or part == UNTOLD:
            return part
        return f"{part} @ random({self.seed}, {RANDOM_CLASSES})".strip()


@cache
def _random_head(seed: int, width: int) -> Tensor:
    random = torch.Generator().manual_seed(seed)
    with torch.inference_mode(False):  # so that gradients can go through it, whoever asks first
        head: Tensor = torch.randn(width, RANDOM_CLASSES, generator=random) / width**0.5
        return head


def _kind(output: Any) -> str:
    names = list(output) if isinstance(output, dict) else []
    return f"a {type(output).__name__}" + (f" with {names}" if names else "")


def _discover(
    module: nn.Module, preprocess: Preprocess, pick: Callable[[Any], Tensor]
) -> dict[int, str]:
    """The classifier, and the fully connected layers that run right before it."""
    ran: list[tuple[str, nn.Module, Tensor]] = []
    handles = [
        layer.register_forward_hook(lambda m, _, y, path=path: ran.append((path, m, y)))
        for path, layer in module.named_modules()
        if isinstance(layer, nn.Linear | nn.Conv2d)
    ]
    modes = {m: m.training for m in module.modules()}
    try:
        like = next(module.parameters(), torch.zeros(0))
        blank = torch.zeros(1, 3, preprocess.size, preprocess.size).to(like)
        with torch.no_grad():
            scores = pick(module.eval()(blank))
    except LayerError:
        raise
    except (RuntimeError, TypeError, ValueError) as error:
        reason = str(error).partition("\n")[0][:200]
        raise LayerError(
            f"the module must take images of shape (n, 3, {preprocess.size}, {preprocess.size}), "
            f"but a blank one fails ({reason}); give preprocess, or layers"
        ) from None
    finally:
        for handle in handles:
            handle.remove()
        for m, training in modes.items():
            m.training = training
    layers: dict[int, str] = {}
    weights: list[Any] = []  # a number is that of weights, wherever they are used
    for path, layer, y in reversed(ran[-TOP:]):
        connected = isinstance(layer, nn.Linear) and y.ndim == 2 and len(y) == 1
        if not layers:  # the last to run makes the scores, perhaps pooled or scaled afterwards
            if not (connected or _is_pointwise(layer)) or y.shape[1] != scores.shape[1]:
                break
        elif not connected or any(layer.weight is weight for weight in weights):
            break
        weights.append(layer.weight)
        layers[TOP - len(layers)] = path
    return layers


def _is_pointwise(layer: nn.Module | None) -> bool:
    return isinstance(layer, nn.Conv2d) and set(layer.kernel_size) == {1}


def _check_layers(module: nn.Module, layers: Mapping[int, str]) -> None:
    known = dict(module.named_modules())
    for k, path in layers.items():
        layer = known.get(path)
        if not isinstance(k, int) or not 1 <= k <= TOP:
            raise LayerError(f"layers are numbered 1 to {TOP}, {TOP} the classifier, got {k!r}")
        if not (isinstance(layer, nn.Linear) or _is_pointwise(layer)):
            raise LayerError(
                f"a numbered layer must be the path of a Linear or a 1x1 Conv2d, got {path!r} for "
                f"{k}; others need no number, ask for dW:PATH"
            )


def state_sha256(module: nn.Module) -> str:
    """Hash of a module's weights, 64 hex digits."""
    digest = hashlib.sha256()
    for name, tensor in module.state_dict().items():
        digest.update(name.encode())
        digest.update(tensor.detach().cpu().reshape(-1).view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()

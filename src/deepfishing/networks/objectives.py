"""Errors E whose gradient describes an image (eq:error), by name.

E is summed over the batch, so dE/dy_k[i] depends on image i alone and one backward pass serves the
whole batch. `OBJECTIVES` has a record for each kind of scores. Torch is loaded when an error is
computed.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from deepfishing.core.rank_one import Array
from deepfishing.errors import OptionError, did_you_mean

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    ErrorFunction = Callable[[Any], Tensor]  # E of the scores, or of a module's output

Label = str | int | Sequence[float] | Array
WORDS = ("uniform", "predicted")  # labels that have a name


@dataclass(frozen=True)
class Objective:
    """Meaning of a network's scores (n, P), and the error that follows from it."""

    error: Callable[[float, Label], ErrorFunction]
    probabilities: Callable[[Tensor], Tensor]  # of the classes, which are x8


def cross_entropy(tau: float = 2.0, label: Label = "uniform") -> ErrorFunction:
    """E(y_L) = - sum_i sum_j g_ij log softmax(y_iL / tau)_j.

    The label vector g is 1/P for every class (the paper's choice), the class that the network
    predicts, one class j (then -E is the paper's log-posterior embedding of class j), or any
    vector with one entry per class.

    >>> import torch
    >>> y = torch.tensor([[2.0, 0.0]], requires_grad=True)
    >>> (delta,) = torch.autograd.grad(cross_entropy(tau=1.0)(y), y)
    >>> [round(v, 3) for v in delta[0].tolist()]  # softmax - 1/2
    [0.381, -0.381]
    """
    import torch
    from torch.nn.functional import softplus

    check_objective(tau, label)

    def objective(y: Tensor) -> Tensor:
        check_classes(y)
        floor = smallest_log_error(y.dtype)
        y = y if y.dtype == torch.float64 else y.float()
        if isinstance(label, int) or (isinstance(label, str) and label == "predicted"):
            return softplus(
                one_class_margin(y / tau, class_mask(label, y), floor)
            ).sum()
        return -(label_vector(label, y) * torch.log_softmax(y / tau, dim=1)).sum()

    return objective


def one_class_margin(y: Tensor, is_class: Tensor, floor: float) -> Tensor:
    """The margin m = logsumexp of the other scores - y_j of one class j per image, (n, 1).

    E = - log softmax(y)_j = log(1 + exp(m)) and dE/dy = sigmoid(m) (softmax of the others - e_j),
    which never subtracts 1 from a probability that rounds to 1.
    """
    others = y.masked_fill(is_class, -math.inf).logsumexp(dim=1, keepdim=True)
    own = y.masked_fill(~is_class, 0.0).sum(dim=1, keepdim=True)
    return raise_margins(others - own, floor)


def raise_margins(margins: Tensor, floor: float) -> Tensor:
    """Add a constant to the margins (n, P) of an image whose largest one is below `floor`.

    The direction of the gradient, all that normalised features depend on, stays the same; its
    length is not less than about exp(floor).
    """
    largest = margins.detach().amax(dim=1, keepdim=True)
    return margins + (floor - largest).clamp(min=0)


def smallest_log_error(dtype: torch.dtype) -> float:
    """The logarithm of the smallest gradient that a network of this dtype passes on safely."""
    import torch

    return 0.5 * math.log(torch.finfo(dtype).tiny)


def check_classes(y: Tensor) -> None:
    """Refuse a softmax of one score, which is 1 for every image."""
    if y.shape[1] < 2:
        raise OptionError(
            f"head softmax needs scores of 2 classes or more, got {y.shape[1]}: their softmax is 1 "
            'and every gradient is zero; take wrap(..., head="sigmoid")'
        )


def sigmoid_cross_entropy(tau: float = 2.0, label: Label = "uniform") -> ErrorFunction:
    """E for scores of independent classes: the sum over classes of binary cross-entropies.

    The uniform label is 1/2 for every class: as likely there as not. `predicted` rounds the
    probabilities; a class number or a vector is taken as it is.
    """
    import torch
    from torch.nn.functional import binary_cross_entropy_with_logits, softplus

    check_objective(tau, label)

    def objective(y: Tensor) -> Tensor:
        floor = smallest_log_error(y.dtype)
        y = y if y.dtype == torch.float64 else y.float()
        if label == "predicted":
            margins = torch.where(y > 0, -y, y) / tau  # E = log(1 + exp(-|y| / tau))
            return softplus(raise_margins(margins, floor)).sum()
        g = torch.full_like(y, 0.5)
        if label != "uniform":
            g = label_vector(label, y).expand_as(y)
        return binary_cross_entropy_with_logits(y / tau, g, reduction="sum")

    return objective


def class_mask(label: str | int, y: Tensor) -> Tensor:
    """Return which entries of y (n, P) are of the class: (P,), or (n, P) for `predicted`."""
    import torch

    classes = y.shape[1]
    if isinstance(label, str):
        predicted = y.detach().argmax(dim=1, keepdim=True)
        return predicted == torch.arange(classes, device=y.device)
    if not 0 <= label < classes:
        raise OptionError(f"label must be a class from 0 to {classes - 1}, got {label}")
    return torch.arange(classes, device=y.device) == label


def label_vector(label: Label, y: Tensor) -> Tensor:
    """The label vector g_bar for the outputs y (n, P): (P,), or (n, P) for `predicted`."""
    import torch

    classes = y.shape[1]
    if isinstance(label, str):
        if label == "uniform":
            return torch.full((classes,), 1.0 / classes, dtype=y.dtype, device=y.device)
        return class_mask(label, y).to(y.dtype)
    if isinstance(label, int):
        return class_mask(label, y).to(y.dtype)
    g = torch.as_tensor(
        np.asarray(label, dtype=np.float64), dtype=y.dtype, device=y.device
    )
    if g.shape != (classes,):
        raise OptionError(
            f"a label vector must have {classes} entries, got shape {tuple(g.shape)}"
        )
    return g


def check_objective(tau: float, label: Label) -> None:
    """Refuse a temperature that is not positive, and a label that no error takes."""
    if not isinstance(tau, int | float) or not math.isfinite(tau) or tau <= 0:
        raise OptionError(
            f"tau must be a positive number, got {tau!r}; the paper takes 2"
        )
    if isinstance(label, str) and label not in WORDS:
        raise OptionError(
            f"label must be uniform, predicted, a class number or a vector, got {label!r}"
        )
    if isinstance(label, str | int) and not isinstance(label, bool):
        return
    try:
        g = np.asarray(label, dtype=np.float64)
    except (TypeError, ValueError):
        g = np.zeros(())
    if g.ndim != 1:
        raise OptionError(
            "label must be uniform, predicted, a class number such as 2 or a vector with a number "
            f"per class, got {label!r}"
        )
    if not np.isfinite(g).all():
        raise OptionError("a label vector must be finite, got NaN or infinity")


def find_objective(name: str) -> Objective:
    """The objective of this name; an error names those that exist."""
    if name not in OBJECTIVES:
        raise OptionError(
            f"head must be {', '.join(OBJECTIVES)}, random or a function, got {name!r}"
            f"{did_you_mean(name, OBJECTIVES)}"
        )
    return OBJECTIVES[name]


def _softmax(y: Tensor) -> Tensor:
    check_classes(y)
    return y.softmax(dim=1)


# by the name that `wrap(head=...)` takes, and that stores and models keep
OBJECTIVES: Mapping[str, Objective] = {
    "softmax": Objective(cross_entropy, _softmax),  # an image has one class
    "sigmoid": Objective(
        sigmoid_cross_entropy, lambda y: y.sigmoid()
    ),  # or any number of them
}

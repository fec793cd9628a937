"""Stage 3, gradients: the error E whose gradient describes an image (eq:error).

Comes in: the last layer's output y_L and a label. Goes out: E, summed over the batch, so that
dE/dy_k[i] is image i's own signal and one backward pass serves the whole batch.
"""

from __future__ import annotations

import numpy as np
import torch

from deepfishing.errors import OptionError
from deepfishing.gradients.tap import Objective
from deepfishing.settings import Label, check_label, check_tau


def cross_entropy(tau: float = 2.0, label: Label = "uniform") -> Objective:
    """E(y_L) = - sum_i sum_j g_ij log softmax(y_iL / tau)_j.

    Parameters
    ----------
    tau : float
        Temperature of the SoftMax; the paper's is 2.
    label : "uniform", "predicted", int or vector
        The label vector g: 1/P for every class (the paper's choice), the class that the network
        predicts, one class j (then -E is the paper's log-posterior embedding of class j), or any
        vector with one entry per class.

    Examples
    --------
    >>> y = torch.tensor([[2.0, 0.0]], requires_grad=True)
    >>> (delta,) = torch.autograd.grad(cross_entropy(tau=1.0)(y), y)
    >>> [round(v, 3) for v in delta[0].tolist()]  # softmax - 1/2
    [0.381, -0.381]
    """
    check_tau(tau)
    check_label(label)

    def objective(y: torch.Tensor) -> torch.Tensor:
        y = y if y.dtype == torch.float64 else y.float()
        return -(label_vector(label, y) * torch.log_softmax(y / tau, dim=1)).sum()

    return objective


def sigmoid_cross_entropy(tau: float = 2.0, label: Label = "uniform") -> Objective:
    """E for scores of independent classes: the sum over classes of binary cross-entropies.

    The uniform label is 1/2 for every class: as likely there as not. `predicted` rounds the
    probabilities; a class number or a vector is taken as it is.

    Examples
    --------
    >>> y = torch.tensor([[0.0, 2.0]], requires_grad=True)
    >>> (delta,) = torch.autograd.grad(sigmoid_cross_entropy(tau=1.0)(y), y)
    >>> [round(v, 3) for v in delta[0].tolist()]  # sigmoid - 1/2
    [0.0, 0.381]
    """
    check_tau(tau)
    check_label(label)

    def objective(y: torch.Tensor) -> torch.Tensor:
        y = y if y.dtype == torch.float64 else y.float()
        if isinstance(label, str) and label == "uniform":
            g = torch.full_like(y, 0.5)
        elif isinstance(label, str):
            g = (y.detach() > 0).to(y)
        else:
            g = label_vector(label, y).expand_as(y)
        bce = torch.nn.functional.binary_cross_entropy_with_logits
        return bce(y / tau, g, reduction="sum")

    return objective


def label_vector(label: Label, y: torch.Tensor) -> torch.Tensor:
    """The label vector g_bar for the outputs y (n, P): (P,), or (n, P) for `predicted`."""
    classes = y.shape[1]
    if isinstance(label, str):
        if label == "uniform":
            return torch.full((classes,), 1.0 / classes, dtype=y.dtype, device=y.device)
        predicted = y.detach().argmax(dim=1, keepdim=True)
        return (predicted == torch.arange(classes, device=y.device)).to(y.dtype)
    if isinstance(label, int):
        if not 0 <= label < classes:
            raise OptionError(f"label must be a class from 0 to {classes - 1}, got {label}")
        return (torch.arange(classes, device=y.device) == label).to(y.dtype)
    g = torch.as_tensor(np.asarray(label, dtype=np.float64), dtype=y.dtype, device=y.device)
    if g.shape != (classes,):
        raise OptionError(f"a label vector must have {classes} entries, got shape {tuple(g.shape)}")
    return g

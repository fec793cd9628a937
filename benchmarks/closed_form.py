"""The paper's recursion for fully connected layers (eq:y_derivative).

Comes in: the outputs y_k of a stack of fully connected layers with ReLUs between them, and the
weights W_k. Goes out: delta_k for every layer. `gradient_cost.py` compares its cost with that of
automatic differentiation, tests/extraction/test_closed_form.py what comes out.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from deepfishing.networks.objectives import Label, label_vector


def delta_recursion(
    y: Sequence[torch.Tensor],
    W: Sequence[torch.Tensor],
    tau: float = 2.0,
    label: Label = "uniform",
) -> list[torch.Tensor]:
    """dE/dy_k for k = M+1 .. L, by the chain rule.

    The sign is that of automatic differentiation, (sigma - g_bar) / tau; the paper prints
    g_bar - sigma. After normalisation the trace kernel of both is the same.

    Parameters
    ----------
    y : sequence of tensors (n, D_k)
        Outputs of the fully connected layers before their non-linearity, lowest layer first.
    W : sequence of tensors (D_{k-1}, D_k)
        The weights in the paper's orientation, `module.weight.T`; W[0] is not needed.

    Returns
    -------
    deltas : list of tensors (n, D_k)

    Examples
    --------
    >>> y7, y8 = torch.tensor([[1.0, -1.0]]), torch.tensor([[0.0, 0.0]])
    >>> W8 = torch.tensor([[1.0, 0.0], [0.0, 1.0]])
    >>> delta7, delta8 = delta_recursion([y7, y8], [W8, W8], tau=1.0, label=0)
    >>> delta8.tolist(), delta7.tolist()
    ([[-0.5, 0.5]], [[-0.5, 0.0]])
    """
    # dE/dy_L = (sigma(y_L / tau) - g_bar) / tau
    delta = (torch.softmax(y[-1] / tau, dim=1) - label_vector(label, y[-1])) / tau
    deltas = [delta]
    for y_k, W_next in zip(y[-2::-1], W[:0:-1], strict=True):
        # dE/dy_k = [W_{k+1} dE/dy_{k+1}] o I[y_k > 0]
        delta = (delta @ W_next.T) * (y_k > 0)
        deltas.append(delta)
    return deltas[::-1]

"""Peers: the gradients of a fully connected layer, image by image, by torch.func and as factors.

The layer is the second of AlexNet's three, 4096 x 4096, and its input comes in; torch.func gives
a matrix per image, deepfishing the two vectors whose product it is. Both must be equal.
"""

from __future__ import annotations

from typing import Any

import torch
from page import interval, lines_of, megabytes, number, table
from peak import peak
from timing import ratio
from torch import Tensor, nn

from deepfishing.extraction.tap import Call

D, CLASSES, TOLERANCE = 4096, 1000, 1e-5


def torch_func(head: nn.Module, x: Tensor) -> Tensor:
    """What a user writes with torch alone."""
    from torch.func import functional_call, grad, vmap

    weights = {name: value.detach() for name, value in head.named_parameters()}

    def error(weight: Tensor, image: Tensor) -> Tensor:
        y = functional_call(head, weights | {"0.weight": weight}, (image[None],))
        return -(y / 2).log_softmax(dim=1).mean()

    return vmap(grad(error), in_dims=(None, 0))(weights["0.weight"], x)  # type: ignore[no-any-return]


def ours(head: nn.Module, x: Tensor) -> Call:
    """What a user writes with deepfishing."""
    from deepfishing.extraction.tap import tap
    from deepfishing.networks.objectives import cross_entropy

    return tap(head, x, gradients=["0"], objective=cross_entropy(tau=2)).calls["0"][0]


def run(options: Any) -> str:
    n, repetitions = (4, 3) if options.quick else (16, 7)
    head, x = task(n)
    worst = difference(head, x[:2])
    if not worst <= TOLERANCE:
        raise RuntimeError(
            f"both must give the same gradients, but they differ by {worst:.2g}"
        )
    r = ratio(
        "torch.func",
        lambda: torch_func(head, x),
        "ours",
        lambda: ours(head, x),
        repetitions,
    )
    base, them, us = (
        peak(f"per_sample:case:{n}:{who}") for who in ("forward", "torch_func", "ours")
    )
    own = r.seconds / r.median
    rows = [
        (
            "torch.func: vmap(grad)",
            interval(r.median, r.low, r.high),
            number(1000 * r.seconds / n),
            megabytes((them - base) / n),
            f"{4 * D * D:,}",
            lines_of(torch_func),
        ),
        (
            "ours: factors",
            1,
            number(1000 * own / n),
            megabytes((us - base) / n),
            f"{4 * (D + D):,}",
            lines_of(ours),
        ),
    ]
    columns = (
        f"{D} x {D}, {n} images",
        "time",
        "ms per image, forward pass of the head included",
        "memory per image beyond the forward pass",
        "bytes stored per image",
        "lines",
    )
    return (
        f"{table(columns, rows)}\n"
        f"Time: median (lowest to highest) of {repetitions} repetitions, in units of ours; memory: "
        f"median of 3 processes. The largest difference of two entries is {number(worst)} of the "
        "largest entry."
    )


def task(n: int) -> tuple[nn.Module, Tensor]:
    torch.manual_seed(0)
    head = nn.Sequential(nn.Linear(D, D), nn.ReLU(), nn.Linear(D, CLASSES)).eval()
    return head, torch.rand(n, D)


def difference(head: nn.Module, x: Tensor) -> float:
    theirs, call = torch_func(head, x), ours(head, x)
    if call.delta is None:
        raise RuntimeError("a gradient layer must have delta, got none")
    product = torch.einsum("ne,nd->ned", call.delta, call.x)
    return float((theirs - product).abs().max() / theirs.abs().max())


def case(n: str, who: str) -> None:
    """One of the three in a process of its own, with the same packages in memory."""
    head, x = task(int(n))
    if who == "forward":
        with torch.no_grad():
            head(x)
    else:
        {"torch_func": torch_func, "ours": ours}[who](head, x)

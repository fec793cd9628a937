"""What gradient rows cost on top of forward rows: decoding and both passes, end to end."""

from __future__ import annotations

import tempfile

import torch
from timing import Ratio, ratio

from deepfishing.features import needed_factors, parse_features, table_features
from deepfishing.gradients.closed_form import delta_recursion
from deepfishing.gradients.extract import extract_factors
from deepfishing.gradients.objective import cross_entropy
from deepfishing.gradients.tap import tap
from deepfishing.images.scenes import load_scenes
from deepfishing.networks.network import random_network


def run(quick: bool = False) -> list[Ratio]:
    images = 32 if quick else 96
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        paths = load_scenes(folder).train.paths[:images]
        for name in ("efficientnet-lite0", "alexnet-torchvision", "alexnet-caffe", "vgg16"):
            network = random_network(name)
            some = paths if name != "vgg16" else paths[: images // 4]

            def passes(names, network=network, some=some):
                factors = needed_factors(parse_features(names, network.layers))
                return lambda: [len(b.indices) for b in extract_factors(network, some, factors)]

            table = table_features(network.layers)
            forward = passes([n for n in table if not n.startswith("dW")])
            rows.append(
                ratio(f"{name}: all rows", passes(table), "forward rows only", forward,
                      repetitions=3 if quick else 7)
            )  # fmt: skip
    rows.append(closed_form(repetitions=5 if quick else 15))
    return rows


def closed_form(repetitions: int) -> Ratio:
    """The paper's recursion against automatic differentiation, on AlexNet's own head."""
    torch.manual_seed(0)
    linear = torch.nn.Linear
    relu = torch.nn.ReLU
    head = torch.nn.Sequential(
        linear(9216, 4096), relu(), linear(4096, 4096), relu(), linear(4096, 1000)
    )
    batch, paths = torch.randn(32, 9216), ["0", "2", "4"]
    W = [head[int(p)].weight.detach().T for p in paths]
    objective = cross_entropy()

    def recursion() -> None:
        taps = tap(head, batch, read=paths)
        delta_recursion([taps.calls[p][0].y for p in paths], W)

    return ratio(
        "head of AlexNet: forward pass and recursion",
        recursion,
        "forward pass and autograd",
        lambda: tap(head, batch, gradients=paths, objective=objective),
        repetitions,
    )

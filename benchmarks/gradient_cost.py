"""What gradients cost on top of forward features: decoding and both passes, end to end."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

import torch
from closed_form import delta_recursion
from throughput import jpegs
from timing import Ratio, ratio, sandwich

from deepfishing.core.features import needed_factors, parse_features, table_features
from deepfishing.extraction.engines import FASTEST, missing_packages
from deepfishing.extraction.extract import Extractor
from deepfishing.extraction.options import Resources
from deepfishing.extraction.tap import tap
from deepfishing.images.published import load_groceries
from deepfishing.networks.load import load_network
from deepfishing.networks.network import Network
from deepfishing.networks.objectives import cross_entropy

ZOO = ("alexnet-torchvision", "alexnet-caffe", "vgg16")
LAYERS = {
    "timm:resnet18": "layer4.1.conv2",
    "timm:vit_tiny_patch16_224": "blocks.11.mlp.fc2",
    "timm:mobilenetv3_small_100": "conv_head",
    "timm:vgg11": "pre_logits.fc2",
}


def run(quick: bool = False) -> list[Ratio]:
    repetitions = 3 if quick else 7
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        photographs = jpegs(Path(folder, "photographs"), 200 if quick else 2000)
        for engine in (name for name in FASTEST if not missing_packages(name)):
            rows += on_top(load_network(), photographs, engine, 2 if quick else 5)
        paths = load_groceries(folder).train.paths[: 32 if quick else 96]
        for name in ZOO:
            network = load_network(name, "random")
            some = paths if name != "vgg16" else paths[:24]
            table = table_features(network.layers)
            forward = _passes(
                network, some, [n for n in table if not n.startswith("dW")]
            )
            everything = _passes(network, some, table)
            rows.append(
                ratio(
                    f"{name}: all rows",
                    everything,
                    "forward rows only",
                    forward,
                    repetitions,
                )
            )
        for name, layer in LAYERS.items():
            network = load_network(name, "random")
            some = paths if name != "timm:vgg11" else paths[:24]
            forward = _passes(network, some, [f"x:{layer}"])
            for feature in (f"dW:{layer}", f"dW:{layer}@64x64"):
                both = _passes(network, some, [f"x:{layer}", feature])
                title = f"{name}: x:{layer} and {feature}"
                rows.append(ratio(title, both, "x only", forward, repetitions))
    rows.append(closed_form(repetitions=5 if quick else 15))
    return rows


def on_top(
    network: Network, paths: Sequence[Path], engine: str, repetitions: int
) -> list[Ratio]:
    """All rows over forward rows.

    The quotient of two passes of 2,000 images wanders by a tenth on a shared machine even if both
    do the same, and two sessions of one engine differ by several percent.
    """

    def started(names: Sequence[str]) -> Callable[[Sequence[Path]], object]:
        factors = needed_factors(parse_features(names, network.layers))
        extractor = Extractor(network, factors, resources=Resources(engine=engine))
        return lambda part: [len(batch.indices) for batch in extractor(part)]

    table = table_features(network.layers)
    forward = [name for name in table if not name.startswith("dW")]
    length = -(-len(paths) // 10)
    return sandwich(
        f"{network.name}: all rows with {engine}",
        "forward rows only",
        lambda: (started(forward), started(table), started(forward)),
        [paths[i : i + length] for i in range(0, len(paths), length)],
        repetitions,
    )


def _passes(
    network: Network, paths: Sequence[Path], names: Sequence[str]
) -> Callable[[], object]:
    factors = needed_factors(parse_features(names, network.layers))
    return lambda: [len(batch.indices) for batch in Extractor(network, factors)(paths)]


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

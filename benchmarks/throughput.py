"""Images per second, end to end and against what the machine can do.

Comes in: JPEGs of 500x375, made from the embedded photographs. Goes out: the time of extraction
against a plain script, and of a trunk against the time that its multiplications take at the rate of
a large matrix product.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from timing import Ratio, ratio, ratios
from torch import nn

from deepfishing.core.features import needed_factors, parse_features, table_features
from deepfishing.extraction.engines import FASTEST, missing_packages
from deepfishing.extraction.extract import PIECE, Extractor, prepare
from deepfishing.extraction.options import Resources
from deepfishing.extraction.trunk import cut, start_engine
from deepfishing.images.published import load_groceries
from deepfishing.networks.load import load_network
from deepfishing.networks.network import Network

TRUNKS = ("vgg16", "alexnet-caffe")  # target: at most 1 / 0.85 and 1 / 0.60
SIDE = 2048  # of the matrices


def run(quick: bool = False) -> list[Ratio]:
    repetitions = 3  # of 2,000 images each, a quarter of an hour in all
    engines = [name for name in FASTEST if not missing_packages(name)]
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        paths = jpegs(Path(folder), 200 if quick else 2000)
        network = load_network()
        table = table_features(network.layers)

        def contestants(some: Sequence[Path]) -> dict[str, Callable[[], object]]:
            return {
                f"{network.name}: all rows with {engine}": passes(
                    network, some, table, engine
                )
                for engine in engines
            }

        for f in (plain_script(network, paths[:64]), *contestants(paths[:64]).values()):
            f()  # exports the trunk, fills caches
        everyone = contestants(paths)
        plain = plain_script(network, paths)
        rows += ratios(everyone, "plain forward script", plain, repetitions)
    for name in TRUNKS:
        rows += [trunk_rate(name, engine, 3 if quick else 7) for engine in engines]
    return rows


def jpegs(folder: Path, count: int) -> list[Path]:
    """The embedded photographs at the size of those of PASCAL VOC, again and again."""
    folder.mkdir(exist_ok=True)
    photos = load_groceries(folder, n_test=1).train.paths
    paths = [folder / f"{number:05}.jpg" for number in range(count)]
    for number, path in enumerate(paths):
        with Image.open(photos[number % len(photos)]) as photo:
            photo.convert("RGB").resize((500, 375)).save(path, quality=90)
    return paths


def plain_script(network: Network, paths: Sequence[Path]) -> Callable[[], object]:
    """What one would write: decode, then the network, batch by batch; x6, x7, y8 and x8."""
    parts = dict(network.module.named_children())
    names = list(parts)
    split = names.index("_conv_head")
    trunk = nn.Sequential(*(parts[name] for name in names[:split]))
    head = nn.Sequential(*(parts[name] for name in names[split:-1]))

    @torch.no_grad()
    def script() -> list[tuple[torch.Tensor, ...]]:
        rows = []
        for start in range(0, len(paths), 32):
            pixels = [network.preprocess(path) for path in paths[start : start + 32]]
            maps = trunk(torch.from_numpy(np.stack(pixels)))
            x7 = head(maps)
            y8 = parts["_fc"](x7)
            rows.append((maps.mean(dim=(2, 3)), x7, y8, y8.softmax(dim=1)))
        return rows

    return script


def passes(
    network: Network, paths: Sequence[Path], names: Sequence[str], engine: str
) -> Callable[[], object]:
    factors = needed_factors(parse_features(names, network.layers))
    resources = Resources(engine=engine)
    return lambda: [
        len(batch.indices)
        for batch in Extractor(network, factors, resources=resources)(paths)
    ]


def trunk_rate(name: str, engine: str, repetitions: int) -> Ratio:
    """Time of a trunk over the time of its multiplications in a large float32 matrix product."""
    network = load_network(name, "random")
    parts = cut(network.module, [network.layers[6]])
    size, threads = network.preprocess.size, torch.get_num_threads()
    images = 4 * PIECE * threads
    pixels = np.random.default_rng(0).normal(size=(3, size, size)).astype(np.float32)
    engine_run = start_engine(engine, parts.trunk, size, threads)

    def trunk() -> None:
        for _ in prepare(
            range(images), lambda _: pixels[None], engine_run, PIECE, threads
        ):
            pass

    products = round(images * multiplications(parts.trunk, size) / SIDE**3) or 1
    a, b = torch.randn(2, SIDE, SIDE)

    def matrices() -> None:
        for _ in range(products):
            a @ b

    row = ratio(
        f"{name}: trunk with {engine}",
        trunk,
        "its flops as a product",
        matrices,
        repetitions,
    )
    # the number of products is whole, the trunk's multiplications are not
    exact = images * multiplications(parts.trunk, size) / SIDE**3 / products
    return replace(
        row, median=row.median / exact, low=row.low / exact, high=row.high / exact
    )


def multiplications(trunk: nn.Module, size: int) -> int:
    """Multiplications of the convolutions for one image, the normalisations left out."""
    total = 0

    def count(layer: nn.Module, _: object, output: torch.Tensor) -> None:
        nonlocal total
        total += output[0].numel() * layer.weight[0].numel()  # type: ignore[operator, union-attr]

    convolutions = [m for m in trunk.modules() if isinstance(m, nn.Conv2d)]
    handles = [m.register_forward_hook(count) for m in convolutions]
    with torch.no_grad():
        trunk(torch.zeros(1, 3, size, size))
    for handle in handles:
        handle.remove()
    return total


if __name__ == "__main__":
    for row in run(quick=True):
        print(row)

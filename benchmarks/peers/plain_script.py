"""Peers: features of image files by a plain script in torch, and by deepfishing with gradients.

The script is that of benchmarks/throughput.py: it decodes and runs the network batch by batch, and
has forward features only. Ours gives every row of the paper's table, gradients included.
"""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import throughput
from page import interval, lines_of, megabytes, number, table
from peak import peak
from timing import ratios

from deepfishing.core.features import needed_factors, parse_features
from deepfishing.core.rank_one import Array, RankOne
from deepfishing.networks.load import load_network
from deepfishing.networks.network import Network

FORWARD = "x6,x7,y8,x8"


def ours(
    network: Network, paths: Sequence[Path], features: str
) -> dict[str, Array | RankOne]:
    """What a user writes with deepfishing."""
    from deepfishing import extract

    return extract(network, paths, features)


def run(options: Any) -> str:
    repetitions = 3
    with tempfile.TemporaryDirectory() as folder:
        paths = throughput.jpegs(Path(folder), options.images)
        network = load_network()
        script = throughput.plain_script(network, paths)
        chosen = {"ours, the same forward features": FORWARD, "ours, all rows": "all"}
        for features in chosen.values():
            ours(network, paths[:64], features)  # exports the trunk, fills caches
        throughput.plain_script(network, paths[:64])()
        everyone = {
            title: (lambda features=features: ours(network, paths, features))
            for title, features in chosen.items()
        }
        measured = ratios(everyone, "plain script", script, repetitions)
        seconds = measured[0].seconds / measured[0].median
        rows: list[tuple[object, ...]] = [
            (
                "plain script in torch",
                1,
                number(len(paths) / seconds),
                megabytes(peak(f"plain_script:case:{folder}:script")),
                _stored(network, FORWARD),
                lines_of(throughput.plain_script),
            )
        ]
        for r, features in zip(measured, chosen.values(), strict=True):
            faster = interval(1 / r.median, 1 / r.high, 1 / r.low)
            rows.append(
                (
                    r.name,
                    faster,
                    number(len(paths) / r.seconds),
                    megabytes(peak(f"plain_script:case:{folder}:{features}")),
                    _stored(network, features),
                    lines_of(ours),
                )
            )
    columns = (
        f"EfficientNet-Lite0, {options.images} JPEGs of 500x375",
        "images per second, in units of the script's",
        "images per second",
        "peak memory of the process",
        "bytes stored per image",
        "lines",
    )
    return (
        f"{table(columns, rows)}\n"
        f"Median (lowest to highest) of {repetitions} repetitions; memory: median of 3 processes; "
        "the trunk runs in the fastest engine that is installed, float32."
    )


def _stored(network: Network, features: str) -> int:
    """Bytes of the factors in single precision."""
    widths = {
        "x6": 320,
        "x7": 1280,
        "y8": 1000,
        "x8": 1000,
        "delta7": 1280,
        "delta8": 1000,
    }
    return 4 * sum(
        widths[factor.name]
        for factor in needed_factors(parse_features(features, network.layers))
    )


def case(folder: str, what: str) -> None:
    """One contestant in a process of its own."""
    paths, network = sorted(Path(folder).glob("*.jpg")), load_network()
    if what == "script":
        throughput.plain_script(network, paths)()
    else:
        ours(network, paths, what)

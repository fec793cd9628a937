"""The tables of benchmarks/WHEN.md: gains over data sets, and what they go together with.

    python benchmarks/when.py [RESULTS ...]

Prints the figures of release 0.1 (benchmarks/evidence.json), rank correlations of the gains with
facts of the data sets, and the gains of any folders of `deepfish reproduce` (the same as
`deepfish report --format markdown RESULTS ...`). A correlation is Spearman's; its p is exact, the
share of all orders of the data sets that correlate as much.
"""

from __future__ import annotations

import argparse
import itertools
import json
from pathlib import Path
from typing import Any

import numpy as np
from scipy.stats import rankdata

from deepfishing.evaluation.report.overview import find_folders, overview, sheets
from deepfishing.evaluation.report.text import markdown

FORWARD = ("x6", "x7", "y8", "x8", "x6;x7", "x7;y8")
FACTS = {
    "several classes per image": lambda d: float(d["several"]),
    "training images": lambda d: d["train"],
    "training images per class": lambda d: d["train"] / d["classes"],
    "classes": lambda d: d["classes"],
    "mAP of the best forward feature": lambda d: best_forward(d)[1],
    "mAP of the network's own classes, x8 minus x7": lambda d: (
        d["map"]["x8"] - d["map"]["x7"]
    ),
}
GAINS = {
    "`best` over the best forward": lambda d: d["gain"]["best"][0],
    "dW7 over x7": lambda d: minus(d, "dW7"),
    "dW8 over x7": lambda d: minus(d, "dW8"),
}


def minus(data: dict[str, Any], feature: str) -> float:
    """Gain of a gradient over x7, as measured in pairs where that is known."""
    known = data["gain"].get(feature)
    return known[0] if known else data["map"][feature] - data["map"]["x7"]


def best_forward(data: dict[str, Any]) -> tuple[str, float]:
    """Name and mAP of the best forward row."""
    return max(((f, data["map"][f]) for f in FORWARD), key=lambda pair: pair[1])


def rank_correlation(a: list[float], b: list[float]) -> tuple[float, float]:
    """Spearman's correlation and its exact two-sided p, over all orders of b."""
    x, y = rankdata(a), rankdata(b)
    x, y = (v - v.mean() for v in (x, y))
    scale = float(np.sqrt((x @ x) * (y @ y)))
    found = float(x @ y) / scale
    orders = np.array(list(itertools.permutations(range(len(y)))))
    every = np.abs(y[orders] @ x) / scale
    return found, float((every >= abs(found) - 1e-9).mean())


def interval(gain: list[float | None]) -> str:
    mean, low, high = gain
    return f"{mean:+.1f}" + (f" ({low:+.1f} to {high:+.1f})" if low is not None else "")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("results", type=Path, nargs="*")
    parser.add_argument(
        "--features", default="dW7,dW8,pow(dW8;0.5),best", help="; for , in ()"
    )
    given = parser.parse_args()
    sets = json.loads(Path(__file__).with_name("evidence.json").read_text())["datasets"]
    print(
        "| data set | train / test | best forward | x7 | x8 | dW7 over x7 | dW8 over x7 |",
        end="",
    )
    print(" `best` over the best forward |\n|---|---|---|---|---|---|---|---|")
    for d in sets:
        forward, level = best_forward(d)
        cells = [d["name"], f"{d['train']:,} / {d['test']:,}", f"{forward} {level:.1f}"]
        cells += [f"{d['map'][f]:.1f}" for f in ("x7", "x8")]
        for feature in ("dW7", "dW8"):
            cells.append(
                interval(d["gain"].get(feature, [minus(d, feature), None, None]))
            )
        print(f"| {' | '.join(cells)} | {interval(d['gain']['best'])} |")
    print(
        f"\n| {len(sets)} data sets | {' | '.join(GAINS)} |\n|---|{'---|' * len(GAINS)}"
    )
    for fact, value in FACTS.items():
        cells = []
        for gain in GAINS.values():
            rho, p = rank_correlation([value(d) for d in sets], [gain(d) for d in sets])
            cells.append(f"{rho:+.2f} (p {p:.2f})")
        print(f"| {fact} | {' | '.join(cells)} |")
    if given.results:
        wanted = {name.replace(";", ",") for name in given.features.split(",")}
        parts = [
            p for p in overview(find_folders(given.results)) if p.feature in wanted
        ]
        print("\n" + "\n".join(map(markdown, sheets(parts))))


if __name__ == "__main__":
    main()

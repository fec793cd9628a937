"""How often `auto` claims a gain where labels are random.

    python benchmarks/noise.py --runs 40

Photos are the embedded photographs with labels that say nothing (or, with --drawn, factors that say
nothing either): one class, two classes (one per photo), eight classes. Each line has the number of
runs in which `auto` kept x7, in which the interval of the gain that it states includes 0 (no claim
counts as that), and the largest gain that was stated.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

import numpy as np
import typer

from deepfishing.core.recipes import parse_recipe
from deepfishing.learn.auto import choose
from deepfishing.learn.pool import Pool

CLASSES = (1, 2, 8)
LAYERS = {7: "_conv_head", 8: "_fc"}


def photo_factors(folder: Path) -> dict[str, np.ndarray]:
    """Extract the factors of the 350 training photographs."""
    from deepfishing import load_groceries, load_network
    from deepfishing.evaluation.experiment import Protocol, prepare
    from deepfishing.util.progress import silent

    network = load_network("efficientnet-lite0")
    recipe = parse_recipe("auto", network.layers)
    data = load_groceries(folder / "data")
    experiment = prepare(data, network, folder / "store", [recipe], Protocol(), silent)
    return experiment.factors(recipe)[0]


def drawn_factors(rng: np.random.Generator, n: int) -> dict[str, np.ndarray]:
    """Draw factors of n images at random."""
    widths = {"x6": 40, "x7": 60, "delta7": 60, "delta8": 80}
    return {
        name: rng.normal(size=(n, width)).astype(np.float32)
        for name, width in widths.items()
    }


def random_labels(rng: np.random.Generator, n: int, classes: int) -> np.ndarray:
    """Draw labels (n, classes); of two classes and more each photo has exactly one."""
    if classes == 1:
        return np.where(rng.permutation(n) < n // 2, 1, -1)[:, None]
    shown = rng.permutation(n) % classes
    return np.where(shown[:, None] == np.arange(classes), 1, -1)


def measure(
    factors: dict[str, np.ndarray], classes: int, runs: int, n: int, kind: str
) -> str:
    """Return a line of a table."""
    kept = includes = 0
    largest = 0.0
    for run in range(runs):
        rng = np.random.default_rng([run, classes])
        rows = rng.permutation(len(factors["x7"]))[:n]
        some = {name: values[rows] for name, values in factors.items()}
        labels = random_labels(rng, n, classes)
        choice = choose(some, labels, LAYERS, kind=kind, pool=Pool(factors))
        kept += choice.recipe == "x7"
        includes += choice.gain is None or choice.gain.low <= 0 <= choice.gain.high
        largest = max(largest, choice.gain.mean if choice.gain else 0.0)
    counts = f"{kept} of {runs} | {includes} of {runs}"
    return f"| {classes} | {n} | `{kind}` | {counts} | {largest:+.1f} |"


def main(
    runs: int = 40,
    images: int = 240,
    drawn: bool = False,
    kind: str = "auto",
    only: int | None = None,
) -> None:
    """Print the table."""
    if drawn:
        factors = drawn_factors(np.random.default_rng(0), images)
    else:
        with tempfile.TemporaryDirectory() as folder:
            factors = photo_factors(Path(folder))
    print(
        "| classes | photos | features | x7 kept | interval includes 0 | largest gain stated |"
    )
    print("|---|---|---|---|---|---|")
    for classes in CLASSES if only is None else (only,):
        for n in (images, images // 3):
            print(measure(factors, classes, runs, n, kind), flush=True)


if __name__ == "__main__":
    typer.run(main)

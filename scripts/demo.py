"""The main job on the embedded photographs: few labels, then a look at the collection.

`python scripts/demo.py FOLDER` writes everything that it measures into FOLDER, with a report, and
prints what follows from it in less than a screen, with a progress bar on a terminal.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np

import deepfishing
from deepfishing import curate
from deepfishing.cli.progress import progress_bar
from deepfishing.evaluation.record import ACCURACY, FORWARD_KERNELS, PHOTOS, Result

LABELS = (1, 2, 4, 8, 16)  # per class
AUTO_FORWARD, AUTO = "auto-forward", "auto"
SHOWN = 3  # photos of a list
PLAIN = "x7"
FEATURES = (*FORWARD_KERNELS, AUTO_FORWARD, AUTO)


def main(folder: Path) -> None:
    """Measure, print and say where the report is."""
    dataset = deepfishing.load_groceries(folder / "data")
    network = deepfishing.load_network("efficientnet-lite0")
    with progress_bar() as bar:
        few = deepfishing.measure(
            dataset, network, folder, ["low-shot"], features=FEATURES, progress=bar
        )
    print_accuracy(few.points["low-shot"])
    with progress_bar() as bar:
        table = deepfishing.measure(
            dataset, network, folder, ["table"], table="all,best,auto", progress=bar
        )
    store = next((folder / "features").iterdir())
    print_collection(store)
    print(f"\nThe paper's table, all classes and photos: {table.page}")
    print("The same photographs in the browser:       make page")


def print_accuracy(points: list[Result]) -> None:
    """Print accuracy against the number of labels, and what it is made of."""
    draws = accuracy_of_draws(points)
    mean = {name: values.mean(axis=1) for name, values in draws.items()}
    kernels = [name for name in FORWARD_KERNELS if name in mean]
    strongest = np.max([mean[name] for name in kernels], axis=0)
    print("700 photographs of fruit of 14 varieties: half to label, half to test.")
    print(
        "Test photos recognised, in percent, mean of 5 draws of the labelled photos:\n"
    )
    print_row("labels per variety", LABELS, "6d")
    print_row("the network's features, linear", mean[PLAIN])
    print_row("with their strongest kernel", strongest)
    print_row("and the unlabelled photos", mean[AUTO_FORWARD])
    print_row("and gradients: the default", mean[AUTO])
    pool = np.mean(mean[AUTO_FORWARD] - strongest)
    gradients = np.mean(mean[AUTO] - mean[AUTO_FORWARD])
    print(
        f"\nOn average unlabelled photos give {pool:+.1f} points, gradients {gradients:+.1f}."
    )
    print("(The strongest kernel is picked by its test result, column by column.)")


def accuracy_of_draws(points: list[Result]) -> dict[str, np.ndarray]:
    """Return the accuracy of each feature, an array (numbers of labels, draws)."""
    found: dict[str, dict[int, list[float]]] = {}
    for point in points:
        if point["x_axis"] == PHOTOS and point["y_axis"] == ACCURACY:
            found.setdefault(point["series"], {})[point["x"]] = point["draws"]
    return {
        name: np.array([by_number[number] for number in LABELS])
        for name, by_number in found.items()
    }


def print_row(name: str, values: object, form: str = "6.1f") -> None:
    """Print a line of the table."""
    cells = "".join(format(value, form) for value in np.asarray(values))
    print(f"  {name:34s}{cells}")


def print_collection(store: Path) -> None:
    """Print what `deepfish curate` finds in the collection."""
    groups = curate.twins(store).groups
    doubts = curate.labels(store)
    odd = curate.odd(store)
    print("\nThe collection (deepfish curate twins, labels, odd):")
    print(f"  {len(groups)} photos are there more than once.")
    print(f"  {len(doubts)} labels are doubtful, the first ones:")
    for doubt in doubts[:SHOWN]:
        change = f"{' '.join(doubt.given)} -> {' '.join(doubt.suggested)}"
        print(f"    {Path(doubt.path).name}: {change}")
    print(
        f"  Unlike the rest: {', '.join(Path(photo.path).name for photo in odd[:SHOWN])}"
    )


if __name__ == "__main__":
    main(Path(sys.argv[1]))

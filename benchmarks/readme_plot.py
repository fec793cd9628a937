"""The plot of the README: mAP against the number of labelled positives per class.

    python benchmarks/readme_plot.py RESULTS RESULTS [--into docs/assets]

RESULTS are folders of `deepfish reproduce DATASET --protocol low-shot`, one data set each. Writes
few-labels.svg: the strongest forward kernel without unlabelled photos, `auto-forward` and `auto`,
with intervals over the draws of the labelled photos, and prints the figures.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import matplotlib as mpl
import numpy as np
import typer

from deepfishing.core.recipes import AUTO
from deepfishing.core.recipes.recipe import AUTO_FORWARD
from deepfishing.core.statistics import mean_interval
from deepfishing.evaluation.record import FORWARD_KERNELS, POSITIVES, Result
from deepfishing.evaluation.report.folder import open_points

MAX_LABELS = 16
MAP = "mAP"
NAMES = {"groceries": "the embedded photographs", "voc2007": "VOC 2007"}
LINES = {
    "forward": ("strongest forward kernel", "#64748b"),
    AUTO_FORWARD: ("and unlabelled photos", "#1769aa"),
    AUTO: ("and gradients", "#c2410c"),
}
Draws = dict[int, list[float]]


def read_draws(points: list[Result]) -> dict[str, Draws]:
    """Return the mAP of each draw, by feature and number of labels."""
    draws: dict[str, Draws] = {}
    for point in points:
        is_map = point["x_axis"] == POSITIVES and MAP in point["y_axis"]
        if is_map and point["x"] <= MAX_LABELS:
            draws.setdefault(point["series"], {})[point["x"]] = point["draws"]
    return draws


def strongest_forward(draws: dict[str, Draws]) -> Draws:
    """Return the draws of the forward kernel with the highest mean, at each number of labels."""
    kernels = [draws[name] for name in FORWARD_KERNELS if name in draws]
    best: Draws = {}
    for labels in kernels[0]:
        best[labels] = max((kernel[labels] for kernel in kernels), key=np.mean)
    return best


def draw(ax: Any, name: str, draws: dict[str, Draws]) -> None:
    """Draw the three lines of one data set and print their figures."""
    shown = {
        "forward": strongest_forward(draws),
        **{n: draws[n] for n in (AUTO_FORWARD, AUTO)},
    }
    for line, values in shown.items():
        title, colour = LINES[line]
        labels = sorted(values)
        mean = [float(np.mean(values[number])) for number in labels]
        intervals = [mean_interval(values[number]) for number in labels]
        ax.plot(labels, mean, "o-", color=colour, markersize=4, label=title)
        for number, interval in zip(labels, intervals, strict=True):
            if interval is not None:
                ax.plot(
                    [number, number],
                    list(interval),
                    color=colour,
                    linewidth=1,
                    alpha=0.4,
                )
        print(name, title, *(f"{value:.1f}" for value in mean), sep="  ")
    ax.set_xscale("log", base=2)
    ticks = [2**power for power in range(5)]
    ax.set_xticks(ticks, [str(tick) for tick in ticks])
    ax.set(xlabel=POSITIVES, title=NAMES.get(name, name))
    ax.spines[["top", "right"]].set_visible(False)


def main(
    results: list[Path],
    into: Annotated[Path, typer.Option(help="Folder of the plot.")] = Path(
        "docs/assets"
    ),
) -> None:
    """Draw a panel for each folder and print the figures."""
    mpl.use("svg")
    mpl.rcParams |= {"svg.hashsalt": "few", "font.size": 9, "svg.fonttype": "none"}
    from matplotlib import pyplot

    size = (4.3 * len(results), 3.4)
    figure, axes = pyplot.subplots(1, len(results), figsize=size, layout="constrained")
    for ax, folder in zip(np.atleast_1d(axes), results, strict=True):
        points = open_points(folder)
        draw(ax, points[0]["dataset"], read_draws(points))
    np.atleast_1d(axes)[0].set_ylabel("mAP, % (VOC: 11-point)")
    np.atleast_1d(axes)[0].legend(fontsize=8, frameon=False, loc="lower right")
    figure.savefig(into / "few-labels.svg", metadata={"Date": None}, facecolor="white")


if __name__ == "__main__":
    typer.run(main)

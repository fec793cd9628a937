"""The plots of docs/when.md and the table of WHEN.md: what gradients and unlabelled photos give.

    python benchmarks/when_plots.py RESULTS ... [--into docs/assets]

RESULTS are folders of `deepfish reproduce DATASET --protocol low-shot` (curves.jsonl), or folders
of such folders. Writes when-gradients.svg (`auto` minus `auto-forward`) and when-pool.svg
(`auto-forward` minus the strongest forward feature without unlabelled photos), each against the
number of labels, a line per data set and network, with paired intervals over the draws, and prints
the figures in Markdown. The figures are mAP in the second form of the protocol, k labelled photos
per class and nothing else.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import matplotlib as mpl
import numpy as np
import typer

from deepfishing.evaluation.record import PHOTOS
from deepfishing.evaluation.report.charts import panels
from deepfishing.evaluation.report.folder import group_points, open_points
from deepfishing.evaluation.report.gains import GainSplit, chart_splits
from deepfishing.evaluation.report.overview import find_folders
from deepfishing.evaluation.report.sheet import one_decimal

MAX_LABELS = 16
# other data sets are drawn or cut, `few_label_sets.py`
PHOTOGRAPHS = ("groceries", "voc2007")
COLOURS = (
    "#1769aa",
    "#c2410c",
    "#15803d",
    "#7c3aed",
    "#b45309",
    "#be185d",
    "#0f766e",
    "#475569",
)
PLOTS = {
    "when-gradients.svg": ("gradients give, points of mAP", "of_gradients"),
    "when-pool.svg": ("unlabelled photos give, points of mAP", "of_pool"),
}
Lines = dict[tuple[str, str], list[GainSplit]]


def read_lines(folders: Sequence[Path]) -> Lines:
    """Return the gains at each number of labels, by data set and network."""
    lines: Lines = {}
    for folder in folders:
        for points in group_points(open_points(folder)):
            for panel in panels(points):
                if panel.x_axis != PHOTOS:
                    continue
                splits = chart_splits(panel.charts[0])
                shown = [split for split in splits if (split.labels or 0) <= MAX_LABELS]
                if shown:
                    lines[points[0]["dataset"], points[0]["network"]] = shown
    return dict(sorted(lines.items()))


def draw(lines: Lines, y_axis: str, gain: str, path: Path) -> None:
    """Draw photographs on the left and other pictures on the right, with one scale."""
    mpl.use("svg")
    mpl.rcParams |= {"svg.hashsalt": "when", "font.size": 9, "svg.fonttype": "none"}
    from matplotlib import pyplot

    figure, sides = pyplot.subplots(
        1, 2, figsize=(9, 3.8), sharey=True, layout="constrained"
    )
    kinds = ("photographs", "pictures unlike photographs")
    for ax, kind in zip(sides, kinds, strict=True):
        chosen = [k for k in lines if (k[0] in PHOTOGRAPHS) == (kind == "photographs")]
        ax.axhline(0, color="#888", linewidth=1)
        for (name, network), colour in zip(chosen, COLOURS * 2, strict=False):
            splits = lines[name, network]
            gains = [getattr(split, gain) for split in splits]
            x = np.array([split.labels for split in splits], dtype=float)
            label = name if kind != "photographs" else f"{name}, {network}"
            ax.plot(
                x,
                [one.mean for one in gains],
                "o-",
                color=colour,
                markersize=4,
                label=label,
            )
            known = [
                (at, one.interval)
                for at, one in zip(x, gains, strict=True)
                if one.interval
            ]
            for at, (low, high) in known:
                ax.plot([at, at], [low, high], color=colour, linewidth=1, alpha=0.45)
        ax.set_xscale("log", base=2)
        ticks = [2**power for power in range(5)]
        ax.set_xticks(ticks, [str(tick) for tick in ticks])
        ax.set(xlabel=PHOTOS, title=kind)
        if chosen:
            ax.legend(fontsize=7.5, frameon=False)
        ax.spines[["top", "right"]].set_visible(False)
    sides[0].set_ylabel(y_axis)
    figure.savefig(path, metadata={"Date": None})
    pyplot.close(figure)


def table(lines: Lines) -> str:
    """Return the figures in Markdown."""
    labels = [str(2**power) for power in range(5)]
    rows = [
        f"| data set, network | | {' | '.join(labels)} |",
        f"|---|---|{'---|' * len(labels)}",
    ]
    for (name, network), splits in lines.items():
        by_labels = {str(split.labels): split for split in splits}
        for title, gain in (
            ("unlabelled photos", "of_pool"),
            ("gradients", "of_gradients"),
        ):
            cells = []
            for label in labels:
                split = by_labels.get(label)
                cells.append("" if split is None else getattr(split, gain).text)
            rows.append(f"| {name}, {network} | {title} | {' | '.join(cells)} |")
    for title, gain in (
        ("unlabelled photos", "of_pool"),
        ("gradients", "of_gradients"),
    ):
        cells = []
        for label in labels:
            found = [
                getattr(s, gain).mean
                for some in lines.values()
                for s in some
                if str(s.labels) == label
            ]
            cells.append(
                f"**{one_decimal(float(np.mean(found)), sign=True)}**" if found else ""
            )
        rows.append(f"| **mean** | {title} | {' | '.join(cells)} |")
    return "\n".join(rows)


def main(
    results: list[Path],
    into: Annotated[Path, typer.Option(help="Folder of the plots.")] = Path(
        "docs/assets"
    ),
) -> None:
    """Draw both plots and print the table."""
    lines = read_lines(find_folders(results))
    for name, (y_axis, gain) in PLOTS.items():
        draw(lines, y_axis, gain, into / name)
    print(table(lines))


if __name__ == "__main__":
    typer.run(main)

"""Write the points of `growth.py` as GROWTH.md and as plots.

For each stage: seconds and bytes, and the exponent b of n^b, fitted by least squares in logarithms,
with its standard error. A fixed cost, such as starting an engine, makes b smaller; so the exponent
is also given for the last two sizes alone.
"""

from __future__ import annotations

import colorsys
from dataclasses import dataclass
from pathlib import Path

import matplotlib
import numpy as np

from deepfishing.evaluation.protocols.approximation import too_large
from deepfishing.evaluation.report.charts import HUES

matplotlib.use("svg")
import matplotlib.pyplot as plt

ROOT = Path(__file__).parent.parent
PAGE = ROOT / "benchmarks/GROWTH.md"
ASSETS = ROOT / "docs/assets"
PLOTS = """
![Microseconds per image against the number of images](../docs/assets/growth_time.svg)

![Bytes of memory per image against the number of images](../docs/assets/growth_memory.svg)

![Milliseconds per query against the number of images](../docs/assets/growth_query.svg)
"""

# those of the report
INK, SOFT, RULE, PAPER = "#1b1f24", "#5b6470", "#d9dce0", "#fcfcfa"
WORK = (
    *("extract", "bookkeeping", "write", "read", "projection"),
    *("Gram matrix", "kernel machines", "linear machines", "index"),
)
QUERIES = ("query through the index", "query, all compared")
MEANING = {
    "extract": "JPEGs to a store, all rows of EfficientNet-Lite0",
    "bookkeeping": "the list of images of a run: kept, compared, written",
    "write": "x6 and delta7 into shards",
    "read": "the same back as float32, in the system's cache",
    "projection": "dW7 to 512 numbers (principal)",
    "Gram matrix": "trace kernel of dW7, exact",
    "kernel machines": "one-vs-rest on that matrix, the matrix included",
    "linear machines": "one-vs-rest on the 512 numbers",
    "index": "built over the store, by dW7",
    "query through the index": "one search, the index opened",
    "query, all compared": "one search without an index",
}

HEAD = """# How cost grows

Made by `python benchmarks/growth.py{data}` on {machine};
load average when a point was begun: at most {load}. Each point is a process of its own.
Features of {source}; where images run out they are drawn with replacement and changed by
noise. `b` is the exponent of n^b, fitted to all points, with its standard error; "end" is the
exponent between the last two sizes, where fixed costs matter least. Memory is the most that the
process had beyond what it began with.

## Exponents

"""
NOTES = """
Where a stage ends before a million images: extraction does, since an image costs the same whatever
their number and a million would take hours (the parts of it that could grow are `bookkeeping` and
`write`, which go on); the exact kernel does,
since {kernel}.

"""


@dataclass(frozen=True)
class Exponent:
    """Of n^b: fitted, its standard error, and between the last two sizes."""

    b: float
    error: float
    end: float

    def __str__(self) -> str:
        return f"{self.b:.2f} ± {self.error:.2f}"


def exponent(n: list[int], values: list[float]) -> Exponent | None:
    """Least squares in logarithms; None for fewer than three points.

    >>> exponent([10, 100, 1000], [2.0, 20.0, 200.0]).b.__round__(6)
    1.0
    """
    if len(n) < 3:
        return None
    x, y = np.log(n), np.log(values)
    x0 = x - x.mean()
    b = float(x0 @ y / (x0 @ x0))
    rest = y - y.mean() - b * x0
    error = float(np.sqrt(rest @ rest / (len(n) - 2) / (x0 @ x0)))
    return Exponent(b, error, float((y[-1] - y[-2]) / (x[-1] - x[-2])))


def write_pages(points: list[dict]) -> None:
    """Write GROWTH.md and the plots."""
    if not points:
        return
    tables = exponent_table(points) + kernel_note() + figures(points)
    PAGE.write_text(head(points) + tables + PLOTS)
    plots(points)


def head(points: list[dict]) -> str:
    voc = any(point.get("data") == "voc2007" for point in points)
    return HEAD.format(
        data=" --data VOCdevkit" if voc else "",
        machine="; ".join(dict.fromkeys(point["machine"] for point in points)),
        load=max(point.get("load", 0) for point in points),
        source="PASCAL VOC 2007" if voc else "the embedded photographs",
    )


def series(points: list[dict], stage: str, key: str) -> tuple[list[int], list[float]]:
    """Sizes and values of a stage, rising."""
    found = sorted(
        (p["n"], p[key]) for p in points if p["stage"] == stage and p.get(key)
    )
    return [n for n, _ in found], [value for _, value in found]


def exponent_table(points: list[dict]) -> str:
    lines = [
        "| stage | what | images | seconds: b | end | at the largest | memory | end |\n",
        "|---|---|---|---|---|---|---|---|\n",
    ]
    for stage in (*WORK, *QUERIES):
        n, seconds = series(points, stage, "seconds")
        if not n:
            continue
        sizes, memory = series(points, stage, "memory")
        time, space = exponent(n, seconds), exponent(sizes, memory)
        room = f"{_bytes(memory[-1] / sizes[-1])} per image" if memory else ""
        each = f"{1000 * seconds[-1]:.1f} ms"
        if stage in WORK:
            each = f"{_seconds(seconds[-1])}, {_number(1e6 * seconds[-1] / n[-1])} µs per image"
        lines.append(
            f"| {stage} | {MEANING[stage]} | {n[0]:,} to {n[-1]:,} | {time or ''} | "
            f"{f'{time.end:.2f}' if time else ''} | {each} | {room} | "
            f"{f'{space.end:.2f}' if space else ''} |\n"
        )
    return "".join(lines)


def kernel_note() -> str:
    return NOTES.format(kernel=too_large(100_000) or "it was not asked for")


def figures(points: list[dict]) -> str:
    """Every point."""
    parts = []
    for title, key, scale in (
        ("Seconds", "seconds", None),
        ("Peak memory, MB", "memory", 1e6),
        ("On disk, bytes per image", "disk", 0),
    ):
        sizes = sorted({p["n"] for p in points if p.get(key)})
        parts.append(
            f"## {title}\n\n| stage | " + " | ".join(f"{n:,}" for n in sizes) + " |\n"
        )
        parts.append("|---" * (len(sizes) + 1) + "|\n")
        for stage in (*WORK, *QUERIES):
            found = dict(zip(*series(points, stage, key), strict=True))
            if found:
                cells = (_cell(found.get(n), n, scale) for n in sizes)
                parts.append(f"| {stage} | " + " | ".join(cells) + " |\n")
        parts.append("\n")
    return "".join(parts)[:-1]


def plots(points: list[dict]) -> None:
    """Seconds per image, bytes per image, and the time of a query, all in logarithms."""
    plt.rcParams.update(
        {"svg.hashsalt": "growth", "svg.fonttype": "none", "font.size": 10}
    )
    charts = {
        "time": ("microseconds per image", WORK, "seconds", lambda v, n: 1e6 * v / n),
        "memory": ("bytes of memory per image", WORK, "memory", lambda v, n: v / n),
        "query": ("milliseconds per query", QUERIES, "seconds", lambda v, n: 1e3 * v),
    }
    for name, (label, stages, key, value) in charts.items():
        figure, axes = plt.subplots(figsize=(7.2, 4.2), facecolor=PAPER)
        axes.set_facecolor(PAPER)
        for number, stage in enumerate(stages):
            n, values = series(points, stage, key)
            if len(n) > 1:
                hue, dash = HUES[number % len(HUES)], ("-", "--", ":")[number // 4 % 3]
                colour = colorsys.hls_to_rgb(hue / 360, 0.34, 0.65)
                each = [value(v, size) for v, size in zip(values, n, strict=True)]
                axes.plot(
                    n, each, dash, color=colour, marker="o", ms=4, lw=1.5, label=stage
                )
        axes.set(xscale="log", yscale="log", xlabel="images", ylabel=label)
        axes.grid(color=RULE, lw=0.8)
        axes.tick_params(which="both", colors=SOFT)
        axes.spines[:].set_visible(False)
        if axes.lines:
            axes.legend(
                frameon=False, labelcolor=INK, loc="upper left", bbox_to_anchor=(1, 1)
            )
        figure.savefig(
            ASSETS / f"growth_{name}.svg", bbox_inches="tight", metadata={"Date": None}
        )
        plt.close(figure)


def _seconds(value: float) -> str:
    return f"{_number(value)} s"


def _number(value: float) -> str:
    return f"{value:.3g}" if value < 1000 else f"{value:,.0f}"


def _bytes(value: float) -> str:
    return f"{value:,.0f} B" if value < 10_000 else f"{value / 1000:,.0f} kB"


def _cell(value: float | None, n: int, scale: float | None) -> str:
    if value is None:
        return ""
    if scale is None:
        return _number(value)
    return f"{value / n:,.0f}" if scale == 0 else f"{value / scale:,.0f}"

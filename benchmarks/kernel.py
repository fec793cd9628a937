"""What 8,192 numbers per image save against the exact kernel at 50,000 images, on real features.

Linear machines train at 50,000 images. The kernel matrix of so many does not fit: kernel machines
train at 16,000 and 30,000, and their growth between the two is continued. Both take turns in every
repetition, the linear machines before and after. Writes benchmarks/KERNEL.md.

    python benchmarks/kernel.py --data VOCdevkit --work RESULTS
"""

from __future__ import annotations

import argparse
import math
import statistics
from dataclasses import dataclass
from pathlib import Path

from deepfishing.core.recipes import parse_recipe
from deepfishing.evaluation.experiment import Protocol, prepare
from deepfishing.evaluation.protocols.approximation import (
    Gradients,
    with_kernel,
    with_projection,
)
from deepfishing.images.voc import read_voc
from deepfishing.networks.load import load_network
from deepfishing.util.machine import cores, processor

PAGE = Path(__file__).with_name("KERNEL.md")
KINDS, NUMBERS = ("principal", "tensor-sketch"), 8192
IMAGES, SMALLER = 50_000, (16_000, 30_000)


@dataclass(frozen=True)
class Turn:
    """Seconds to train and score: linear machines before and after, kernel machines between."""

    linear: tuple[float, float]
    kernel: tuple[float, float]

    @property
    def exponent(self) -> float:
        """The power of the number of images with which the kernel machines' time grows."""
        few, many = SMALLER
        return math.log(self.kernel[1] / self.kernel[0]) / math.log(many / few)

    @property
    def continued(self) -> float:
        """What the kernel machines would take at as many images as the linear ones."""
        return float(self.kernel[1] * (IMAGES / SMALLER[1]) ** self.exponent)

    @property
    def times(self) -> float:
        """How many times cheaper the linear machines are."""
        return self.continued / statistics.mean(self.linear)


def turns(data: Gradients, kind: str, repetitions: int) -> list[Turn]:
    most = data.resample(IMAGES)
    few, many = (data.resample(n) for n in SMALLER)
    found = []
    for _ in range(repetitions):
        before = with_projection(most, kind, NUMBERS).seconds
        kernel = with_kernel(few).seconds, with_kernel(many).seconds
        found.append(
            Turn((before, with_projection(most, kind, NUMBERS).seconds), kernel)
        )
        print(f"{kind}: {found[-1]}, {found[-1].times:.1f} times", flush=True)
    return found


def page(measured: dict[str, list[Turn]]) -> str:
    few, many = SMALLER
    lines = [
        "# Linear machines on 8,192 numbers against the exact kernel",
        "",
        f"Training on {IMAGES:,} images, resampled from those of VOC 2007, and scoring its test",
        f"images; seconds, on {processor()}, {cores()} cores. `python benchmarks/kernel.py` makes",
        "this table, and says how.",
        "",
        f"| numbers | linear machines, before and after | kernel, {few:,} | {many:,} | growth "
        f"| continued to {IMAGES:,} | times cheaper |",
        "|---|---|---|---|---|---|---|",
    ]
    for kind, rows in measured.items():
        for turn in rows:
            before, after = turn.linear
            lines.append(
                f"| `{kind}` | {before:.1f} and {after:.1f} | {turn.kernel[0]:.1f} "
                f"| {turn.kernel[1]:.1f} | N^{turn.exponent:.2f} | {turn.continued:.0f} "
                f"| {turn.times:.1f} |"
            )
    lines.append("")
    for kind, rows in measured.items():
        times = [turn.times for turn in rows]
        lines.append(
            f"- `{kind}`: {statistics.median(times):.1f} times cheaper "
            f"({min(times):.1f} to {max(times):.1f}, {len(times)} repetitions)"
        )
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--data", type=Path, required=True, help="a VOCdevkit folder")
    parser.add_argument(
        "--work", type=Path, required=True, help="a results folder, made if new"
    )
    parser.add_argument("--repetitions", type=int, default=5)
    options = parser.parse_args()
    network, data = load_network(), read_voc(options.data, 2007, "trainval", "test")
    recipe = parse_recipe("dW8", network.layers)
    experiment = prepare(data, network, options.work, [recipe], Protocol(), print)
    train, test = experiment.sides(recipe)
    gradients = Gradients(train, experiment.train_labels(), test)
    measured = {kind: turns(gradients, kind, options.repetitions) for kind in KINDS}
    PAGE.write_text(page(measured), encoding="utf-8")


if __name__ == "__main__":
    main()

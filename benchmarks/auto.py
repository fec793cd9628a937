"""What choosing features costs, and what training on vectors saves and loses.

    python benchmarks/auto.py STORE VOCdevkit --images 5000 --images 50000

STORE has all factors of VOC 2007. Images beyond trainval are drawn from it again, with every number
changed by about a third. Each line is a process of its own: CPU seconds, peak memory, mAP on test.
"""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path
from typing import Annotated

import numpy as np
import typer

from deepfishing.core.metrics import evaluate
from deepfishing.core.recipes import parse_recipe
from deepfishing.extraction.settings import Settings
from deepfishing.images.voc import read_voc
from deepfishing.learn.training import LARGE, Task, train_large, train_model
from deepfishing.store import Store
from deepfishing.util.machine import peak_memory

RUNS = (("best", "1"), ("auto", "auto"))


def one(
    folder: str, data: Path, recipe: str, cost: str, images: int, vectors: bool
) -> str:
    """Train once; a line of what it took."""
    store, found = Store.open(folder), read_voc(data, 2007, "trainval", "test")
    settings, rows = Settings.from_dict(store.settings), store.rows()
    columns = parse_recipe(recipe, settings.network.layers).columns
    sides = [
        {
            name: store.read([rows[i].sha256 for i in split.ids], name)
            for name in columns
        }
        for split in (found.train, found.test)
    ]
    n = len(found.train)
    drawn = (
        np.arange(images)
        if images <= n
        else np.random.default_rng(0).integers(n, size=images)
    )

    def read(numbers: np.ndarray) -> dict[str, np.ndarray]:
        noise = np.random.default_rng([1, int(numbers[0])])
        taken = {name: values[drawn[numbers]] for name, values in sides[0].items()}
        if images <= n:
            return taken
        for values in taken.values():
            values *= 1 + np.float32(0.3) * noise.standard_normal(
                values.shape, dtype=np.float32
            )
        return taken

    C = cost if cost == "auto" else float(cost)
    what = found.train.labels[drawn], found.classes
    before, start = peak_memory(), time.process_time()
    if vectors or images > LARGE:
        model = train_large(read, Task(recipe, *what, settings, C=C))
    else:
        model = train_model(
            recipe, read(np.arange(images)), *what, settings=settings, C=C
        )
    seconds, memory = time.process_time() - start, peak_memory() - before
    test = {name: sides[1][name] for name in model.columns}
    scores = np.concatenate(
        [
            model.scores({k: v[i : i + 500] for k, v in test.items()})
            for i in range(0, 4952, 500)
        ]
    )
    area = evaluate(found.test.labels, scores, found.classes).map["area"]
    how = (
        f"vectors of {model.training['vectors']:,}"
        if "vectors" in model.training
        else "kernel"
    )
    chosen = parse_recipe(model.recipe).title
    return (
        f"| {images:,} | `{recipe}` | {how} | {seconds:.0f} | {memory / 1e9:.1f} | {area:.1f} | "
        f"`{chosen}`, cost {model.svm.cost[0]:g} |"
    )


def main(
    store: str,
    data: Path,
    images: Annotated[list[int] | None, typer.Option()] = None,
    vectors: bool = False,
    only: str = "",
) -> None:
    """Print a table of all runs, or one of its lines."""
    if only:
        recipe, cost, n = only.split(";")
        print(one(store, data, recipe, cost, int(n), vectors), flush=True)
        return
    print(
        "| images | features | machines on | CPU seconds | GB above the factors | mAP | taken |"
    )
    print("|---|---|---|---|---|---|---|", flush=True)
    for n in images or [5000]:
        for recipe, cost in RUNS:
            for large in (False, True) if n <= LARGE else (True,):
                call = [
                    sys.executable,
                    __file__,
                    store,
                    str(data),
                    "--only",
                    f"{recipe};{cost};{n}",
                ]
                subprocess.run([*call, *(["--vectors"] if large else [])], check=True)


if __name__ == "__main__":
    typer.run(main)

"""Random labels on photos with copies: what a validation that is honest cannot learn.

    python benchmarks/leakage.py --work WORK --seeds 3 --out benchmarks/leakage.jsonl

Photographs of groceries, some of them with copies (the same file, encoded again, or crops that are
shifted by a pixel), get random labels; all copies of a photo have its label. Each command then
states how well the labels can be told. Chance is the distribution of that figure for scores that
do not depend on the photo, and are equal for copies. To measure another version of the package, put
its `src` into PYTHONPATH; what was extracted is in a folder of that version's name.
"""

from __future__ import annotations

import argparse
import contextlib
import csv
import io
import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

import deepfishing
from deepfishing.cli import main as deepfish
from deepfishing.core.metrics import average_precision

# name: photos, copies of each, how the copies are made
CASES = {
    "no copies": (80, 1, "exact"),
    "one exact copy": (80, 2, "exact"),
    "one copy, encoded again": (80, 2, "encoded"),
    "four more copies of all kinds": (60, 5, "mixed"),
    "four crops, one pixel apart": (24, 4, "shifted"),
}
MIXED = ("exact", "encoded", "shifted")
CLASSES = ("heads", "tails")
DRAWS = 400
AP = "area"  # the definition of the commands' figures
Photos = list[tuple[str, int]]  # the name of a file, and the number of its photo


def make_photos(folder: Path, source: Path, case: str) -> Photos:
    """Write photos and their copies; return their names, with the number of the photo."""
    count, copies, way = CASES[case]
    paths = sorted(
        path for path in source.rglob("*") if path.suffix in (".jpg", ".png")
    )
    chosen = np.random.default_rng(1).choice(len(paths), count, replace=False)
    folder.mkdir(parents=True, exist_ok=True)
    photos = []
    for number, row in enumerate(sorted(chosen.tolist())):
        for copy in range(copies):
            name = f"{number * 37 % 101:03d}-{number}-{copy}.jpg"
            photos.append((name, number))
            if not (folder / name).exists():
                (folder / name).write_bytes(make_copy(paths[row], copy, way))
    return photos


def make_copy(path: Path, copy: int, way: str) -> bytes:
    """Return the file of a copy; copy 0 is the photo itself, but for shifted crops."""
    if way == "mixed":
        way = MIXED[copy % len(MIXED)]
    if way == "exact" or (way == "encoded" and copy == 0):
        return path.read_bytes()
    with Image.open(path) as photo:
        image = photo.convert("RGB")
    if way == "shifted":
        left, top = copy % 2, copy // 2
        image = image.crop((left, top, image.width - 3 + left, image.height - 3 + top))
    file = io.BytesIO()
    image.save(file, "JPEG", quality=60 if way == "encoded" else 90)
    return file.getvalue()


def run(*arguments: object) -> str:
    """Run a command in this process; return what it prints."""
    sys.argv = ["deepfish", *map(str, arguments)]
    printed, said = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(printed), contextlib.redirect_stderr(said):
        try:
            deepfish()
        except SystemExit as stop:
            if stop.code:
                raise RuntimeError(said.getvalue()) from None
    return printed.getvalue()


def chance(truth: np.ndarray, photo: np.ndarray) -> tuple[float, float, float]:
    """Return mean and 95 % interval of the mAP of scores that do not depend on the photo.

    The AP is the one that the commands state. It fills up drops of the precision, so it is never
    below the share of the class: chance is higher, and more so for few photos, than with others.
    """
    rng = np.random.default_rng(0)
    is_tails = np.where(truth == 1, 1, -1)
    found = []
    for _ in range(DRAWS):
        scores = rng.random(photo.max() + 1)[photo]
        tails = average_precision(is_tails, scores, AP)
        heads = average_precision(-is_tails, -scores, AP)
        found.append((heads + tails) / 2)
    low, high = np.percentile(found, [2.5, 97.5])
    return float(np.mean(found)), float(low), float(high)


def measure(case: str, seed: int, work: Path, source: Path) -> list[dict[str, Any]]:
    """Return one row per command."""
    folder = work / "photos" / case.replace(" ", "-").replace(",", "")
    photos = make_photos(folder, source, case)
    photo = np.array([number for _, number in photos])
    label_of_photo = np.random.default_rng(100 + seed).integers(0, 2, photo.max() + 1)
    truth = label_of_photo[photo]
    made = work / deepfishing.__version__ / f"{folder.name}-{seed}"
    made.mkdir(parents=True, exist_ok=True)
    table = made / "labels.csv"
    with table.open("w", newline="") as file:
        rows = csv.writer(file)
        rows.writerow(["path", "label"])
        for (name, _), label in zip(photos, truth.tolist(), strict=True):
            rows.writerow([folder / name, CLASSES[label]])
    store = made.parent / f"{folder.name}-store"
    if not store.exists():
        run("extract", folder, store, "--features", "x6,x7,dW7,dW8")

    mean, low, high = chance(truth, photo)
    expected: dict[str, Any] = {
        "chance": round(mean, 1),
        "interval": [round(low, 1), round(high, 1)],
    }
    found: list[dict[str, Any]] = []

    def add(command: str, value: float | None, **more: Any) -> None:
        row = {
            "version": deepfishing.__version__,
            "case": case,
            "seed": seed,
            "command": command,
        }
        inside = (
            None
            if value is None
            else expected["interval"][0] <= value <= expected["interval"][1]
        )
        found.append(row | {"value": value, **expected, "inside": inside, **more})

    for features in ("x7", "auto"):
        options = ["--features", features, "--labels", table, "--json"]
        summary = json.loads(run("train", store, made / features, *options))
        tried = json.loads((made / features / "model.json").read_text())[
            "training"
        ].get("auto")
        own = None if not tried else round(max(one["map"] for one in tried["tried"]), 1)
        add(
            f"train --features {features}",
            summary["cross_validated_map"],
            best_tried=own,
        )

    # a label is doubted if the other photos tell another one: half of them, by chance
    told = json.loads(
        run("curate", "labels", store, "--labels", table, "-n", "1", "--json")
    )
    doubted = 100 * told["doubtful"] / len(photos)
    found.append(
        {
            **{"version": deepfishing.__version__, "case": case, "seed": seed},
            **{
                "command": "curate labels: share of labels doubted",
                "value": round(doubted, 1),
            },
            **{"chance": 50.0},
        }
    )

    sorted_folder = made / "sorted"
    for (name, _), label in zip(photos, truth.tolist(), strict=True):
        link = sorted_folder / CLASSES[label] / name
        link.parent.mkdir(parents=True, exist_ok=True)
        if not link.exists():
            link.hardlink_to(folder / name)
    options = [
        "--data",
        sorted_folder,
        "--features",
        "x7,dW7",
        "--out",
        made / "results",
    ]
    run("reproduce", "folder", *options)
    lines = (made / "results" / "results.jsonl").read_text().splitlines()
    for line in lines:
        row = json.loads(line)
        files = (made / "results" / "scores").glob(f"{row['feature']}-*.npz")
        scores = max(files, key=lambda path: path.stat().st_mtime)
        with np.load(scores) as arrays:
            tested, shown = arrays["ids"], arrays["labels"][:, 1] == 1
        numbers = np.array([int(Path(str(id_)).stem.split("-")[1]) for id_ in tested])
        mean, low, high = chance(shown.astype(int), numbers)
        expected = {
            "chance": round(mean, 1),
            "interval": [round(low, 1), round(high, 1)],
        }
        add(f"reproduce folder, {row['feature']}", round(row["map"]["area"], 1))
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--only", default="", help="cases with this in their name")
    parser.add_argument(
        "--out", type=Path, help="append the rows to this file, a JSON per line"
    )
    given = parser.parse_args()
    source = given.work / "source"
    if not source.exists():
        deepfishing.load_groceries(source)
    for case in CASES:
        for seed in range(given.seeds if given.only in case else 0):
            for row in measure(case, seed, given.work, source):
                print(json.dumps(row), flush=True)
                if given.out:
                    with given.out.open("a") as file:
                        file.write(json.dumps(row) + "\n")


if __name__ == "__main__":
    main()

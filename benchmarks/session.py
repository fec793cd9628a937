"""A whole session of labelling with simulated answers: from no labels to a classifier.

    python benchmarks/session.py --groceries RESULTS --voc RESULTS --voc-data VOCdevkit

RESULTS are folders of `deepfish reproduce groceries` and `deepfish reproduce voc2007`, or stores of
the same images. A collection is the whole folder. One half is asked about, photo by photo, in the
order of the view Label, and answered with all labels that the photo has; the other half is never
asked about, and is what the accuracy is measured on: how often the first suggestion is a label of
the photo. On VOC 2007 the halves are trainval, of which 2,500 photos are drawn, and test; of the
embedded photographs, whose official halves come from different shops, they are drawn so that
similar photos stay together. Every figure is a mean of `--draws` draws of the halves.

Compared are two orders (the studio's and a random one) and two classifiers (the studio's and the
support vector machine of the paper on x7). SESSION.md and docs/assets/session.svg are written.
"""

from __future__ import annotations

import argparse
import os
import platform
import time
from dataclasses import dataclass
from pathlib import Path

import matplotlib

matplotlib.use("svg")
import matplotlib.pyplot as plt
import numpy as np

from deepfishing.core.rank_one import l2_normalize
from deepfishing.curate.label_session import advise, choose_next, learn, targets
from deepfishing.images.voc import read_split, voc_layout
from deepfishing.learn.few_labels import FewLabels
from deepfishing.learn.folds import read_groups
from deepfishing.learn.label_pool import make_label_pool
from deepfishing.learn.svm import train_svm
from deepfishing.store import Store
from deepfishing.store.contents import Contents

OUT = Path(__file__).parent / "SESSION.md"
CURVE = Path(__file__).parent.parent / "docs" / "assets" / "session.svg"
SIZES = (10, 20, 40, 80, 160)
ASKED = 2500  # photos of VOC's trainval that may be asked about
STEP = 5  # labels between two choices
WAYS = {
    "studio": ("chosen", "studio"),
    "random order": ("random", "studio"),
    "chosen, x7": ("chosen", "x7"),
    "random order, x7": ("random", "x7"),
}


@dataclass(frozen=True, eq=False)
class Photos:
    """A collection with its answers."""

    name: str
    few: FewLabels
    x7: np.ndarray
    groups: np.ndarray
    answers: list[tuple[str, ...]]
    official: np.ndarray | None  # of VOC: whether a photo is in trainval

    def halves(self, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
        """Photos that may be asked about, and photos to measure on."""
        if self.official is not None:
            asked = rng.permutation(np.flatnonzero(self.official))[:ASKED]
            return np.sort(asked), np.flatnonzero(~self.official)
        names = np.unique(self.groups)
        half = np.isin(self.groups, rng.permutation(names)[: len(names) // 2])
        return np.flatnonzero(half), np.flatnonzero(~half)


def open_photos(name: str, results: Path, voc: Path | None) -> Photos:
    """Read a store and the answers."""
    store = Store.open(results)
    pool = make_label_pool(store, keep=False)
    keys = pool.keys.to_pylist()
    answers: dict[str, tuple[str, ...]] = {}
    trainval: set[str] = set()
    if voc is not None:
        of_image, trainval_ids = voc_answers(voc)
    for row in store.rows().values():
        stem = Path(row.path).stem
        answers[str(row.sha256)] = (
            of_image[stem] if voc is not None else tuple(row.labels or ())
        )
        if voc is not None and stem in trainval_ids:
            trainval.add(str(row.sha256))
    contents = Contents.of(store, ["x7"], pool.keys)
    x7 = l2_normalize(
        contents.read(np.arange(len(contents)), ["x7"])["x7"].astype(np.float32)
    )
    groups = read_groups(lambda rows: {"x7": x7[rows]}, keys)
    official = None if voc is None else np.array([key in trainval for key in keys])
    return Photos(name, pool.few, x7, groups, [answers[key] for key in keys], official)


def voc_answers(data: Path) -> tuple[dict[str, tuple[str, ...]], set[str]]:
    """The classes of each image, and the images of trainval."""
    folder = voc_layout(data)
    if folder is None:
        raise SystemExit(f"no VOC layout in {data}")
    found: dict[str, tuple[str, ...]] = {}
    trainval: set[str] = set()
    for split in ("trainval", "test"):
        ids, classes, labels = read_split(folder, split, must_be_labelled=True)
        for id_, row in zip(ids, np.asarray(labels), strict=True):
            found[id_] = tuple(
                name for name, sign in zip(classes, row, strict=True) if sign == 1
            )
            if split == "trainval":
                trainval.add(id_)
    return found, trainval


def session_order(photos: Photos, asked: np.ndarray, n: int) -> list[int]:
    """The photos that the studio asks about, each answered."""
    done: list[int] = []
    while len(done) < n:
        answers = [photos.answers[row] for row in done]
        learned = learn(photos.few, done, answers, photos.groups) if done else None
        step = min(STEP, n - len(done))
        done += choose_next(photos.few, done, learned, asked, step).tolist()
    return done


def right_share(
    photos: Photos, rows: list[int], measured: np.ndarray, classifier: str
) -> float:
    """How often the first suggestion is right, in percent."""
    answers = [photos.answers[row] for row in rows]
    classes, target = targets(answers)
    if classifier == "x7":
        svm = train_svm(photos.x7[rows], target.astype(np.int8))
        scores = np.where(
            svm.trained, svm.decision_function(photos.x7[measured]), -np.inf
        )
    else:
        learned = learn(photos.few, rows, answers, photos.groups)
        if learned is None:
            return float("nan")
        scores = learned.scores[measured]
    return share_of_right(photos, classes, scores, measured)


def share_of_right(
    photos: Photos, classes: tuple[str, ...], scores: np.ndarray, rows: np.ndarray
) -> float:
    """How often the class with the highest score is right for some rows, in percent."""
    right = [
        classes[c] in photos.answers[row]
        for c, row in zip(scores.argmax(axis=1), rows, strict=True)
    ]
    return 100 * float(np.mean(right))


def run(photos: Photos, draws: int) -> tuple[dict[str, np.ndarray], list[str]]:
    """Accuracies (draws, sizes) of every way, and lines of the second table."""
    found = {way: np.zeros((draws, len(SIZES))) for way in WAYS}
    judged: dict[int, list[tuple[float, float, float, bool]]] = {
        size: [] for size in SIZES
    }
    verdicts: dict[int, list[str]] = {size: [] for size in SIZES}
    seconds = []
    for draw in range(draws):
        rng = np.random.default_rng(draw)
        asked, measured = photos.halves(rng)
        orders = {
            "chosen": session_order(photos, asked, SIZES[-1]),
            "random": rng.permutation(asked)[: SIZES[-1]].tolist(),
        }
        for way, (order, classifier) in WAYS.items():
            for at, size in enumerate(SIZES):
                rows = orders[order][:size]
                found[way][draw, at] = right_share(photos, rows, measured, classifier)
        for size in SIZES:
            rows = orders["chosen"][:size]
            start = time.perf_counter()
            learned = learn(
                photos.few, rows, [photos.answers[r] for r in rows], photos.groups
            )
            choose_next(photos.few, rows, learned, asked)
            seconds.append(time.perf_counter() - start)
            point = None if learned is None else learned.estimate()
            if learned is None or point is None:
                continue
            rest = np.setdiff1d(np.arange(len(photos.answers)), rows)
            true = share_of_right(photos, learned.classes, learned.scores[rest], rest)
            held_out = 100 * float(learned.right.mean())
            inside = point.interval[0] <= true <= point.interval[1]
            judged[size].append((held_out, point.accuracy, true, inside))
            verdicts[size].append(advise(photos.few, learned).verdict)
    lines = []
    for size, values in judged.items():
        if not values:
            lines.append(f"| {photos.name} | {size} | | no figure yet | | | |")
            continue
        held_out, estimated, true, inside = (
            np.array(column, float) for column in zip(*values, strict=True)
        )
        said = ", ".join(
            f"{verdicts[size].count(v)} {v}" for v in sorted(set(verdicts[size]))
        )
        lines.append(
            f"| {photos.name} | {size} | {held_out.mean():.1f} | {estimated.mean():.1f} | "
            f"{true.mean():.1f} | {int(inside.sum())} of {len(inside)} | {said} |"
        )
    print(f"{photos.name}: a label counts after {max(seconds):.2f} s at most")
    return found, [*lines, f"{max(seconds):.2f}"]


def draw_curves(all_found: dict[str, dict[str, np.ndarray]]) -> None:
    """Draw accuracy against labels, a panel per collection."""
    plt.rcParams["svg.hashsalt"] = "session"
    figure, panels = plt.subplots(1, len(all_found), figsize=(9, 3.4), sharey=True)
    colours = {"studio": "#c2410c", "random": "#5b6470"}
    for panel, (name, found) in zip(
        np.atleast_1d(panels), all_found.items(), strict=True
    ):
        for way, (order, classifier) in WAYS.items():
            mean = found[way].mean(axis=0)
            colour = colours["studio" if order == "chosen" else "random"]
            style = "-" if classifier == "studio" else "--"
            panel.plot(
                SIZES, mean, style, color=colour, marker="o", markersize=3, label=way
            )
        panel.set_xscale("log")
        panel.set_xticks(SIZES, [str(size) for size in SIZES])
        panel.minorticks_off()
        panel.set_title(name, fontsize=10)
        panel.set_xlabel("labelled photos")
        panel.grid(alpha=0.3)
        panel.spines[["top", "right"]].set_visible(False)
    np.atleast_1d(panels)[0].set_ylabel("first suggestion right, %")
    np.atleast_1d(panels)[-1].legend(fontsize=8, frameon=False)
    figure.tight_layout()
    figure.savefig(CURVE, metadata={"Date": None})


def main() -> None:
    """Measure, and write the table and the curve."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--groceries", type=Path, required=True)
    parser.add_argument("--voc", type=Path)
    parser.add_argument("--voc-data", type=Path)
    parser.add_argument("--draws", type=int, default=8)
    given = parser.parse_args()
    collections = [open_photos("embedded photographs", given.groceries, None)]
    if given.voc is not None:
        collections.append(open_photos("VOC 2007", given.voc, given.voc_data))
    all_found, rows, judged, slowest = {}, [], [], []
    for photos in collections:
        all_found[photos.name], (*lines, seconds) = run(photos, given.draws)
        judged += lines
        slowest.append(seconds)
        for way in WAYS:
            values = all_found[photos.name][way]
            error = values.std(axis=0, ddof=1) / np.sqrt(len(values))
            cells = [
                f"{m:.1f} ± {e:.1f}"
                for m, e in zip(values.mean(axis=0), error, strict=True)
            ]
            rows.append(f"| {photos.name} | {way} | {' | '.join(cells)} |")
    draw_curves(all_found)
    sizes = " | ".join(map(str, SIZES))
    OUT.write_text(
        f"""# A session of labelling

Made by `python benchmarks/session.py --groceries RESULTS --voc RESULTS --voc-data VOCdevkit
--draws {given.draws}` on {platform.machine()} with {os.cpu_count()} cores, one thread for BLAS.
EfficientNet-Lite0. The share of photos, in percent, whose first suggestion is right, of photos that
nobody was asked about; mean and standard error of {given.draws} draws. "studio" is the order and
the classifier of the view Label; "x7" is a support vector machine on x7 (C = 1), trained with the
same labels.

| collection | way | {sizes} |
|---|---|{"---|" * len(SIZES)}
{chr(10).join(rows)}

What the page says meanwhile (`learn/expected.py`): the accuracy for all photos of the collection
that have no label, the true one, how often the interval of 95 % has it, and the verdict on more
labels. "held out" is the share of the labelled photos that are right when they are left out, which
the page does not show: the photos that are asked about first are harder than the others.

| collection | labels | held out | estimated | true | inside the interval | verdicts |
|---|---|---|---|---|---|---|
{chr(10).join(judged)}

A label counts, in the suggestions and in what is asked next, after {" and ".join(slowest)} s at
most ({" and ".join(f"{len(p.answers):,}" for p in collections)} photos).
""",
        encoding="utf-8",
    )


if __name__ == "__main__":
    main()

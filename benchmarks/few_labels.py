"""What each candidate of `auto` for few labels gains, and what `auto` makes of it.

    python benchmarks/few_labels.py sets/digits sets/textures ...      folders with train/ and test/
    python benchmarks/few_labels.py VOCdevkit --train train --test val

Prints for each set mAP (area), and the share of right answers, with 1, 2, 4, 8 and 16 labels per
class, in the two forms in which labels come: positives of each class with 19 negatives each, and
labelled photos of each class and nothing else. The pool is the training half. At the end follow the
mean gains over the forward kernel of each candidate on photos like and unlike those that the
network was trained on: the numbers of `deepfishing.learn.mixtures`. Sets that a script has drawn
count half. Then follow the gains of the choice on each set with the expected gains of all others:
what a set gains that had no part in the development.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

import numpy as np
import typer
from sklearn.svm import SVC

from deepfishing import load_network, read_folder, read_voc
from deepfishing.core.kernels import gram
from deepfishing.core.recipes import parse_recipe
from deepfishing.evaluation.experiment import Protocol, prepare
from deepfishing.images.voc import voc_layout
from deepfishing.learn.auto import MIN_POOL, choose
from deepfishing.learn.leave_one_out import combined_gains, measurable_classes
from deepfishing.learn.mixtures import (
    LABELS,
    MIXTURES,
    Mixture,
    likeness,
    mixtures_for,
)
from deepfishing.learn.pool import Pool
from deepfishing.util.progress import silent

POSITIVES, PHOTOS = "positives", "photos"
NEGATIVES = 19
FORWARD = ("x7", "pow(x7,0.5)", "rbf(x7,2)", "x6+x7")
AUTO = ("auto", "auto-forward", "forward")
DRAWN_SETS = ("digits", "textures", "scans", "leaves", "tiles", "letters")
MEASURES = ((POSITIVES, "mAP"), (PHOTOS, "mAP"), (PHOTOS, "accuracy"))


@dataclass(eq=False)
class Collection:
    """Factors and labels of both halves of a set, and kernels that were computed of them."""

    name: str
    layers: dict[int, str]
    train: dict[str, np.ndarray]
    test: dict[str, np.ndarray]
    train_labels: np.ndarray
    test_labels: np.ndarray
    groups: np.ndarray
    kernels: dict[str, tuple[np.ndarray, np.ndarray]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.pool = Pool(self.train)

    @property
    def has_one_class_each(self) -> bool:
        """Whether each photo shows exactly one class."""
        both = np.concatenate([self.train_labels, self.test_labels])
        return bool(((both == 1).sum(axis=1) == 1).all())

    @property
    def mixtures(self) -> tuple[Mixture, ...]:
        """The candidates of `auto`; those that need a pool only if there is one."""
        has_pool = len(self.pool) >= MIN_POOL
        return mixtures_for("auto", self.layers, self.train, has_pool)

    def kernel(self, name: str) -> tuple[np.ndarray, np.ndarray]:
        """The kernel of the training photos, and of the test photos with them."""
        if name not in self.kernels:
            fitted = self.pool.fit(parse_recipe(name, self.layers), self.train)
            train = fitted(self.train)
            self.kernels[name] = gram(train), gram(fitted(self.test), train)
        return self.kernels[name]


def read_collection(
    data: Path, network: str, work: Path, train: str, test: str
) -> Collection:
    """Extract what is missing of a folder or a VOC tree."""
    loaded = load_network(network)
    dataset = (
        read_voc(data, 2007, train, test) if voc_layout(data) else read_folder(data)
    )
    recipe = parse_recipe("auto", loaded.layers)
    folder = work / f"{data.name}-{network}"
    experiment = prepare(dataset, loaded, folder, [recipe], Protocol(), silent)
    train_factors, test_factors = experiment.factors(recipe)
    return Collection(
        data.name,
        dict(loaded.layers),
        train_factors,
        test_factors,
        experiment.train_labels(),
        experiment.test_labels(),
        experiment.train_groups,
    )


def draw(labels: np.ndarray, form: str, count: int, seed: int) -> np.ndarray:
    """Labels (n, C) of which only the drawn ones are not 0."""
    rng = np.random.default_rng(100 * seed + count)
    known = np.zeros_like(labels)
    for column in range(labels.shape[1]):
        positive = rng.permutation(np.flatnonzero(labels[:, column] == 1))[:count]
        negative = rng.permutation(np.flatnonzero(labels[:, column] == -1))
        if form == POSITIVES:
            known[positive, column] = 1
            known[negative[: NEGATIVES * count], column] = -1
        else:
            known[positive] = labels[positive]
    return known


def average_precisions(labels: np.ndarray, scores: np.ndarray) -> np.ndarray:
    """AP (C,) in percent; labels of 0 have no part in it."""
    order = np.argsort(-scores, axis=0, kind="stable")
    ranked = np.take_along_axis(labels, order, axis=0)
    positive = ranked == 1
    precision = positive.cumsum(axis=0) / np.maximum((ranked != 0).cumsum(axis=0), 1)
    found = positive.sum(axis=0)
    return 100 * (precision * positive).sum(axis=0)[found > 0] / found[found > 0]


def evaluate(
    data: Collection, name: str, known: np.ndarray, cost: float, form: str
) -> dict[str, float]:
    """Train on the drawn labels and measure on the test photos."""
    K, across = data.kernel(name)
    scores = np.full(data.test_labels.shape, -np.inf)
    for column in range(known.shape[1]):
        rows = np.flatnonzero(known[:, column])
        target = known[rows, column]
        if len(set(target.tolist())) < 2:
            continue
        svm = SVC(C=cost, kernel="precomputed").fit(K[np.ix_(rows, rows)], target)
        support = rows[svm.support_]
        scores[:, column] = across[:, support] @ svm.dual_coef_[0] + svm.intercept_[0]
    trained = np.isfinite(scores).any(axis=0)
    found = average_precisions(data.test_labels[:, trained], scores[:, trained])
    figures = {"mAP": float(found.mean())}
    if form == PHOTOS and data.has_one_class_each:
        right = scores.argmax(axis=1) == data.test_labels.argmax(axis=1)
        figures["accuracy"] = 100 * float(right.mean())
    return figures


@dataclass(eq=False)
class Figures:
    """Test figures of each draw, and what its labelled photos show when they are left out."""

    # by form, measure and labels per class: those of each recipe
    cells: dict[tuple, dict[str, list[float]]] = field(default_factory=dict)
    # by form and labels per class: mAP of each candidate, and the positives it is measured on
    left_out: dict[tuple, list[tuple[np.ndarray, int]]] = field(default_factory=dict)

    def mean(self, cell: tuple, title: str) -> float:
        """The mean over the draws."""
        return float(np.mean(self.cells[cell][title]))

    def strongest_forward(self, cell: tuple) -> float:
        """The strongest forward kernel, picked on the test photos."""
        names = [name for name in FORWARD if name in self.cells[cell]]
        return max(self.mean(cell, name) for name in names)


def as_candidate(recipe: str) -> str:
    """The title of a candidate, which may be a forward kernel at another cost."""
    return f"candidate {recipe}"


def measure(data: Collection, draws: int, with_candidates: bool) -> Figures:
    """Measure each recipe on the same draws of labels."""
    recipes = [mixture.recipe(data.layers) for mixture in data.mixtures]
    forward = [name for name in FORWARD if name != "x6+x7" or "x6" in data.train]
    figures = Figures()
    for form in (POSITIVES, PHOTOS):
        for count in LABELS:
            enough = (data.train_labels == 1).sum(axis=0) >= count + (form == POSITIVES)
            if enough.mean() < 0.8:
                continue
            for seed in range(draws):
                known = draw(data.train_labels, form, count, seed)
                rows = np.flatnonzero(known.any(axis=1))
                runs = [(name, name, 1.0) for name in forward]
                for kind in AUTO:
                    choice = choose(
                        {name: values[rows] for name, values in data.train.items()},
                        known[rows],
                        data.layers,
                        kind=kind,
                        pool=data.pool,
                        groups=data.groups[rows],
                    )
                    runs.append((kind, choice.recipe, choice.cost))
                    if kind != "auto" or not with_candidates:
                        continue
                    runs += [
                        (as_candidate(name), name, choice.cost) for name in recipes
                    ]
                    maps = np.array([tried.map for tried in choice.tried])
                    measured = measurable_classes(known[rows], data.groups[rows])
                    positives = int((known[rows][:, measured] == 1).sum())
                    figures.left_out.setdefault((form, count), []).append(
                        (maps, positives)
                    )
                for title, name, cost in runs:
                    for what, value in evaluate(data, name, known, cost, form).items():
                        cell = figures.cells.setdefault((form, what, count), {})
                        cell.setdefault(title, []).append(value)
    return figures


def print_set(data: Collection, figures: Figures) -> None:
    """Print a table of one set: figures of the strongest forward kernel, then gains over it."""
    alike = likeness(data.train.get("y8"))
    print(f"\n## {data.name} ({len(data.train_labels)} photos, likeness {alike:.2f})\n")
    cells = [(form, what, n) for form, what in MEASURES for n in LABELS]
    cells = [cell for cell in cells if cell in figures.cells]
    print("| | " + " | ".join(f"{form}, {what}, {n}" for form, what, n in cells) + " |")
    print("|---" * (len(cells) + 1) + "|")
    strongest = [figures.strongest_forward(cell) for cell in cells]
    print("| strongest forward | " + " | ".join(f"{v:.1f}" for v in strongest) + " |")
    for title in figures.cells[cells[0]]:
        gains = [figures.mean(cell, title) for cell in cells] - np.array(strongest)
        print(f"| `{title}` | " + " | ".join(f"{gain:+.1f}" for gain in gains) + " |")


Measured = list[tuple[Collection, Figures]]


def expected_gains(measured: Measured, mixtures: Sequence[Mixture]) -> np.ndarray:
    """Gains (2, M, labels) of the candidates over the first, on photos unlike and like."""
    gains = np.zeros((2, len(mixtures), len(LABELS)))
    for number, mixture in enumerate(mixtures):
        for place, count in enumerate(LABELS):
            found, weights = [], []
            for data, figures in measured:
                names = mixture.recipe(data.layers), mixtures[0].recipe(data.layers)
                this, first = (as_candidate(name) for name in names)
                of_set = []
                for form, what in MEASURES:
                    cell = (form, what, count)
                    if this in figures.cells.get(cell, {}):
                        of_set.append(
                            figures.mean(cell, this) - figures.mean(cell, first)
                        )
                if of_set:
                    alike = likeness(data.train.get("y8"))
                    weight = 0.5 if data.name in DRAWN_SETS else 1.0
                    found.append(np.mean(of_set))
                    weights.append([weight * (1 - alike), weight * alike])
            for side in (0, 1):
                side_weights = [pair[side] for pair in weights]
                if sum(side_weights):
                    gains[side, number, place] = np.average(found, weights=side_weights)
    return gains


def print_gains(measured: Measured) -> None:
    """Print the gains of the candidates over the first one, unlike and like."""
    print("\n## Gains over the forward kernel\n")
    print("| candidate | unlike | like |\n|---|---|---|")
    gains = expected_gains(measured, MIXTURES)
    for number, mixture in enumerate(MIXTURES):
        sides = [
            " / ".join(f"{v:+.1f}" for v in gains[side, number]) for side in (0, 1)
        ]
        name = mixture.recipe(measured[0][0].layers)
        print(f"| `{name}` | {sides[0]} | {sides[1]} |")


def print_left_out_sets(measured: Measured) -> None:
    """Print what the choice gains on each set with the expected gains of the others."""
    print("\n## Each set with the expected gains of the others\n")
    print("| set | labels, figure | auto-forward | auto |\n|---|---|---|---|")
    for data, figures in measured:
        others = [pair for pair in measured if pair[0].name != data.name]
        mixtures = data.mixtures
        unlike, like = expected_gains(others, mixtures)
        alike = likeness(data.train.get("y8"))
        expected = (1 - alike) * unlike + alike * like
        for form, what in MEASURES:
            shown = []
            for kind in ("auto-forward", "auto"):
                is_open = [kind == "auto" or not one.is_gradient for one in mixtures]
                gains = []
                for place, count in enumerate(LABELS):
                    cell = (form, what, count)
                    if cell not in figures.cells:
                        continue
                    values = []
                    for seed, (maps, n) in enumerate(figures.left_out[form, count]):
                        seen = maps - maps[0] if len(maps) else np.zeros(len(mixtures))
                        scores = combined_gains(expected[:, place], seen, n)
                        best = int(np.where(is_open, scores, -np.inf).argmax())
                        title = as_candidate(mixtures[best].recipe(data.layers))
                        values.append(figures.cells[cell][title][seed])
                    gains.append(np.mean(values) - figures.strongest_forward(cell))
                shown.append(" / ".join(f"{gain:+.1f}" for gain in gains))
            if shown[0]:
                print(f"| {data.name} | {form}, {what} | {shown[0]} | {shown[1]} |")


def main(
    sets: list[Path],
    network: str = "efficientnet-lite0",
    work: Annotated[Path, typer.Option(help="Folder for features.")] = Path(
        "few-labels"
    ),
    draws: int = 3,
    train: str = "train",
    test: str = "val",
    candidates: bool = True,
) -> None:
    """Print a table of each set, and the gains."""
    results = []
    for folder in sets:
        data = read_collection(folder, network, work, train, test)
        figures = measure(data, draws, candidates)
        print_set(data, figures)
        data.kernels.clear()
        results.append((data, figures))
    if candidates:
        print_gains(results)
        print_left_out_sets(results)


if __name__ == "__main__":
    typer.run(main)

"""Stage 6, models: more images than a kernel matrix has room for.

Comes in: a way to read factors of any training images, and their labels. Goes out: a `Model` whose
machines are linear, on vectors that approximate the recipe's kernel (`Vectors`). Time and memory
are linear in the images: factors are read a block at a time, vectors are kept in half precision.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from deepfishing.auto import looked_at
from deepfishing.classify import DEFAULT_COST, CostSearch, choose_costs, platt
from deepfishing.kernel_vectors import Vectors
from deepfishing.linear import train_linear
from deepfishing.machine import memory
from deepfishing.metrics import average_precision
from deepfishing.model.model import Model, Task, on_vectors
from deepfishing.progress import silent
from deepfishing.projections import FIT_IMAGES
from deepfishing.rank_one import Array
from deepfishing.recipes import Arrays, parse_recipe
from deepfishing.svm import KernelSVM

# Images from which vectors take the place of the kernel matrix, docs/projections.md.
LARGE = 20_000
NUMBERS = 8192  # per vector, or as many as a third of the memory has room for
BLOCK = 1024  # images whose factors are in memory together
HELD_OUT = 3  # every third image tells probabilities and costs

Read = Callable[[Array], Arrays]  # factors of the images with these numbers


def train_large(recipe: str, read: Read, task: Task) -> Model:
    """As `train_model`, in time and memory that grow with the number of images, not its square."""
    n = len(task.labels)
    rows = looked_at(task.labels, task.seed)
    decided = task.decide(recipe, read(rows), rows)
    task = decided.task
    parsed = parse_recipe(decided.recipe, task.settings.network.layers)
    columns = parsed.columns

    def factors(rows: Array) -> Arrays:
        found = decided.factors(read(rows))
        return {name: found[name] for name in columns}

    random = np.random.default_rng(task.seed)
    some = factors(np.sort(random.permutation(n)[: 2 * FIT_IMAGES]))
    fitted = parsed.fit(some)
    numbers = min(NUMBERS, memory() // (6 * n))
    project = Vectors.fit(fitted(some)[:FIT_IMAGES], numbers, task.seed)
    width = project(fitted({name: values[:2] for name, values in some.items()})).shape[1]
    vectors: Array = np.empty((n, width), dtype=np.float16)
    tell = task.progress or silent
    for start in range(0, n, BLOCK):
        tell("vectors", start, n)
        rows = np.arange(start, min(start + BLOCK, n))
        vectors[rows] = project(fitted(factors(rows)))
    tell("vectors", n, n)
    return Model(
        recipe=parsed.name,
        settings=task.settings,
        classes=tuple(task.classes),
        support={},
        fitted=on_vectors(fitted, project),
        svm=_machines(vectors, task),
        training={**task.facts(decided.choice), "vectors": width},
    )


def _machines(vectors: Array, task: Task) -> KernelSVM:
    """Linear machines on all vectors; cost and probabilities by those that every third has not."""
    search = CostSearch.of(task.C)
    weight = search.positive_weight if task.class_weight is None else task.class_weight
    held = np.random.default_rng(task.seed).permutation(len(vectors)) % HELD_OUT == 0
    scores, ap = [], []
    for C in search.costs:
        svm = train_linear(vectors[~held], task.labels[~held], C, task.difficult, weight)
        scores.append(svm.decision_function(vectors[held]))
        ap.append([_ap(*column) for column in zip(task.labels[held].T, scores[-1].T, strict=True)])
    chosen = choose_costs(np.array(ap).T, search)
    cost = np.array(search.costs)[chosen]
    final = train_linear(vectors, task.labels, cost, task.difficult, weight)
    task.check(final.trained)
    calibration = []
    for column, (truth, best) in enumerate(zip(task.labels[held].T, chosen, strict=True)):
        kept = truth != 0 if task.difficult == "ignore" else np.full(len(truth), True)
        target = np.where(truth[kept] == 1, 1, -1)
        calibration.append(platt(scores[best][kept, column], target))
    machines = KernelSVM(
        features=np.ascontiguousarray(final.w.T),
        dual=np.eye(final.w.shape[1]),
        bias=final.bias,
        trained=final.trained,
        cost=np.where(final.trained, cost, DEFAULT_COST),
        ap=np.array(ap)[chosen, np.arange(len(chosen))],
    )
    return replace(machines, calibration=np.array(calibration).T)


def _ap(truth: Array, scores: Array) -> float:
    known = truth != 0
    both = len(np.unique(truth[known])) == 2
    return average_precision(truth[known], scores[known], "sklearn") if both else np.nan

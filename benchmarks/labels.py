"""Wrong labels found, beside cleanlab's ranking of the same out-of-fold probabilities.

    python benchmarks/labels.py groceries --out results/groceries
    python benchmarks/labels.py voc2007 --data VOCdevkit --out results/voc2007

Labels are swapped as in `deepfish reproduce --protocol curate`, whose folder --out is, so that
features are there already. One machine per class gives out-of-fold scores; Platt's sigmoid, fitted
on them and the swapped labels, makes the probabilities that cleanlab ranks. The figure is the share
of wrong labels among as many suspects, mean of five draws. cleanlab 2.9.0 is needed here alone:
`pip install --no-deps cleanlab==2.9.0 termcolor tqdm`.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
from cleanlab.multilabel_classification import get_label_quality_scores as several
from cleanlab.rank import get_label_quality_scores as one_each
from scipy.special import expit

from deepfishing.cli.reproduce import load_dataset
from deepfishing.core.accuracy import has_one_class
from deepfishing.core.recipes import parse_recipe
from deepfishing.core.statistics import SEED, mean_interval
from deepfishing.curate.label_errors import VOTE, label_scores, neighbour_votes
from deepfishing.evaluation.experiment import Protocol, prepare
from deepfishing.evaluation.protocols.curate import (
    CLASSIFIER,
    SWAPS,
    share_found,
    swap_labels,
)
from deepfishing.images.dataset import find_record
from deepfishing.learn.svm import platt
from deepfishing.networks.load import load_network
from deepfishing.networks.zoo import DEFAULT


def probabilities(scores: np.ndarray, labels: np.ndarray) -> np.ndarray:
    """Platt's sigmoid of every class, fitted on scores of images that the machine has not seen."""
    found = []
    for score, label in zip(scores.T, labels.T, strict=True):
        used = label != 0
        slope, offset = platt(score[used], label[used])
        found.append(expit(slope * score + offset))
    return np.stack(found, axis=1)


def quality(labels: np.ndarray, p: np.ndarray, method: str) -> np.ndarray:
    """cleanlab's scores as margins (n, C): the lower, the more suspect."""
    if has_one_class(labels):
        share = p / p.sum(axis=1, keepdims=True)
        ranked = one_each(labels.argmax(axis=1), share, method=method)
        return np.where(labels == 1, ranked[:, None], 0.0)
    columns = []
    for label, column in zip(labels.T, p.T, strict=True):
        both = np.stack([1 - column, column], axis=1)
        columns.append(one_each((label == 1).astype(int), both, method=method))
    return labels * np.stack(columns, axis=1)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("dataset")
    parser.add_argument("--data", type=Path)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--features", default=CLASSIFIER)
    asked = parser.parse_args()
    dataset = load_dataset(find_record(asked.dataset), asked.data, asked.out)
    network = load_network(DEFAULT)
    recipe = parse_recipe(asked.features, network.layers)
    prepared = prepare(
        dataset, network, asked.out, [recipe], Protocol(), lambda *_: None
    )
    arrays, _ = prepared.factors(recipe)
    features, truth = recipe.fit(arrays)(arrays), prepared.train_labels()
    shares: dict[str, list[float]] = {}
    for draw in range(SWAPS):
        labels = swap_labels(truth, np.random.default_rng((SEED, draw)))
        alone = label_scores(features, labels, neighbours=False, seed=draw)
        p = probabilities(alone, labels)
        ways = {
            "machine and neighbours": alone + VOTE * neighbour_votes(features, labels),
            "machine alone": alone,
            "cleanlab, self_confidence": quality(labels, p, "self_confidence"),
            "cleanlab, normalized_margin": quality(labels, p, "normalized_margin"),
        }
        for name, scores in ways.items():
            shares.setdefault(name, []).append(share_found(truth, labels, scores))
        if draw == 0 and not has_one_class(labels):
            # its own ranking of images, for the record
            listed = [np.flatnonzero(row == 1).tolist() for row in labels]
            ranked = np.argsort(several(listed, p))
            wrong = (labels != truth).any(axis=1)
            found = 100 * wrong[ranked[: wrong.sum()]].mean()
            print(
                f"cleanlab's multilabel ranking of whole images: {found:.1f} % of them wrong"
            )
    for name, values in shares.items():
        low, high = mean_interval(values) or (np.nan, np.nan)
        print(f"{name:<28} {np.mean(values):5.1f} ({low:.1f}-{high:.1f})", flush=True)


if __name__ == "__main__":
    main()

"""Gradients as plain vectors, for whatever takes an array: a linear classifier, neighbours.

    python examples/vectors.py

Takes about ten seconds. A gradient of this layer has 1280 x 1000 numbers; a vector of 4,096 stands
for it, and dot products of vectors stand for the trace kernel.
"""

import numpy as np
from sklearn.linear_model import RidgeClassifier
from sklearn.metrics import average_precision_score
from sklearn.neighbors import NearestNeighbors

from deepfishing import gram, load_groceries
from deepfishing.estimators import GradientFeatures, Project


def main() -> None:
    data = load_groceries("data/examples", n_train=80, n_test=40)
    train, test = ((split.labels > 0).astype(int) for split in (data.train, data.test))
    network = GradientFeatures(feature="dW8").fit(data.train.paths)
    gradients = network.transform(data.train.paths), network.transform(data.test.paths)

    project = Project(4096).fit(gradients[0])
    vectors = [project.transform(side) for side in gradients]
    error = np.abs(vectors[1] @ vectors[0].T - gram(gradients[1], gradients[0])).mean()
    print(f"{vectors[0].shape[1]} numbers instead of {project.n_features_in_:,}")
    print(
        f"mean error of the trace kernel {error:.3f}, where an image with itself has 1"
    )

    scores = RidgeClassifier().fit(vectors[0], train).decision_function(vectors[1])
    ap = average_precision_score(test, scores, average="macro")
    print(f"ridge classifier on vectors: mean average precision {100 * ap:.1f}")

    nearest = (
        NearestNeighbors(n_neighbors=3).fit(vectors[0]).kneighbors(vectors[1][:1])[1][0]
    )
    print(
        f"most like {data.test.paths[0].name}:",
        *(data.train.paths[i].name for i in nearest),
    )


if __name__ == "__main__":
    main()

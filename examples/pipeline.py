"""Images in, labels out, in one scikit-learn pipeline.

    python examples/pipeline.py

Takes about ten seconds and writes 120 photographs of fruit to `data/examples`. Each has one of
14 labels, so a row of the indicator matrix has a single 1; with `labels="both"` it would have two.
"""

from sklearn.metrics import average_precision_score
from sklearn.pipeline import make_pipeline

from deepfishing import load_groceries
from deepfishing.estimators import GradientFeatures, Power, TraceKernelSVC


def main() -> None:
    data = load_groceries("data/examples", n_train=80, n_test=40)
    train, test = ((split.labels > 0).astype(int) for split in (data.train, data.test))

    for feature in ("x7", "dW8"):
        pipeline = make_pipeline(
            GradientFeatures(feature=feature), Power(0.5), TraceKernelSVC()
        )
        pipeline.fit(data.train.paths, train)
        scores = pipeline.decision_function(data.test.paths)
        ap = average_precision_score(test, scores, average="macro")
        print(f"{feature:4} mean average precision {100 * ap:.1f}")

    for path, row in zip(data.test.paths[:3], scores, strict=False):
        print(f"{path.name}: most likely {data.classes[row.argmax()]}")


if __name__ == "__main__":
    main()

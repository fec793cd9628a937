"""Choose the power, the whitening and the cost by cross-validation.

    python examples/grid_search.py

Takes about ten seconds. The network runs once, before the search: gradients are sliced like an
array, so the folds are made of what was extracted.
"""

from sklearn.model_selection import GridSearchCV, KFold
from sklearn.pipeline import Pipeline

from deepfishing import load_groceries
from deepfishing.estimators import GradientFeatures, Power, TraceKernelSVC, Whiten


def main() -> None:
    data = load_groceries("data/examples", n_train=80, n_test=40)
    train, test = ((split.labels > 0).astype(int) for split in (data.train, data.test))
    network = GradientFeatures(feature="dW8").fit(data.train.paths)
    gradients = network.transform(data.train.paths)

    search = GridSearchCV(
        Pipeline(
            [("power", Power()), ("whiten", Whiten(0.5)), ("svc", TraceKernelSVC())]
        ),
        {
            "power__exponent": [0.5, 1.0],
            "whiten": ["passthrough", Whiten(shrinkage=0.5)],
            "svc__C": [0.1, 1.0, 10.0],
        },
        scoring="average_precision",  # over the labels, its mean is the mAP
        cv=KFold(2, shuffle=True, random_state=0),
    )
    search.fit(gradients, train)
    print("chosen:", search.best_params_)
    print(f"mean average precision in cross-validation {100 * search.best_score_:.1f}")
    found = search.score(network.transform(data.test.paths), test)
    print(f"mean average precision on the test pictures {100 * found:.1f}")


if __name__ == "__main__":
    main()

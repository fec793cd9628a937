import numpy as np
import pytest
from sklearn.svm import SVC

from deepfishing.classify import train_svm
from deepfishing.errors import FeatureError, OptionError
from deepfishing.kernels import gram


def labelled(rng, random_rank_one, n=60, classes=3):
    features = random_rank_one(n).normalize()
    labels = np.where(rng.random((n, classes)) < 0.3, 1, -1).astype(np.int8)
    return features, labels


def test_scores_are_those_of_a_plain_loop_over_classes(rng, random_rank_one):
    features, labels = labelled(rng, random_rank_one)
    test = random_rank_one(17).normalize()
    scores = train_svm(features, labels, C=0.7).decision_function(test)
    for c in range(labels.shape[1]):
        svm = SVC(C=0.7, kernel="precomputed").fit(gram(features), labels[:, c])
        np.testing.assert_allclose(
            scores[:, c], svm.decision_function(gram(test, features)), rtol=1e-8, atol=1e-10
        )


def test_scores_do_not_depend_on_the_block_of_test_images(rng, random_rank_one, monkeypatch):
    features, labels = labelled(rng, random_rank_one)
    svm = train_svm(features, labels)
    whole = svm.decision_function(features)
    monkeypatch.setattr("deepfishing.classify.SCORE_BLOCK", 7)
    np.testing.assert_allclose(svm.decision_function(features), whole, rtol=1e-10)


def test_difficult_examples_are_negatives_or_left_out(rng, random_rank_one):
    features, labels = labelled(rng, random_rank_one)
    difficult = labels.copy()
    difficult[:10] = 0
    negative = labels.copy()
    negative[:10] = -1
    as_negative = train_svm(features, difficult).decision_function(features)
    np.testing.assert_allclose(
        as_negative, train_svm(features, negative).decision_function(features), rtol=1e-8
    )
    ignored = train_svm(features, difficult, difficult="ignore").decision_function(features)
    left_out = train_svm(features[10:], labels[10:]).decision_function(features)
    np.testing.assert_allclose(ignored, left_out, rtol=1e-8, atol=1e-12)
    assert abs(ignored - as_negative).max() > 1e-3


def test_a_class_without_a_positive_or_negative_example_has_no_machine(rng, random_rank_one):
    features, labels = labelled(rng, random_rank_one)
    labels[:, 0], labels[:, 2] = -1, 1
    svm = train_svm(features, labels)
    assert svm.trained.tolist() == [False, True, False]
    assert not svm.decision_function(features)[:, [0, 2]].any()


@pytest.mark.parametrize("C", [0, -1, float("nan"), float("inf")])
def test_a_cost_that_is_not_positive_is_refused(rng, random_rank_one, C):
    with pytest.raises(OptionError, match="C must be"):
        train_svm(*labelled(rng, random_rank_one), C=C)


def test_labels_of_another_length_and_features_with_nan_are_refused(rng, random_rank_one):
    features, labels = labelled(rng, random_rank_one)
    with pytest.raises(FeatureError, match="labels must be"):
        train_svm(features, labels[:-1])
    features.x[3, 2] = np.nan
    with pytest.raises(FeatureError, match="finite"):
        train_svm(features, labels)
    with pytest.raises(OptionError, match="difficult must be"):
        train_svm(features, labels, difficult="maybe")

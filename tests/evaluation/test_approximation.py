from functools import partial

import numpy as np
import pytest
from sklearn.svm import SVC

import deepfishing.evaluation.protocols.approximation as module
from deepfishing.core.projections import fit_projection
from deepfishing.core.rank_one import l2_normalize
from deepfishing.evaluation.protocols.approximation import (
    Gradients,
    kernel_error,
    too_large,
    with_kernel,
    with_projection,
)
from deepfishing.learn.linear import train_linear


@pytest.fixture
def data(random_rank_one, rng):
    g = random_rank_one(90, d=6, D=4).normalize()
    labels = np.where(g.x[:, :2] + 0.2 * rng.normal(size=(90, 2)) > 0, 1, -1)
    return Gradients(g[:60], labels[:60], g[60:])


def dense(g):
    return g.dense().reshape(len(g), -1)


def test_the_error_is_that_of_dense_gradients_against_vectors(data):
    for kind in ("tensor-sketch", "principal"):
        bias, rms = kernel_error(data, kind, 8)
        vectors = fit_projection(kind, data.train, 8)(data.test)
        exact, found = dense(data.test) @ dense(data.test).T, vectors @ vectors.T
        off = [found[i, j] - exact[i, j] for i in range(30) for j in range(i)]
        assert bias == pytest.approx(np.mean(off), abs=1e-6)
        assert rms == pytest.approx(np.sqrt(np.mean(np.square(off))), abs=1e-6)
    assert kernel_error(data, "principal", 24)[1] < 1e-6  # all of the gradient


def test_only_the_first_test_images_are_paired(data, monkeypatch):
    monkeypatch.setattr(module, "PAIRED", 5)
    few = Gradients(data.train, data.labels, data.test[:5])
    assert kernel_error(data, "tensor-sketch", 8) == kernel_error(
        few, "tensor-sketch", 8
    )
    single = Gradients(data.train, data.labels, data.test[:1])
    assert kernel_error(single, "tensor-sketch", 8) == (0.0, 0.0)


def test_machines_on_the_kernel_and_on_vectors_are_those_of_scikit_learn(
    data, monkeypatch
):
    # linear classifiers stop within a tenth of their optimum otherwise
    until_the_end = partial(train_linear, tolerance=1e-4, rounds=5000)
    monkeypatch.setattr(module, "train_linear", until_the_end)
    exact = with_kernel(data)
    projected = with_projection(data, "principal", 8)
    project = fit_projection("principal", data.train, 8)
    train, test = (l2_normalize(project(side)) for side in (data.train, data.test))
    for c in range(2):
        svm = SVC(kernel="linear").fit(dense(data.train), data.labels[:, c])
        np.testing.assert_allclose(
            exact.scores[:, c], svm.decision_function(dense(data.test)), atol=0.01
        )
        linear = SVC(kernel="linear").fit(train, data.labels[:, c])
        expected = linear.decision_function(test)
        np.testing.assert_allclose(projected.scores[:, c], expected, atol=0.02)
    assert exact.projecting == 0 < projected.projecting
    assert exact.seconds > 0
    assert projected.seconds > 0


def test_cost_and_difficult_examples_reach_the_machines(data):
    labels = data.labels.copy()
    labels[:30] = 0
    for run in (with_kernel, lambda d: with_projection(d, "principal", 24)):
        ignored = run(Gradients(data.train, labels, data.test, 10.0, "ignore"))
        half = run(Gradients(data.train[30:], data.labels[30:], data.test, 10.0))
        np.testing.assert_allclose(ignored.scores, half.scores, atol=0.35)
        plain = run(Gradients(data.train[30:], data.labels[30:], data.test, 0.01))
        assert np.abs(plain.scores - half.scores).max() > 0.5


def test_resampled_images_are_near_the_ones_they_were_drawn_of(data):
    more = data.resample(500)
    assert len(more.train) == len(more.labels) == 500
    cosine = dense(more.train) @ dense(data.train).T
    nearest = cosine.argmax(axis=1)
    assert (data.labels[nearest] == more.labels).all(axis=1).mean() > 0.9
    assert 0.7 < np.median(cosine.max(axis=1)) < 0.999  # changed, but not much
    again = data.resample(500)
    np.testing.assert_array_equal(again.train.x, more.train.x)
    np.testing.assert_allclose(np.linalg.norm(dense(more.train), axis=1), 1, rtol=1e-5)


def test_a_kernel_matrix_that_does_not_fit_says_what_it_needs(monkeypatch):
    sizes = {"SC_PAGE_SIZE": 1000, "SC_PHYS_PAGES": 24_000}  # 24 MB
    monkeypatch.setattr(module.os, "sysconf", sizes.__getitem__)
    assert too_large(1000) == ""
    assert "1,001 images needs 0.0 GB, more than a third of the 0.0 GB" in too_large(
        1001
    )

"""Pooling and LRN against Caffe's definitions, written out as loops."""

import math

import numpy as np
import pytest
import torch

from deepfishing.networks.caffe.importer import load_caffe
from deepfishing.networks.caffe.modules import LocalResponseNorm, Pool


def slow_pooling(image, average, kernel, stride, pad, ceil=True):
    """One channel; as in Caffe's pooling layer."""
    counts = []
    for length, k, s, p in zip(image.shape, kernel, stride, pad, strict=True):
        count = (math.ceil if ceil else math.floor)((length + 2 * p - k) / s) + 1
        if any(pad) and (count - 1) * s >= length + p:
            count -= 1
        counts.append(count)
    out = np.zeros(counts)
    for row in range(counts[0]):
        for column in range(counts[1]):
            spans, size = [], 1
            for i, place in enumerate((row, column)):
                start = place * stride[i] - pad[i]
                end = min(start + kernel[i], image.shape[i] + pad[i])
                size *= end - start
                spans.append(slice(max(start, 0), min(end, image.shape[i])))
            window = image[spans[0], spans[1]]
            out[row, column] = window.sum() / size if average else window.max()
    return out


@pytest.mark.parametrize("average", [False, True], ids=["max", "average"])
@pytest.mark.parametrize("ceil", [True, False], ids=["ceil", "floor"])
def test_pooling_is_caffes_for_all_windows(average, ceil, rng):
    tried = 0
    while tried < 60:
        size, kernel, stride, pad = (
            tuple(int(v) for v in rng.integers(low, high, 2))
            for low, high in ((3, 12), (1, 6), (1, 5), (0, 4))
        )
        fits = all(k <= n + 2 * p for n, k, p in zip(size, kernel, pad, strict=True))
        if (
            not fits
            or pad[0] >= kernel[0]
            or pad[1] >= kernel[1]
            or max(stride) > min(kernel)
        ):
            continue
        tried += 1
        image = rng.normal(size=size)
        pool = Pool(average, kernel, stride, pad, ceil)
        expected = slow_pooling(image, average, kernel, stride, pad, ceil)
        found = pool(torch.from_numpy(image)[None, None])[0, 0].numpy()
        assert pool.output_size(size) == expected.shape
        np.testing.assert_allclose(
            found, expected, atol=1e-12, err_msg=f"{size} {pool}"
        )


def test_floor_pooling_is_read_from_the_file(caffe, w, write, rng):
    params = {
        "pool": caffe.AVE,
        "kernel_size": 2,
        "stride": 2,
        "round_mode": caffe.FLOOR,
    }
    fc = caffe.L(
        "fc",
        "InnerProduct",
        ["p"],
        blobs=[np.eye(12), w(12)],
        params={"num_output": 12},
    )
    prototxt, caffemodel = write(
        [caffe.L("p", "Pooling", ["data"], params=params), fc], size=5
    )
    images = rng.normal(size=(1, 3, 5, 5))
    expected = [
        slow_pooling(image, True, (2, 2), (2, 2), (0, 0), ceil=False)
        for image in images[0]
    ]
    for text in (prototxt, None):
        network = load_caffe(caffemodel, text, dtype="float64")
        found = network.module(torch.from_numpy(images)).numpy() - fc.blobs[1]
        np.testing.assert_allclose(found.reshape(3, 2, 2), expected, atol=1e-6)


@pytest.mark.parametrize(("size", "k"), [(3, 1.0), (5, 2.0), (9, 0.5)])
def test_lrn_across_channels_is_caffes(size, k, rng):
    a = rng.normal(size=(2, 6, 4, 5)) * 3
    expected = np.zeros_like(a)
    for c in range(6):
        near = a[:, max(c - size // 2, 0) : c + size // 2 + 1]
        expected[:, c] = a[:, c] / (k + 0.3 / size * (near**2).sum(axis=1)) ** 0.6
    lrn = LocalResponseNorm(size, alpha=0.3, beta=0.6, k=k, within=False)
    np.testing.assert_allclose(lrn(torch.from_numpy(a)).numpy(), expected, atol=1e-12)


@pytest.mark.parametrize("size", [1, 3, 7])
def test_lrn_within_a_channel_is_caffes(size, rng):
    a = rng.normal(size=(2, 3, 5, 6)) * 3
    expected = np.zeros_like(a)
    for row in range(5):
        for column in range(6):
            rows = slice(max(row - size // 2, 0), row + size // 2 + 1)
            columns = slice(max(column - size // 2, 0), column + size // 2 + 1)
            total = (a[:, :, rows, columns] ** 2).sum(axis=(2, 3))
            # the size of the window counts its padding; k of the file does not count
            expected[:, :, row, column] = (
                a[:, :, row, column] / (1 + 0.3 / size**2 * total) ** 0.6
            )
    lrn = LocalResponseNorm(size, alpha=0.3, beta=0.6, k=2.0, within=True)
    np.testing.assert_allclose(lrn(torch.from_numpy(a)).numpy(), expected, atol=1e-12)


def test_lrn_survives_activations_whose_squares_float16_cannot_hold():
    a = torch.full((1, 4, 2, 2), 1000.0, dtype=torch.float16)
    lrn = LocalResponseNorm(5, alpha=1e-4, beta=0.75, k=1.0, within=False)
    torch.testing.assert_close(lrn(a), lrn(a.float()).half())
    assert lrn(a).dtype == torch.float16


def test_transposed_inner_product_is_read_from_the_file(caffe, w, write, rng):
    weight, bias = w(3 * 4, 5), w(5)
    params = {"num_output": 5, "transpose": True}
    fc = caffe.L("fc", "InnerProduct", ["data"], blobs=[weight, bias], params=params)
    prototxt, caffemodel = write([fc], size=2)
    images = rng.normal(size=(2, 3, 2, 2)).astype(np.float32)
    expected = images.reshape(2, -1) @ weight + bias
    for text in (prototxt, None):
        network = load_caffe(caffemodel, text)
        found = network.module(torch.from_numpy(images)).numpy()
        np.testing.assert_allclose(found, expected, atol=1e-5)


def test_batch_norm_that_was_never_trained_has_mean_and_variance_zero(caffe, w, write):
    statistics = [w(3), w(3), np.zeros(1)]
    norm = caffe.L("bn", "BatchNorm", ["data"], blobs=statistics, params={"eps": 0.25})
    fc = caffe.L("fc", "InnerProduct", ["bn"], blobs=[np.eye(12)])
    fc.params = {"num_output": 12, "bias_term": False}
    network = load_caffe(write([norm, fc], size=2)[1])
    torch.testing.assert_close(
        network.module(torch.ones(1, 3, 2, 2)), torch.full((1, 12), 2.0)
    )

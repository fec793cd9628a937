"""Every layer type, both generations, against OpenCV's dnn reading the same files.

Where OpenCV is not Caffe (it passes over LRN's `k`, InnerProduct's `transpose` and Pooling's
`round_mode`), test_modules.py compares with Caffe's definition instead.
"""

import numpy as np
import pytest

from deepfishing.networks.caffe.importer import load_caffe

SIZE = 13


# name -> layers on the blob c (6 channels, 13 x 13); w(*shape) makes weights
CASES = {
    "convolution": lambda c, w: [
        c.L("a", "Convolution", ["c"], blobs=[w(4, 6, 3, 3), w(4)],
            params={"num_output": 4, "kernel_size": 3})],
    "convolution_stride_pad_group": lambda c, w: [
        c.L("a", "Convolution", ["c"], blobs=[w(4, 3, 5, 5), w(4)],
            params={"num_output": 4, "kernel_size": 5, "stride": 2, "pad": 2, "group": 2})],
    "convolution_dilation": lambda c, w: [
        c.L("a", "Convolution", ["c"], blobs=[w(4, 6, 3, 3), w(4)],
            params={"num_output": 4, "kernel_size": 3, "dilation": 2, "pad": 1})],
    "convolution_oblong": lambda c, w: [
        c.L("a", "Convolution", ["c"], blobs=[w(4, 6, 2, 5), w(4)],
            params={"num_output": 4, "kernel_h": 2, "kernel_w": 5, "stride_h": 3, "stride_w": 1,
                    "pad_h": 0, "pad_w": 2})],
    "convolution_without_bias": lambda c, w: [
        c.L("a", "Convolution", ["c"], blobs=[w(4, 6, 1, 1)],
            params={"num_output": 4, "kernel_size": 1, "bias_term": False})],
    "max_pooling_hangs_over": lambda c, w: [
        c.L("a", "Pooling", ["c"], params={"pool": c.MAX, "kernel_size": 2, "stride": 2})],
    "max_pooling_pad": lambda c, w: [
        c.L("a", "Pooling", ["c"],
            params={"pool": c.MAX, "kernel_size": 3, "stride": 2, "pad": 1})],
    "average_pooling_hangs_over": lambda c, w: [
        c.L("a", "Pooling", ["c"], params={"pool": c.AVE, "kernel_size": 2, "stride": 2})],
    "average_pooling_pad": lambda c, w: [
        c.L("a", "Pooling", ["c"],
            params={"pool": c.AVE, "kernel_size": 3, "stride": 2, "pad": 1})],
    "average_pooling_oblong": lambda c, w: [
        c.L("a", "Pooling", ["c"], params={
            "pool": c.AVE, "kernel_h": 3, "kernel_w": 2, "stride_h": 2, "stride_w": 2,
            "pad_h": 1, "pad_w": 0})],
    "average_pooling_cut_at_the_padding": lambda c, w: [
        c.L("a", "Pooling", ["c"],
            params={"pool": c.AVE, "kernel_size": 4, "stride": 3, "pad": 1})],
    "average_pooling_pad_beyond_half_the_kernel": lambda c, w: [
        c.L("a", "Pooling", ["c"],
            params={"pool": c.AVE, "kernel_size": 3, "stride": 2, "pad": 2})],
    "global_average": lambda c, w: [
        c.L("a", "Pooling", ["c"], params={"pool": c.AVE, "global_pooling": True})],
    "global_max": lambda c, w: [
        c.L("a", "Pooling", ["c"], params={"pool": c.MAX, "global_pooling": True})],
    "lrn_across": lambda c, w: [
        c.L("a", "LRN", ["c"], params={"local_size": 5, "alpha": 0.5, "beta": 0.75})],
    "lrn_within": lambda c, w: [
        c.L("a", "LRN", ["c"],
            params={"local_size": 3, "alpha": 0.5, "beta": 0.75, "norm_region": c.WITHIN_CHANNEL})],
    "relu_in_place": lambda c, w: [c.L("a", "ReLU", ["c"], ["c"])],
    "relu_leaky": lambda c, w: [c.L("a", "ReLU", ["c"], params={"negative_slope": 0.1})],
    "sigmoid": lambda c, w: [c.L("a", "Sigmoid", ["c"])],
    "tanh": lambda c, w: [c.L("a", "TanH", ["c"])],
    "dropout": lambda c, w: [c.L("a", "Dropout", ["c"], ["c"], params={"dropout_ratio": 0.7})],
    "inner_product": lambda c, w: [
        c.L("a", "InnerProduct", ["c"], blobs=[w(7, 6 * 169), w(7)], params={"num_output": 7})],
    "inner_product_without_bias": lambda c, w: [
        c.L("a", "InnerProduct", ["c"], blobs=[w(7, 6 * 169)],
            params={"num_output": 7, "bias_term": False})],
    "eltwise_sum": lambda c, w: [
        c.L("r", "ReLU", ["c"]), c.L("a", "Eltwise", ["c", "r"])],
    "eltwise_coefficients": lambda c, w: [
        c.L("r", "ReLU", ["c"]),
        c.L("a", "Eltwise", ["c", "r"], params={"operation": c.SUM, "coeff": [0.5, -2.0]})],
    "eltwise_product": lambda c, w: [
        c.L("r", "TanH", ["c"]),
        c.L("a", "Eltwise", ["c", "r", "c"], params={"operation": c.PROD})],
    "eltwise_max": lambda c, w: [
        c.L("r", "TanH", ["c"]),
        c.L("a", "Eltwise", ["c", "r"], params={"operation": c.ELTWISE_MAX})],
    "concat": lambda c, w: [
        c.L("r", "TanH", ["c"]), c.L("a", "Concat", ["c", "r", "c"])],
    "concat_rows": lambda c, w: [
        c.L("r", "TanH", ["c"]), c.L("a", "Concat", ["c", "r"], params={"axis": 2})],
    "concat_dim": lambda c, w: [
        c.L("r", "TanH", ["c"]), c.L("a", "Concat", ["c", "r"], params={"concat_dim": 1})],
    "flatten": lambda c, w: [c.L("a", "Flatten", ["c"])],
    "softmax_inside": lambda c, w: [c.L("a", "Softmax", ["c"])],
    "split": lambda c, w: [
        c.L("s", "Split", ["c"], ["c1", "c2"]), c.L("r", "TanH", ["c1"]),
        c.L("a", "Eltwise", ["r", "c2"])],
}  # fmt: skip
NEW_ONLY = {
    "prelu": lambda c, w: [c.L("a", "PReLU", ["c"], blobs=[w(6)])],
    "prelu_shared": lambda c, w: [
        c.L("a", "PReLU", ["c"], blobs=[w(1)], params={"channel_shared": True})],
    "elu": lambda c, w: [c.L("a", "ELU", ["c"], params={"alpha": 0.5})],
    "batch_norm_and_scale": lambda c, w: [
        c.L("n", "BatchNorm", ["c"], blobs=[w(6), abs(w(6)) + 1, np.array([2.5])],
            params={"use_global_stats": True, "eps": 0.01}),
        c.L("a", "Scale", ["n"], blobs=[w(6), w(6)], params={"bias_term": True})],
    "batch_norm_in_place": lambda c, w: [
        c.L("a", "BatchNorm", ["c"], ["c"], blobs=[w(6), abs(w(6)) + 1, np.array([0.9])])],
    "scale_without_bias": lambda c, w: [c.L("a", "Scale", ["c"], blobs=[w(6)])],
    "reshape": lambda c, w: [
        c.L("a", "Reshape", ["c"], params={"shape": {"dim": [0, 3, -1, 13]}})],
    "flatten_rows": lambda c, w: [
        c.L("a", "Flatten", ["c"], params={"axis": 2, "end_axis": -1})],
}  # fmt: skip


def check(caffe, w, write, rng, body, old):
    images = rng.normal(size=(2, 3, SIZE, SIZE)).astype(np.float32)
    stem = caffe.L("c", "Convolution", ["data"], blobs=[w(6, 3, 3, 3), w(6)],
                   params={"num_output": 6, "kernel_size": 3, "pad": 1})  # fmt: skip
    layers = [stem, *body]
    last = body[-1].made()[0]
    width = caffe.opencv_outputs(*write(layers, SIZE, old), images, ["a"])["a"][0].size
    fc = caffe.L("fc", "InnerProduct", [last], params={"num_output": 5})
    fc.blobs = [w(5, width), w(5)]
    layers += [fc, caffe.L("prob", "Softmax", ["fc"])]
    prototxt, caffemodel = write(layers, SIZE, old)
    names = [layer.name for layer in layers if layer.type != "Split"]
    expected = caffe.opencv_outputs(prototxt, caffemodel, images, names)
    for text in (prototxt, None):  # the caffemodel alone describes the network too
        network = load_caffe(caffemodel, text)
        found, logits = caffe.our_outputs(network, images)
        assert list(found) == names[:-1]
        for name, value in found.items():
            np.testing.assert_allclose(
                value.reshape(expected[name].shape),
                expected[name],
                atol=1e-4,
                err_msg=name,
            )
        np.testing.assert_allclose(logits, expected["fc"].reshape(2, 5), atol=1e-4)
        assert network.layers[8] == "fc"


@pytest.mark.parametrize("case", CASES | NEW_ONLY)
def test_layer_of_the_second_generation_equals_opencv(case, caffe, w, write, rng):
    check(caffe, w, write, rng, (CASES | NEW_ONLY)[case](caffe, w), old=False)


@pytest.mark.parametrize("case", CASES)
def test_layer_of_the_first_generation_equals_opencv(case, caffe, w, write, rng):
    check(caffe, w, write, rng, CASES[case](caffe, w), old=True)

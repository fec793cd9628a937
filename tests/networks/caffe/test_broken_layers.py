"""A layer whose parameters, inputs or weights do not fit: one error that names it."""

import re

import pytest

from deepfishing.errors import NetworkError, WeightsError
from deepfishing.networks.caffe.importer import load_caffe


def broken(c, w):
    """What is wrong -> layers on images of 2 x 2 pixels, what the error says."""

    def conv(**params):
        blobs = [w(4, 3, 3, 3), w(4)]
        given = {"num_output": 4, "kernel_size": 3} | params
        return [c.L("conv1", "Convolution", ["data"], blobs=blobs, params=given)]

    def pool(**params):
        return [c.L("pool1", "Pooling", ["data"], params={"pool": c.MAX} | params)]

    def layer(kind, blobs=(), **params):
        return [c.L("a", kind, ["data"], blobs=list(blobs), params=params)]

    named = "layer 'conv1' (Convolution) "
    weights = "net.caffemodel: layer 'conv1' (Convolution) must have weights of "
    two = ["data", "data"]
    return {
        "unsupported": (
            layer("MVN"),
            "layer 'a' (MVN) is not supported; supported are BatchNorm, C",
        ),
        "unknown type": (layer("Hologram"), "layer 'a' (Hologram) is not supported"),
        "unknown parameter": (
            conv(unheard_of=1),
            named + "has parameters that Caffe does ",
        ),
        "width": (conv(num_output=5), weights + "5x3x3x3, 5, got 4x3x3x3, 4"),
        "gigantic": (
            conv(num_output=10**9),
            weights + "1000000000x3x3x3, 1000000000, got",
        ),
        "kernel": (conv(kernel_size=4), weights + "4x3x4x4, 4, got 4x3x3x3, 4"),
        "no bias": (conv(bias_term=False), weights + "4x3x3x3, got 4x3x3x3, 4"),
        "groups": (conv(group=2), named + "must have channels in multiples of its 2"),
        "no groups": (conv(group=0), named + "must have group of at least 1, got 0"),
        "stride": (
            conv(stride=0),
            named + "must have 1 or 2 values of stride, 1 to 10000",
        ),
        "minus": (conv(pad=-1), named + "must have 1 or 2 values of pad, 0 to 10000"),
        "pad": (conv(pad=10**8), named + "must have 1 or 2 values of pad, 0 to 10000"),
        "large": (conv(pad=9000), named + "makes an output of 4x18000x18000 of 3x2x2"),
        "small": (conv(), named + "makes an output of 4x0x0 of 3x2x2"),
        "both": (
            conv(kernel_h=3),
            named + "must have kernel_size or kernel_h and kernel_w",
        ),
        "three": (conv(stride=[1, 1, 1]), named + "must have 1 or 2 values of stride"),
        "stochastic": (pool(pool=c.Enum("STOCHASTIC", 2), kernel_size=2), "MAX or AVE"),
        "no kernel": (pool(), "must have 1 or 2 values of kernel_size"),
        "wide pad": (
            pool(kernel_size=2, pad=2),
            "must have pad below its kernel (2, 2)",
        ),
        "wide window": (pool(kernel_size=9), "makes an output of 3x-6x-6"),
        "gap": (pool(kernel_size=1, stride=5), "has a window outside its input"),
        "memory": (pool(kernel_size=9999, pad=9998, stride=9999), "must not pad 3x2x2"),
        "global": (pool(global_pooling=True, pad=1), "must have pad 0 and stride 1"),
        "even": (layer("LRN", local_size=4), "must have an odd local_size"),
        "batch": (
            layer("BatchNorm", [w(3), w(3), w(1)], use_global_stats=False),
            "normalises by the batch",
        ),
        "blobs": (
            layer("BatchNorm", [w(3), w(3)]),
            "weights of 3, 3, 1, got 3, 3; give",
        ),
        "axis": (layer("Scale", [w(3)], axis=2), "must have axis 1 and num_axes 1"),
        "slopes": (layer("PReLU", [w(4)]), "must have weights of 3, got 4"),
        "coeff": (layer("Eltwise", coeff=[1.0, 2.0]), "must have one coeff per input"),
        "nan": (layer("Eltwise", coeff=[float("nan")]), "must have finite coeff"),
        "nan slope": (
            layer("ReLU", negative_slope=float("inf")),
            "must be a finite number",
        ),
        "batch axis": (
            layer("Concat", axis=0),
            "must have axis between 1 and 3, got 0",
        ),
        "far axis": (layer("Flatten", axis=7), "must have axis between 1 and 3, got 7"),
        "order": (
            layer("Flatten", axis=3, end_axis=2),
            "must have axis up to end_axis",
        ),
        "reshape": (
            layer("Reshape", shape={"dim": [0, 5, -1]}),
            "must keep 12 values of ",
        ),
        "batch dim": (layer("Reshape", shape={"dim": [1, -1]}), "must keep the batch"),
        "inputs": (
            [c.L("a", "TanH", two)],
            "layer 'a' (TanH) must have one input, got 2",
        ),
        "shapes": (
            [*pool(kernel_size=2), c.L("a", "Eltwise", ["data", "pool1"])],
            "must have inputs of one shape, got 3x2x2, 3x1x1",
        ),
        "concat": (
            [*pool(kernel_size=2), c.L("a", "Concat", ["data", "pool1"])],
            "must have inputs that differ in axis 1 only",
        ),
        "vector": (
            [c.L("f", "Flatten", ["data"]), c.L("a", "LRN", ["f"])],
            "must take a map of 3 axes, got 12",
        ),
        "twice": (
            [c.L("a", "TanH", ["data"]), c.L("a", "TanH", ["a"], ["b"])],
            "must have a unique name",
        ),
        "same path": (
            [c.L("a.b", "TanH", ["data"]), c.L("a_b", "TanH", ["a.b"])],
            "must have a unique name",
        ),
        "no name": ([c.L("", "TanH", ["data"], ["b"])], "must have a name"),
    }


def test_what_does_not_fit_is_one_error_that_names_the_layer(caffe, w, write):
    for case, (layers, message) in broken(caffe, w).items():
        fc = caffe.L(
            "fc", "InnerProduct", [layers[-1].made()[0]], params={"num_output": 5}
        )
        prototxt, caffemodel = write([*layers, fc], size=2)
        for text in (prototxt, None):
            error = WeightsError if "weights of" in message else NetworkError
            with pytest.raises(error, match=re.escape(message)) as caught:
                load_caffe(caffemodel, text)
            place = "net.prototxt, line " if text else "net.caffemodel, byte "
            assert error is WeightsError or place in str(caught.value), case
            assert "\n" not in str(caught.value), case

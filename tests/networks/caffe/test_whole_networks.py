"""Whole networks of the Model Zoo's families, made small, against OpenCV and against our own."""

import numpy as np
import pytest
import torch

from deepfishing.extraction.extract import extract
from deepfishing.networks.caffe.importer import load_caffe
from deepfishing.networks.load import load_network, random_network
from deepfishing.networks.objectives import cross_entropy


def conv(c, w, name, bottom, channels, outputs, kernel=3, bias=True, group=1, **params):
    blobs = [w(outputs, channels // group, kernel, kernel)] + [w(outputs)] * bias
    params = {"num_output": outputs, "kernel_size": kernel, "group": group} | params
    return c.L(
        name, "Convolution", [bottom], blobs=blobs, params=params | {"bias_term": bias}
    )


def fc(c, w, name, bottom, inputs, outputs):
    params = {"num_output": outputs}
    return c.L(
        name,
        "InnerProduct",
        [bottom],
        blobs=[w(outputs, inputs), w(outputs)],
        params=params,
    )


def relu(c, name, blob):
    return c.L(name, "ReLU", [blob], [blob])


def pool(c, name, bottom, method, **params):
    return c.L(name, "Pooling", [bottom], params={"pool": method, **params})


def head(c, w, bottom, inputs):
    """The two hidden fully connected layers and the classifier of AlexNet and VGG."""
    return [
        fc(c, w, "fc6", bottom, inputs, 12),
        relu(c, "relu6", "fc6"),
        c.L("drop6", "Dropout", ["fc6"], ["fc6"], params={"dropout_ratio": 0.5}),
        fc(c, w, "fc7", "fc6", 12, 9),
        relu(c, "relu7", "fc7"),
        c.L("drop7", "Dropout", ["fc7"], ["fc7"], params={"dropout_ratio": 0.5}),
        fc(c, w, "fc8", "fc7", 9, 5),
        c.L("prob", "Softmax", ["fc8"]),
    ]


def alexnet(c, w):
    lrn = {"local_size": 5, "alpha": 0.01, "beta": 0.75}
    overlapping = {"kernel_size": 3, "stride": 2}
    return [
        conv(c, w, "conv1", "data", 3, 8, kernel=5, stride=2),  # 33 -> 15
        relu(c, "relu1", "conv1"),
        c.L("norm1", "LRN", ["conv1"], params=lrn),
        pool(c, "pool1", "norm1", c.MAX, **overlapping),  # -> 7
        conv(c, w, "conv2", "pool1", 8, 8, group=2, pad=1),
        relu(c, "relu2", "conv2"),
        c.L("norm2", "LRN", ["conv2"], params=lrn),
        pool(c, "pool2", "norm2", c.MAX, **overlapping),  # -> 3
        conv(c, w, "conv3", "pool2", 8, 6, pad=1),
        relu(c, "relu3", "conv3"),
        pool(
            c, "pool5", "conv3", c.MAX, kernel_size=2, stride=2
        ),  # -> 2, the last cut off
        *head(c, w, "pool5", 6 * 4),
    ]


def vgg(c, w):
    layers, bottom, channels = [], "data", 3
    for stage, outputs in ((1, 4), (2, 8)):
        for place in (1, 2):
            name = f"conv{stage}_{place}"
            layers += [conv(c, w, name, bottom, channels, outputs, pad=1)]
            layers += [relu(c, f"relu{stage}_{place}", name)]
            bottom, channels = name, outputs
        layers += [pool(c, f"pool{stage}", bottom, c.MAX, kernel_size=2, stride=2)]
        bottom = f"pool{stage}"
    return layers + head(c, w, bottom, 8 * 9 * 9)  # 33 -> 17 -> 9


def nin(c, w):
    return [
        conv(c, w, "conv1", "data", 3, 6, kernel=5, stride=2),
        relu(c, "relu0", "conv1"),
        conv(c, w, "cccp1", "conv1", 6, 5, kernel=1),
        relu(c, "relu1", "cccp1"),
        pool(c, "pool0", "cccp1", c.MAX, kernel_size=3, stride=2),
        conv(c, w, "cccp8-1024", "pool0", 5, 7, kernel=1),
        relu(c, "relu12", "cccp8-1024"),
        pool(c, "pool4", "cccp8-1024", c.AVE, kernel_size=7, stride=1),
        c.L("loss", "Softmax", ["pool4"]),
    ]


def googlenet(c, w):
    branch = "inception_3a/"
    return [
        conv(c, w, "conv1/7x7_s2", "data", 3, 6, kernel=7, stride=2, pad=3),
        relu(c, "conv1/relu_7x7", "conv1/7x7_s2"),
        pool(c, "pool1/3x3_s2", "conv1/7x7_s2", c.MAX, kernel_size=3, stride=2),
        conv(c, w, branch + "1x1", "pool1/3x3_s2", 6, 3, kernel=1),
        conv(c, w, branch + "3x3_reduce", "pool1/3x3_s2", 6, 2, kernel=1),
        relu(c, branch + "relu", branch + "3x3_reduce"),
        conv(c, w, branch + "3x3", branch + "3x3_reduce", 2, 4, pad=1),
        pool(c, branch + "pool", "pool1/3x3_s2", c.MAX, kernel_size=3, stride=1, pad=1),
        conv(c, w, branch + "pool_proj", branch + "pool", 6, 2, kernel=1),
        c.L(
            branch + "output",
            "Concat",
            [branch + n for n in ("1x1", "3x3", "pool_proj")],
        ),
        pool(c, "pool5/7x7_s1", branch + "output", c.AVE, kernel_size=8, stride=1),
        c.L("pool5/drop", "Dropout", ["pool5/7x7_s1"], ["pool5/7x7_s1"]),
        fc(c, w, "loss3/classifier", "pool5/7x7_s1", 9, 5),
        c.L("prob", "Softmax", ["loss3/classifier"]),
    ]


def normalised(c, w, name, bottom, channels, outputs, **params):
    """Convolution, BatchNorm and Scale as in the ResNets, the last two in place."""
    made = conv(c, w, f"res{name}", bottom, channels, outputs, bias=False, **params)
    variance = np.abs(w(outputs)) + 0.5
    statistics = [w(outputs) * 3, variance * 3, np.array([3.0])]
    scale = [w(outputs), w(outputs)]
    return [
        made,
        c.L(f"bn{name}", "BatchNorm", [made.name], [made.name], statistics,
            {"use_global_stats": True}),
        c.L(f"scale{name}", "Scale", [made.name], [made.name], scale, {"bias_term": True}),
    ]  # fmt: skip


def resnet(c, w):
    return [
        *normalised(c, w, "1", "data", 3, 6, kernel=7, stride=2, pad=3),
        relu(c, "conv1_relu", "res1"),
        pool(c, "pool1", "res1", c.MAX, kernel_size=3, stride=2),
        *normalised(c, w, "2a_branch1", "pool1", 6, 8, kernel=1),
        *normalised(c, w, "2a_branch2a", "pool1", 6, 4, kernel=1),
        relu(c, "res2a_branch2a_relu", "res2a_branch2a"),
        *normalised(c, w, "2a_branch2b", "res2a_branch2a", 4, 8, pad=1),
        c.L("res2a", "Eltwise", ["res2a_branch1", "res2a_branch2b"]),
        relu(c, "res2a_relu", "res2a"),
        pool(c, "pool5", "res2a", c.AVE, global_pooling=True),
        fc(c, w, "fc1000", "pool5", 8, 5),
        c.L("prob", "Softmax", ["fc1000"]),
    ]


FAMILIES = {
    "alexnet": (alexnet, {6: "fc6", 7: "fc7", 8: "fc8"}),
    "vgg": (vgg, {6: "fc6", 7: "fc7", 8: "fc8"}),
    "nin": (nin, {8: "cccp8-1024"}),
    "googlenet": (googlenet, {8: "loss3/classifier"}),
    "resnet": (resnet, {8: "fc1000"}),
}


# BatchNorm came with the second generation
BOTH = [
    (family, old)
    for family in FAMILIES
    for old in (False, True)
    if (family, old) != ("resnet", True)
]


@pytest.mark.parametrize(("family", "old"), BOTH)
def test_network_equals_opencv_in_every_layer(family, old, caffe, w, write, rng):
    make, numbers = FAMILIES[family]
    layers = make(caffe, w)
    prototxt, caffemodel = write(layers, 33, old)
    images = rng.normal(size=(3, 3, 33, 33)).astype(np.float32)
    names = [layer.name for layer in layers]
    expected = caffe.opencv_outputs(prototxt, caffemodel, images, names)
    network = load_caffe(caffemodel, prototxt)
    found, scores = caffe.our_outputs(network, images)
    assert list(found) == names[:-1]
    for name, value in found.items():
        np.testing.assert_allclose(
            value, expected[name].reshape(value.shape), atol=1e-4
        )
    softmax = torch.softmax(torch.from_numpy(scores), dim=1).numpy()
    np.testing.assert_allclose(
        softmax, expected[names[-1]].reshape(softmax.shape), atol=1e-4
    )
    assert network.layers == numbers
    assert network.name == "net"


@pytest.mark.parametrize("old", [False, True], ids=["layer", "layers"])
@pytest.mark.parametrize("alone", [False, True], ids=["prototxt", "caffemodel_alone"])
@pytest.mark.parametrize("name", ["alexnet-caffe", "vgg16-caffe"])
def test_the_papers_networks_equal_those_of_the_zoo(
    name, alone, old, caffe, write, rng
):
    zoo = random_network(name, widths={6: 16, 7: 12, 8: 5})
    size = zoo.preprocess.size
    weights = {name: tensor.numpy() for name, tensor in zoo.module.state_dict().items()}
    lrn = {"local_size": 5, "alpha": 0.0001, "beta": 0.75}
    layers, blob = [], "data"
    for part, module in zoo.module.named_children():
        blobs = [
            weights[key] for key in (f"{part}.weight", f"{part}.bias") if key in weights
        ]
        if part.startswith("conv"):
            params = {
                "num_output": module.out_channels,
                "kernel_size": module.kernel_size[0],
            }
            params |= {"stride": module.stride[0], "pad": module.padding[0]}
            params |= {"group": module.groups}
            layers.append(caffe.L(part, "Convolution", [blob], None, blobs, params))
        elif part.startswith("norm"):
            layers.append(caffe.L(part, "LRN", [blob], params=lrn))
        elif part.startswith("pool"):
            layers.append(
                pool(
                    caffe,
                    part,
                    blob,
                    caffe.MAX,
                    kernel_size=module.kernel_size,
                    stride=module.stride,
                )
            )
        elif part.startswith("fc"):
            params = {"num_output": module.out_features}
            layers.append(caffe.L(part, "InnerProduct", [blob], None, blobs, params))
        elif part != "flatten":  # Caffe's inner product does that by itself
            layers.append(
                caffe.L(
                    part,
                    "ReLU" if part.startswith("relu") else "Dropout",
                    [blob],
                    [blob],
                )
            )
        blob = layers[-1].made()[0]
    prototxt, caffemodel = write(
        [*layers, caffe.L("prob", "Softmax", [blob])], size, old
    )
    images = torch.from_numpy(
        rng.normal(size=(1, 3, size, size)).astype(np.float32) * 50
    )
    scores = zoo.module(images)
    by_file = load_caffe(caffemodel, None if alone else prototxt)
    by_name = load_network(name, weights=caffemodel)
    for network in (by_file, by_name):
        error = (network.module(images) - scores).abs().max() / scores.abs().max()
        assert error < 1e-5
        assert network.layers == zoo.layers
    assert by_file.preprocess.size == size
    assert by_name.preprocess == zoo.preprocess
    assert by_name.name == name


def test_gradient_features_equal_the_gradients_of_each_image(caffe, w, write, rng):
    prototxt, caffemodel = write(alexnet(caffe, w), 33)
    network = load_caffe(caffemodel, prototxt, dtype="float64")
    pictures = list(rng.integers(0, 256, size=(3, 40, 33, 3), dtype=np.uint8))
    features = extract(network, pictures, "dW6,dW7,dW8")
    for k in (6, 7, 8):
        weight = network.module.get_submodule(network.layers[k]).weight
        for picture, found in zip(pictures, features[f"dW{k}"].dense(), strict=True):
            image = torch.from_numpy(network.preprocess(picture)[None]).double()
            weight.requires_grad_(True)
            (gradient,) = torch.autograd.grad(
                cross_entropy()(network.module(image)), weight
            )
            weight.requires_grad_(False)
            expected = (gradient / gradient.norm()).T.numpy()
            np.testing.assert_allclose(found, expected, atol=1e-6)


@pytest.mark.parametrize("dtype", ["float64", "float16", "bfloat16"])
def test_other_precisions_agree_with_float32(dtype, caffe, w, write, rng):
    prototxt, caffemodel = write(googlenet(caffe, w), 33)
    images = torch.from_numpy(rng.normal(size=(2, 3, 33, 33)))
    expected = load_caffe(caffemodel, prototxt).module(images.float())
    network = load_caffe(caffemodel, prototxt, dtype=dtype)
    found = network.module(images.to(network.dtype))
    assert found.dtype == network.dtype == getattr(torch, dtype)
    tolerance = {"float64": 1e-5, "float16": 1e-2, "bfloat16": 5e-2}[dtype]
    torch.testing.assert_close(found.float(), expected, rtol=0, atol=tolerance)

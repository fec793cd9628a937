"""Which layers run: phases, overwritten blobs, what the scores depend on."""

import numpy as np
import pytest
import torch

from deepfishing.errors import NetworkError
from deepfishing.networks.caffe.files import parse
from deepfishing.networks.caffe.importer import (
    in_test_phase,
    load_caffe,
    numbered_layers,
    read_layers,
    trace,
)


def read(text):
    return parse(text, "NetParameter", "net.prototxt")


RULES = {
    "": True,
    "include { phase: TEST }": True,
    "include { phase: TRAIN }": False,
    "exclude { phase: TEST }": False,
    "exclude { phase: TRAIN }": True,
    "include { phase: TRAIN } include { phase: TEST }": True,
    "include { min_level: 1 }": False,
    "include { max_level: 0 }": True,
    "include { min_level: -1 max_level: 3 }": True,
    "exclude { max_level: -1 }": True,
    "include { stage: 'deploy' }": False,
    "include { not_stage: 'deploy' }": True,
    "exclude { phase: TEST stage: 'val' }": True,
    "include { phase: TEST not_stage: 'a' } include { stage: 'b' }": True,
}


@pytest.mark.parametrize("generation", ["layer", "layers"])
def test_rules_keep_what_caffe_keeps_for_testing(generation):
    net = read(
        "".join(
            f"{generation} {{ name: '{i}' {rule} }}" for i, rule in enumerate(RULES)
        )
    )
    kept = [layer.name for layer in in_test_phase(net, read_layers(net))]
    assert kept == [str(i) for i, keep in enumerate(RULES.values()) if keep]


def test_level_and_stage_of_the_net_count():
    rules = [
        "include { stage: 'deploy' }",
        "include { min_level: 2 }",
        "exclude { min_level: 3 }",
    ]
    rules += ["include { not_stage: 'deploy' }", "include { max_level: 1 }"]
    layers = "".join(f"layer {{ name: '{i}' {rule} }}" for i, rule in enumerate(rules))
    net = read(f"state {{ level: 2 stage: 'deploy' phase: TRAIN }} {layers}")
    assert [layer.name for layer in in_test_phase(net, read_layers(net))] == [
        "0",
        "1",
        "2",
    ]


def test_include_and_exclude_together_are_an_error():
    net = read(
        "\n\nlayer { name: 'a' include { phase: TEST } exclude { phase: TRAIN } }"
    )
    with pytest.raises(
        NetworkError, match=r"net.prototxt, line 3: layer 'a' .* got both"
    ):
        in_test_phase(net, read_layers(net))


def training_net(c, w):
    """As people train: data for two phases, an auxiliary classifier, losses and accuracies."""
    fc = {"num_output": 4}
    crop = {
        "transform_param": {
            "crop_size": 6,
            "mean_value": [10.0, 20.0, 30.0],
            "scale": 0.5,
        }
    }
    train, test = {"include": {"phase": c.TRAIN}}, {"include": {"phase": c.TEST}}
    return [
        c.L("train", "Data", tops=["data", "label"], extra=crop | train, params={"batch_size": 9}),
        c.L("test", "Data", tops=["data", "label"], extra=crop | test, params={"batch_size": 9}),
        c.L("label_split", "Split", ["label"], ["label1", "label2", "label3"]),
        c.L("conv", "Convolution", ["data"], blobs=[w(2, 3, 3, 3), w(2)],
            params={"num_output": 2, "kernel_size": 3}),
        c.L("relu", "ReLU", ["conv"], ["conv"]),
        c.L("conv_split", "Split", ["conv"], ["conv_0", "conv_1"]),
        c.L("aux/classifier", "InnerProduct", ["conv_0"], blobs=[w(4, 32), w(4)], params=fc),
        c.L("aux/loss", "SoftmaxWithLoss", ["aux/classifier", "label1"], extra=train),
        c.L("pool", "Pooling", ["conv_1"], params={"pool": c.AVE, "kernel_size": 2, "stride": 2}),
        c.L("classifier", "InnerProduct", ["pool"], blobs=[w(4, 8), w(4)], params=fc),
        c.L("mvn", "MVN", ["classifier"]),
        c.L("quiet", "Silence", ["mvn"], []),
        c.L("loss", "SoftmaxWithLoss", ["classifier", "label2"]),
        c.L("accuracy", "Accuracy", ["classifier", "label3"], extra=test),
    ]  # fmt: skip


@pytest.mark.parametrize("old", [False, True], ids=["layer", "layers"])
def test_only_what_the_scores_depend_on_is_built(old, caffe, w, tmp_path, rng):
    layers = training_net(caffe, w)
    prototxt, caffemodel = (
        tmp_path / "train_val.prototxt",
        tmp_path / "iter_1000.caffemodel",
    )
    prototxt.write_text(caffe.print_net(layers, old))
    # a snapshot holds the net as it was trained: without the layers for testing
    kept = [x for x in layers if x.name not in ("test", "accuracy")]
    caffemodel.write_bytes(caffe.encode_net(kept, old))
    images = rng.normal(size=(2, 3, 6, 6)).astype(np.float32)
    conv, fc = (
        next(x for x in layers if x.name == n).blobs for n in ("conv", "classifier")
    )
    inner = torch.nn.functional.conv2d(*map(torch.from_numpy, (images, *conv))).relu()
    expected = (
        torch.nn.functional.avg_pool2d(inner, 2).flatten(1).numpy() @ fc[0].T + fc[1]
    )
    for text in (prototxt, None):
        network = load_caffe(caffemodel, text)
        names = [name for name, _ in network.module.named_children()]
        assert names == ["conv", "relu", "pool", "classifier"]
        found = network.module(torch.from_numpy(images)).numpy()
        np.testing.assert_allclose(found, expected, atol=1e-5)
        assert network.layers == {8: "classifier"}
        assert network.preprocess.size == 6
        assert network.preprocess.mean == (10.0, 20.0, 30.0)
        assert network.preprocess.std == (2.0, 2.0, 2.0)


def test_a_layer_reads_what_the_layers_before_it_made_of_a_blob(caffe, w, write, rng):
    """The second branch sees the rectified blob, though it names the same one as the first."""
    weight = w(2, 3, 1, 1)
    one = {"num_output": 2, "kernel_size": 1, "bias_term": False}
    layers = [
        caffe.L("conv", "Convolution", ["data"], blobs=[weight], params=one),
        caffe.L("before", "TanH", ["conv"]),
        caffe.L("relu", "ReLU", ["conv"], ["conv"]),
        caffe.L("after", "TanH", ["conv"]),
        caffe.L("both", "Concat", ["before", "after"]),
        caffe.L("fc", "InnerProduct", ["both"], blobs=[np.eye(16)]),
    ]
    layers[-1].params = {"num_output": 16, "bias_term": False}
    network = load_caffe(*reversed(write(layers, size=2)))
    images = rng.normal(size=(1, 3, 2, 2)).astype(np.float32)
    conv = np.einsum("oc,nchw->nohw", weight[:, :, 0, 0], images)
    expected = np.concatenate([np.tanh(conv), np.tanh(np.maximum(conv, 0))], axis=1)
    found = network.module(torch.from_numpy(images)).numpy()
    np.testing.assert_allclose(found, expected.reshape(1, -1), atol=1e-6)


def chain(*types):
    """A net of these layers, one on the other; a type may be `name=Type`."""
    text, blob = "input: 'data' input_dim: 1", "data"
    for i, entry in enumerate(types):
        name = f"{i}{entry}"
        text += f" layer {{ name: '{name}' type: '{entry}' bottom: '{blob}' top: '{name}' }}"
        blob = name
    return trace(read_layers(read(text)))


@pytest.mark.parametrize(
    ("types", "numbers"),
    [
        ("InnerProduct", {8: 0}),
        ("InnerProduct ReLU Dropout InnerProduct Softmax", {7: 0, 8: 3}),
        (
            "InnerProduct InnerProduct ReLU InnerProduct ReLU InnerProduct",
            {6: 1, 7: 3, 8: 5},
        ),
        ("InnerProduct Pooling InnerProduct SoftmaxWithLoss", {8: 2}),
        ("InnerProduct BatchNorm Scale ReLU InnerProduct Sigmoid", {7: 0, 8: 4}),
        ("Convolution Convolution ReLU Pooling Softmax Accuracy", {8: 1}),
        ("Convolution Pooling Flatten InnerProduct Softmax ArgMax", {8: 3}),
        ("Convolution InnerProduct Softmax MultinomialLogisticLoss", {8: 1}),
    ],
)
def test_layers_are_numbered_from_the_classifier_down(types, numbers):
    assert numbered_layers(chain(*types.split())) == numbers


@pytest.mark.parametrize(
    "types", ["ReLU", "InnerProduct LRN", "InnerProduct Concat Softmax"]
)
def test_a_net_without_classifier_is_an_error(types):
    with pytest.raises(
        NetworkError, match="must follow a fully connected layer or convolution"
    ):
        numbered_layers(chain(*types.split()))


BROKEN = {
    "layer { name: 'a' type: 'ReLU' bottom: 'b' top: 'a' }": "takes 'b', which no layer before it",
    # a cycle
    "layer { name: 'a' type: 'ReLU' bottom: 'b' top: 'a' }"
    "layer { name: 'b' type: 'ReLU' bottom: 'a' top: 'b' }": "takes 'b', which no layer before it",
    "input: 'd' layer { name: 'a' type: 'ReLU' bottom: 'd' top: 'x' }"
    "layer { name: 'b' type: 'ReLU' bottom: 'd' top: 'x' }": "makes 'x', which 'a' has made",
    "input: 'd' input: 'e'"
    "layer { name: 'a' type: 'Eltwise' bottom: 'd' bottom: 'e' top: 'a' }": "got 'd', 'e'",
    "input: 'd'": "must have layers, got none",
    "": "must have layers, got none",
    "layer { name: 'data' type: 'Input' top: 'data' }": "a file without class scores",
    "layer { name: 'a' type: 'DummyData' top: 'a' }": "one image input, got none",
    # a label is no picture
    "layer { name: 'd' type: 'Data' top: 'data' top: 'label' }"
    "layer { name: 'a' type: 'ReLU' bottom: 'label' top: 'a' }": "takes 'label', which no layer",
    "layer { name: 'prob' type: 'Softmax' bottom: 'a' top: 'b' }": "takes 'a', which no layer",
    "layer { name: 'prob' type: 'Softmax' top: 'b' }": "a file without class scores",
    "input: 'd' layer { name: 'p' type: 'Softmax' bottom: 'd' top: 'p' }": "layers after its input",
    "layer { name: 'a' } layers { name: 'b' }": "`layer` or `layers`, got both",
    "layers { layer { name: 'a' type: 'conv' } bottom: 'data' }": r"\(V0\) is not supported",
}


@pytest.mark.parametrize("text", BROKEN)
def test_a_broken_graph_is_one_clear_error(text):
    with pytest.raises(NetworkError, match=BROKEN[text]) as caught:
        trace(read_layers(read(text)))
    assert str(caught.value).startswith("net.prototxt, line 1: ")
    assert "\n" not in str(caught.value)

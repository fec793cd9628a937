"""`load_caffe`: preprocessing, names, the hash, and files that are wrong."""

import re

import numpy as np
import pytest
import torch

from deepfishing.errors import NetworkError, OptionError, WeightsError
from deepfishing.networks.caffe.importer import load_caffe


def classifier(c, w, bottom="data", name="fc", inputs=12):
    params = {"num_output": 5}
    return c.L(
        name, "InnerProduct", [bottom], blobs=[w(5, inputs), w(5)], params=params
    )


def test_preprocessing_is_bgr_with_the_mean_of_imagenet(caffe, w, write):
    prototxt, caffemodel = write([classifier(caffe, w)], size=2)
    preprocess = load_caffe(caffemodel, prototxt).preprocess
    assert (preprocess.size, preprocess.short_side, preprocess.order) == (2, 2, "BGR")
    assert preprocess.mean == (104.00698793, 116.66876762, 122.67891434)
    assert (preprocess.std, preprocess.scale) == ((1.0, 1.0, 1.0), 1.0)


@pytest.mark.parametrize("style", ["shape", "legacy", "double"])
def test_mean_image_gives_its_mean_pixel(style, caffe, w, write, tmp_path, rng):
    image = rng.uniform(0, 255, size=(1, 3, 7, 9)).astype(np.float32)
    path = tmp_path / "mean.binaryproto"
    path.write_bytes(caffe.encode_blob(image, style))
    prototxt, caffemodel = write([classifier(caffe, w)], size=2)
    found = load_caffe(caffemodel, prototxt, path).preprocess.mean
    np.testing.assert_allclose(
        found, image.mean(axis=(0, 2, 3), dtype=np.float64), rtol=1e-6
    )


def test_caffe_scales_after_it_subtracts(caffe, w, tmp_path, rng):
    transform = {"crop_size": 2, "mean_value": [10.0, 20.0, 30.0], "scale": 0.017}
    data = caffe.L(
        "data", "Data", tops=["data", "label"], extra={"transform_param": transform}
    )
    path = tmp_path / "net.caffemodel"
    path.write_bytes(caffe.encode_net([data, classifier(caffe, w)]))
    picture = rng.integers(0, 256, size=(2, 2, 3), dtype=np.uint8)
    found = load_caffe(path).preprocess(picture)
    expected = (picture[:, :, ::-1].astype(float) - [10, 20, 30]) * 0.017
    np.testing.assert_allclose(found, expected.transpose(2, 0, 1), rtol=1e-4)


def test_mean_is_looked_for_in_the_prototxt_then_in_the_caffemodel(caffe, w, tmp_path):
    def data(*mean):
        transform = {"crop_size": 2} | ({"mean_value": list(mean)} if mean else {})
        return caffe.L("data", "Data", extra={"transform_param": transform})

    prototxt, caffemodel = tmp_path / "net.prototxt", tmp_path / "net.caffemodel"
    caffemodel.write_bytes(
        caffe.encode_net([data(1.0, 2.0, 3.0), classifier(caffe, w)])
    )
    prototxt.write_text(caffe.print_net([data(7.0), classifier(caffe, w)]))
    assert load_caffe(caffemodel, prototxt).preprocess.mean == (7.0, 7.0, 7.0)
    prototxt.write_text(caffe.print_net([data(), classifier(caffe, w)]))
    assert load_caffe(caffemodel, prototxt).preprocess.mean == (1.0, 2.0, 3.0)
    prototxt.write_text(caffe.print_net([classifier(caffe, w)], size=2))
    assert load_caffe(caffemodel, prototxt).preprocess.mean == (1.0, 2.0, 3.0)


@pytest.mark.parametrize(
    "head",
    [
        "input: 'data' input_dim: 10 input_dim: 3 input_dim: 2 input_dim: 2",
        "input: 'data' input_shape { dim: 10 dim: 3 dim: 2 dim: 2 }",
        "layer { name: 'x' type: 'Input' top: 'data' input_param { shape { dim: [1, 3, 2, 2] } } }",
        "layer { name: 'x' type: 'Data' top: 'data' transform_param { crop_size: 2 } }",
        "layer { name: 'x' type: 'ImageData' top: 'data' image_data_param { crop_size: 2 } }",
        "layer { name: 'x' type: 'MemoryData' top: 'data' top: 'label' memory_data_param "
        "{ batch_size: 1 channels: 3 height: 2 width: 2 } }",
    ],
)
def test_size_of_the_images_is_found_wherever_it_stands(head, caffe, w, write):
    prototxt, caffemodel = write([classifier(caffe, w)], size=2)
    prototxt.write_text(head + "\n" + caffe.print_net([classifier(caffe, w)]))
    assert load_caffe(caffemodel, prototxt).preprocess.size == 2


def test_names_are_module_paths(caffe, w, write):
    names = {
        "inception_3a/1x1": "inception_3a/1x1",
        "conv.1": "conv_1",
        "a, b;c@d": "a__b_c_d",
        "eval": "eval_",
        "weight": "weight",
        "forward": "forward_",
        "_inputs": "_inputs_",
        "卷积": "卷积",
    }
    layers, below = [], "data"
    for name in names:
        layers.append(caffe.L(name, "TanH", [below]))
        below = name
    _, caffemodel = write([*layers, classifier(caffe, w, below, "fc.8")], size=2)
    network = load_caffe(caffemodel)
    children = [name for name, _ in network.module.named_children()]
    assert children == [*names.values(), "fc_8"]
    assert network.layers == {8: "fc_8"}
    assert network.layer("inception_3a/1x1") == "inception_3a/1x1"
    assert network.module(torch.zeros(1, 3, 2, 2)).shape == (1, 5)


def test_text_of_one_generation_goes_with_weights_of_the_other(caffe, w, write, rng):
    layers = [classifier(caffe, w), caffe.L("prob", "Softmax", ["fc"])]
    images = torch.from_numpy(rng.normal(size=(2, 3, 2, 2)).astype(np.float32))
    prototxt, caffemodel = write(layers, size=2)
    expected = load_caffe(caffemodel, prototxt).module(images)
    prototxt.write_text(caffe.print_net(layers, old=True, size=2))
    torch.testing.assert_close(
        load_caffe(caffemodel, prototxt).module(images), expected
    )


def test_scale_of_old_data_layers_counts(caffe, w, tmp_path):
    path = tmp_path / "old.caffemodel"
    data = caffe.L("data", "Data", params={"crop_size": 2, "scale": 0.25})
    path.write_bytes(caffe.encode_net([data, classifier(caffe, w)], old=True))
    preprocess = load_caffe(path).preprocess
    assert (preprocess.size, preprocess.std) == (2, (4.0, 4.0, 4.0))


def test_hash_says_which_weights_and_which_definition(caffe, w, write, tmp_path):
    prototxt, caffemodel = write([classifier(caffe, w)], size=2)
    alone = load_caffe(caffemodel).weights_sha256
    both = load_caffe(caffemodel, prototxt).weights_sha256
    prototxt.write_text(prototxt.read_text() + "# another")
    other = load_caffe(caffemodel, prototxt).weights_sha256
    assert len({alone, both, other}) == 3
    assert all(re.fullmatch("[0-9a-f]{64}", digest) for digest in (alone, both, other))


def test_module_is_frozen_and_weights_of_other_layers_are_ignored(caffe, w, write):
    layers = [classifier(caffe, w), classifier(caffe, w, name="old_classifier")]
    prototxt, caffemodel = write(layers, size=2)
    prototxt.write_text(caffe.print_net(layers[:1], size=2))
    network = load_caffe(caffemodel, prototxt)
    assert list(network.module.state_dict()) == ["fc.weight", "fc.bias"]
    assert not network.module.training
    assert not any(p.requires_grad for p in network.module.parameters())
    np.testing.assert_array_equal(
        network.module.state_dict()["fc.bias"], layers[0].blobs[1]
    )


@pytest.mark.parametrize(
    ("head", "message"),
    [
        (
            "input: 'data'",
            "has no size of images; give the deploy prototxt",
        ),
        (
            "layer { name: 'x' type: 'Data' top: 'data' }",
            "layer 'x' (Data) has no size of images",
        ),
        (
            "input: 'data' input_shape { dim: [1, 1, 2, 2] }",
            "images of 3 channels, got 1x2x2",
        ),
        (
            "input: 'data' input_shape { dim: [1, 3, 2, 4] }",
            "must take square images of 3 channels, got 3x2x4",
        ),
        (
            "input: 'data' input_shape { dim: [1, 3, 2] }",
            "square images of 3 channels, got 3x2",
        ),
        ("input: 'data' input_shape { dim: [1, 3, -2, -2] }", "got 3x-2x-2"),
        (
            "input: 'data' input_shape { dim: [1, 3, 99999, 99999] }",
            "at most 134,217,728 values",
        ),
        (
            "layer { name: 'x' type: 'Data' top: 'data' transform_param { crop_size: 2 "
            "mean_value: [1, 2] } }",
            "1 or 3 finite values of mean_value, got [1.0, 2.0]",
        ),
        (
            "layer { name: 'x' type: 'Data' top: 'data' transform_param { crop_size: 2 scale: 0}}",
            "must have a scale between 1e-6 and 1e6, got 0.0",
        ),
    ],
)
def test_input_that_is_no_picture_is_a_clear_error(head, message, caffe, w, write):
    prototxt, caffemodel = write([classifier(caffe, w)], size=2)
    prototxt.write_text(head + "\n" + caffe.print_net([classifier(caffe, w)]))
    with pytest.raises(NetworkError, match=re.escape(message)) as caught:
        load_caffe(caffemodel, prototxt)
    assert str(prototxt) in str(caught.value)


def test_a_layer_without_weights_is_named(caffe, w, write):
    prototxt, caffemodel = write([classifier(caffe, w)], size=2)
    prototxt.write_text(caffe.print_net([classifier(caffe, w, name="fc8_voc")], size=2))
    expected = re.escape(
        "layer 'fc8_voc' (InnerProduct) must have weights of 5x12, 5, got none"
    )
    with pytest.raises(WeightsError, match=f"{caffemodel}: {expected}"):
        load_caffe(caffemodel, prototxt)


def test_weights_given_twice_are_an_error(caffe, w, tmp_path, write):
    prototxt, caffemodel = write([classifier(caffe, w)], size=2)
    caffemodel.write_bytes(
        caffe.encode_net([classifier(caffe, w), classifier(caffe, w)])
    )
    with pytest.raises(
        WeightsError, match=r"net.caffemodel must hold the weights of 'fc' once"
    ):
        load_caffe(caffemodel, prototxt)


@pytest.mark.parametrize(("value", "dtype"), [(np.nan, "float32"), (1e5, "float16")])
def test_weights_that_are_not_finite_are_an_error(value, dtype, caffe, w, write):
    fc = classifier(caffe, w)
    fc.blobs[0][3, 7] = value
    _, caffemodel = write([fc], size=2)
    with pytest.raises(
        WeightsError, match=r"must be finite, got NaN or infinity in 1: fc.weight"
    ):
        load_caffe(caffemodel, dtype=dtype)


def test_statistics_that_are_not_finite_are_an_error(caffe, w, write):
    norm = caffe.L(
        "bn", "BatchNorm", ["data"], blobs=[w(3), w(3) * np.inf, np.zeros(1)]
    )
    _, caffemodel = write([norm, classifier(caffe, w, "bn")], size=2)
    with pytest.raises(WeightsError, match=r"must be finite, .* in 1: bn.running_var"):
        load_caffe(caffemodel)


def test_control_characters_of_a_file_do_not_reach_the_terminal(caffe, w, write):
    _, caffemodel = write([caffe.L("\x1b[2J", "Bad\n\x1b[2J", ["data"])], size=2)
    with pytest.raises(NetworkError) as caught:
        load_caffe(caffemodel)
    assert r"layer '\x1b[2J' (Bad\n\x1b[2J) is not supported" in str(caught.value)
    _, caffemodel = write([classifier(caffe, w, name="\x1b[2J")], size=2)
    assert load_caffe(caffemodel).layers == {8: "_[2J"}


def test_a_map_of_scores_is_no_classifier(caffe, w, write):
    conv = caffe.L("score", "Convolution", ["data"], blobs=[w(5, 3, 1, 1), w(5)])
    conv.params = {"num_output": 5, "kernel_size": 1}
    _, caffemodel = write([conv, caffe.L("prob", "Softmax", ["score"])], size=2)
    with pytest.raises(
        NetworkError, match="must make one score per class, got a map of 5x2x2"
    ):
        load_caffe(caffemodel)


def test_a_mean_that_is_none_is_a_clear_error(caffe, w, write, tmp_path):
    _, caffemodel = write([classifier(caffe, w)], size=2)
    path = tmp_path / "mean.binaryproto"
    for content, message in [
        (
            caffe.encode_blob(np.ones((1, 1, 4, 4))),
            "of 3 channels, got a blob of shape",
        ),
        (
            caffe.encode_blob(np.full((1, 3, 2, 2), np.inf)),
            "finite numbers, got NaN or infinity",
        ),
        (caffe.encode_blob(np.ones((3, 0, 0))), "of 3 channels, got a blob of shape"),
        (b"\x89PNG\r\n", "is damaged or not of this format"),
        (b"", "got an empty file"),
    ]:
        path.write_bytes(content)
        with pytest.raises(WeightsError, match=message) as caught:
            load_caffe(caffemodel, mean=path)
        assert str(path) in str(caught.value)


def test_files_that_are_none_are_clear_errors(caffe, w, write, tmp_path):
    prototxt, caffemodel = write([classifier(caffe, w)], size=2)
    with pytest.raises(
        WeightsError, match=f"file not found: {tmp_path / 'no.caffemodel'}"
    ):
        load_caffe(tmp_path / "no.caffemodel")
    with pytest.raises(
        WeightsError, match=f"{tmp_path} must be a binary Caffe file, got no file"
    ):
        load_caffe(tmp_path)
    with pytest.raises(NetworkError, match="prototxt not found"):
        load_caffe(caffemodel, tmp_path / "no.prototxt")
    with pytest.raises(WeightsError, match="damaged or not of this format"):
        load_caffe(prototxt, caffemodel)  # the wrong way round
    with pytest.raises(NetworkError, match=r"line 2: .* is this a prototxt"):
        load_caffe(caffemodel, caffemodel)
    with pytest.raises(OptionError, match="device must be"):
        load_caffe(caffemodel, device="quantum")
    with pytest.raises(OptionError, match="did you mean float32"):
        load_caffe(caffemodel, dtype="float3")


def test_the_oldest_format_is_named(caffe, tmp_path):
    path = tmp_path / "v0.caffemodel"
    connection = caffe.tagged(
        1, 2, caffe.tagged(1, 2, b"conv1") + caffe.tagged(2, 2, b"conv")
    )
    path.write_bytes(caffe.tagged(2, 2, connection))
    with pytest.raises(
        NetworkError, match=r"\(V0\) is not supported; convert the file"
    ):
        load_caffe(path)

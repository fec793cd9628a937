"""A store of Caffe's files can be asked about one more image without any option of the network."""

import json
import shutil

import numpy as np
import pytest

from deepfishing.extraction.extract import extract
from deepfishing.networks.caffe.importer import load_caffe
from deepfishing.store import Store

MEAN = (90.0, 100.0, 110.0)


@pytest.fixture
def files(caffe, w, write, tmp_path):
    """conv1, fc7, fc8 on images of 16 pixels: a caffemodel, its prototxt, its mean image."""
    layers = [
        caffe.L(
            "conv1",
            "Convolution",
            ["data"],
            blobs=[w(4, 3, 3, 3), w(4)],
            params={"num_output": 4, "kernel_size": 3, "stride": 3},
        ),
        caffe.L("fc7", "InnerProduct", ["conv1"], blobs=[w(6, 100), w(6)],
                params={"num_output": 6}),
        caffe.L("relu7", "ReLU", ["fc7"], ["fc7"]),
        caffe.L("fc8", "InnerProduct", ["fc7"], blobs=[w(5, 6), w(5)], params={"num_output": 5}),
    ]  # fmt: skip
    prototxt, caffemodel = write(layers, 16)
    image = np.stack([np.full((4, 4), value, dtype=np.float32) for value in MEAN])
    (tmp_path / "mean.binaryproto").write_bytes(caffe.encode_blob(image[None]))
    return {
        "--network": prototxt,
        "--weights": caffemodel,
        "--preprocess": tmp_path / "mean.binaryproto",
    }


@pytest.fixture
def store(files, deepfish, shapes, tmp_path):
    given = [part for pair in files.items() for part in pair]
    ran = deepfish(
        *("extract", shapes / "train", "store", *given, "--features", "x7,dW8"),
        *("--precision", "float32", "--tau", "3", "--views", "flip"),
    )
    assert ran.code == 0, ran.err
    assert "mean pixel 90, 100, 110 (blue, green, red): as given" in ran.err
    return tmp_path / "store"


def test_search_predict_and_extract_need_no_option_of_the_network(
    store, files, deepfish, shapes, tmp_path
):
    new = shapes / "test/light/0.jpg"
    found = deepfish("search", store, new, "--features", "dW8", "-n", "3", "--json")
    assert found.code == 0, found.err
    paths = [new, *(hit["path"] for hit in json.loads(found.out)["hits"])]
    network = load_caffe(files["--weights"], files["--network"], files["--preprocess"])
    direct = extract(network, paths, "dW8", tau=3.0, views="flip")["dW8"]
    scores = [hit["score"] for hit in json.loads(found.out)["hits"]]
    expected = (direct.x[1:] @ direct.x[0]) * (direct.delta[1:] @ direct.delta[0])
    np.testing.assert_allclose(scores, expected, atol=1e-5)

    more = deepfish("extract", shapes, store, "--features", "x7,dW8")
    assert more.code == 0, more.err
    opened = Store.open(store)
    row = next(row for row in opened.rows().values() if row.path == str(new))
    x7 = opened.read([row.sha256], "x7")[0]
    np.testing.assert_allclose(x7 / np.linalg.norm(x7), direct.x[0], atol=1e-5)

    trained = deepfish(
        "train", store, "model", "--labels", _labels(shapes), "--features", "x7"
    )
    assert trained.code == 0, trained.err
    predicted = deepfish("predict", "model", new)
    assert predicted.code == 0, predicted.err
    assert predicted.out.split()[1] == "light"


def _labels(shapes):
    rows = [f"{p.relative_to(shapes / 'train')},{p.parent.name}\n" for p in shapes.rglob("*.jpg")
            if "train" in p.parts]  # fmt: skip
    (shapes / "train/labels.csv").write_text("path,label\n" + "".join(rows))
    return shapes / "train/labels.csv"


def test_a_file_that_is_gone_or_changed_is_named_with_what_to_type(
    store, files, deepfish, shapes, tmp_path
):
    prototxt, caffemodel, _ = files.values()
    query = ("search", store, shapes / "test/light/0.jpg", "-n", "1")
    files["--preprocess"].unlink()  # its pixel is kept
    assert deepfish(*query).code == 0

    text = prototxt.read_text()
    prototxt.write_text(text.replace("stride: 3", "stride: 2"))
    changed = deepfish(*query)
    assert changed.code == 1
    assert f"needs its prototxt file {prototxt} with the sha256" in changed.err
    assert changed.err.count("\n") == 1
    prototxt.write_text(text)

    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    for path in (caffemodel, prototxt):
        shutil.move(path, elsewhere / path.name)
    for command in (query, ("extract", shapes, store, "--features", "x7,dW8")):
        gone = deepfish(*command)
        assert gone.code == 1
        assert f"needs its weights file {caffemodel} with the sha256" in gone.err
        assert "pass --weights FILE" in gone.err
        assert gone.err.count("\n") == 1
    moved = elsewhere / caffemodel.name
    assert deepfish(*query, "--weights", moved).code == 0
    # a later extract is told once where they are, and the store remembers it
    told = ("--weights", moved, "--network", elsewhere / prototxt.name)
    assert deepfish("extract", shapes, store, "--features", "x7,dW8", *told).code == 0
    assert deepfish(*query).code == 0


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (
            ["--preprocess", "104,117,123"],
            "preprocess = (90.0, 100.0, 110.0), got (104.0, 117.0, 123.0)",
        ),
        (["--network", "efficientnet-lite0"], "network = net, got efficientnet-lite0"),
        (["--weights", "random"], "weights = "),
        (["--weights", "net.prototxt"], "weights = sha256"),
        (["--network", "other.prototxt"], "prototxt = sha256"),
        (["--tau", "2"], "tau = 3.0, now it is 2.0"),
        (["--views", "centre"], "views = 'flip', now it is 'centre'"),
        (["--label", "predicted"], "label = 'uniform', now it is 'predicted'"),
        (["--preprocess", "104,117"], "three finite numbers"),
    ],
)
def test_options_that_contradict_the_store_are_one_line(
    store, deepfish, shapes, tmp_path, options, words
):
    (tmp_path / "other.prototxt").write_text("name: 'other'")
    ran = deepfish("extract", shapes / "test", store, "--features", "x7,dW8", *options)
    assert ran.code == 1
    assert words in ran.err
    assert ran.err.count("\n") == 1
    assert len(Store.open(store).rows()) == 12


def test_options_that_say_the_same_are_taken(store, files, deepfish, shapes):
    given = [part for pair in files.items() for part in pair]
    same = (
        *given,
        "--tau",
        "3.0",
        "--views",
        "flip",
        "--label",
        "uniform",
    )
    ran = deepfish("extract", shapes / "test", store, "--features", "x7,dW8", *same)
    assert ran.code == 0, ran.err
    pixel = ",".join(map(str, MEAN))
    assert deepfish("extract", shapes / "test", store, "--preprocess", pixel).code == 0


def test_a_store_of_version_0_1_is_refused_in_one_line(store, deepfish, shapes):
    manifest = store / "store.json"
    facts = json.loads(manifest.read_text())
    del facts["settings"]["source"], facts["seal"]
    manifest.write_text(json.dumps(facts))
    for command in (
        ("search", store, shapes / "test/light/0.jpg"),
        ("extract", shapes, store),
    ):
        ran = deepfish(*command)
        assert ran.code == 1
        assert ran.err.count("\n") == 1
        assert "as in version 0.1; make the store or the model again" in ran.err


def test_models_shows_layers_features_and_the_mean(files, deepfish):
    prototxt, caffemodel, mean = files.values()
    shown = deepfish("models", prototxt)  # its weights are beside it
    assert shown.code == 0, shown.err
    assert "7 = fc7, 8 = fc8" in shown.out
    assert "dW7" in shown.out
    assert "ImageNet's, since neither --preprocess nor the files give one" in shown.out
    mean_given = ("--preprocess", mean, "--json")
    (facts,) = json.loads(deepfish("models", caffemodel, *mean_given).out)
    assert facts["preprocess"]["mean"] == list(MEAN)
    assert facts["layers"] == {"7": "fc7", "8": "fc8"}


def test_a_mean_file_that_was_not_given_is_warned_of(caffe, w, tmp_path):
    def data(**transform):
        return caffe.L(
            "data", "Data", extra={"transform_param": {"crop_size": 2, **transform}}
        )

    def load(*layers, mean=None):
        classifier = caffe.L(
            "fc",
            "InnerProduct",
            ["data"],
            blobs=[w(5, 12), w(5)],
            params={"num_output": 5},
        )
        prototxt, caffemodel = tmp_path / "net.prototxt", tmp_path / "net.caffemodel"
        prototxt.write_text(caffe.print_net([layers[0], classifier]))
        caffemodel.write_bytes(caffe.encode_net([layers[-1], classifier]))
        return load_caffe(caffemodel, prototxt, mean)

    named = data(mean_file="data/flowers_mean.binaryproto")
    for layers in ((named, named), (data(), named), (named, data())):
        with pytest.warns(
            UserWarning, match=r"'data/flowers_mean.binaryproto', which was not"
        ):
            network = load(*layers)
        assert "ImageNet's" in network.notes[0]
    assert "as given" in load(named, mean="1,2,3").notes[0]
    said = load(data(mean_value=[10.0, 20.0, 30.0]))
    assert said.preprocess.mean == (10.0, 20.0, 30.0)
    assert "mean_value of" in said.notes[0]

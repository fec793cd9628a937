"""Caffe's files on the command line."""

import numpy as np
import pytest

from deepfishing.core.rank_one import l2_normalize
from deepfishing.extraction.extract import extract
from deepfishing.networks.caffe.importer import load_caffe
from deepfishing.store import Store


def small_net(caffe, w):
    """conv1, pool5, fc7, fc8 on images of 32 pixels."""
    return [
        caffe.L(
            "conv1",
            "Convolution",
            ["data"],
            blobs=[w(4, 3, 3, 3), w(4)],
            params={"num_output": 4, "kernel_size": 3, "stride": 2},
        ),
        caffe.L("pool5", "Pooling", ["conv1"], params={"kernel_size": 3, "stride": 3}),
        caffe.L(
            "fc7",
            "InnerProduct",
            ["pool5"],
            blobs=[w(6, 100), w(6)],
            params={"num_output": 6},
        ),
        caffe.L("relu7", "ReLU", ["fc7"], ["fc7"]),
        caffe.L(
            "fc8",
            "InnerProduct",
            ["fc7"],
            blobs=[w(5, 6), w(5)],
            params={"num_output": 5},
        ),
        caffe.L("prob", "Softmax", ["fc8"]),
    ]


@pytest.mark.filterwarnings(
    "ignore:.* images have a zero gradient"
)  # a ReLU without output
def test_features_of_a_caffemodel_are_extracted_by_its_layers_names(
    caffe, w, write, deepfish, shapes, tmp_path
):
    prototxt, caffemodel = write(small_net(caffe, w), 32)
    ran = deepfish(
        *("extract", shapes, "store", "--network", prototxt, "--weights", caffemodel),
        *("--features", "x:pool5,dW7,dW:fc8", "--precision", "float32", "--json"),
    )
    assert ran.code == 0, ran.err
    store = Store.open(tmp_path / "store")
    rows = list(store.rows().values())
    keys = [row.sha256 for row in rows]
    expected = extract(
        load_caffe(caffemodel, prototxt), sorted(shapes.rglob("*.jpg")), "x:pool5,dW7"
    )
    order = [sorted(shapes.rglob("*.jpg")).index(shapes / row.id) for row in rows]
    for factor, values in (
        ("x:pool5", expected["x:pool5"]),
        ("delta7", expected["dW7"].delta),
    ):
        found = l2_normalize(store.read(keys, factor))
        assert np.abs(found).max() > 0
        np.testing.assert_allclose(found, values[order], atol=1e-5)


def test_a_truncated_caffemodel_is_one_line(caffe, w, write, deepfish, shapes):
    _, caffemodel = write(small_net(caffe, w), 32)
    caffemodel.write_bytes(caffemodel.read_bytes()[:200])
    ran = deepfish("extract", shapes, "store", "--network", caffemodel)
    assert ran.code == 1
    assert ran.err.count("\n") == 1
    assert caffemodel.name in ran.err

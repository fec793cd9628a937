"""What fuzzing found in Caffe's files; each was a traceback."""

import numpy as np
import pytest

from deepfishing.errors import NetworkError, WeightsError
from deepfishing.networks.caffe.files import mean_pixel
from deepfishing.networks.caffe.importer import load_caffe


def test_a_batch_norm_with_a_negative_eps_is_refused(caffe, write, w):
    layers = [
        caffe.L("bn", "BatchNorm", ["data"], blobs=[w(3), abs(w(3)), np.ones(1)],
                params={"eps": -1.0}),
        caffe.L("fc", "InnerProduct", ["bn"], blobs=[w(5, 12), w(5)], params={"num_output": 5}),
    ]  # fmt: skip
    prototxt, caffemodel = write(layers, size=2)
    with pytest.raises(
        NetworkError, match=r"layer 'bn' \(BatchNorm\) must have eps of at least 0"
    ):
        load_caffe(caffemodel, prototxt)


def test_an_empty_blob_with_an_endless_axis_is_refused(tmp_path):
    # 2^63 - 1 of them, and none of anything else
    channels = b"\x10" + b"\xff" * 8 + b"\x7f"
    (tmp_path / "mean.binaryproto").write_bytes(channels)
    with pytest.raises(
        WeightsError, match="at most 2,147,483,647 numbers, as in Caffe, got shape"
    ):
        mean_pixel(tmp_path / "mean.binaryproto")

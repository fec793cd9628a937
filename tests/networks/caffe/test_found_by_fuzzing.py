"""What fuzzing found in Caffe's layers; it was a traceback when the network ran."""

import numpy as np
import pytest

from deepfishing.errors import NetworkError
from deepfishing.networks.caffe.importer import load_caffe


def test_a_batch_norm_with_a_negative_eps_is_refused(caffe, write, w):
    layers = [
        caffe.L("bn", "BatchNorm", ["data"], blobs=[w(3), abs(w(3)), np.ones(1)],
                params={"eps": -1.0}),
        caffe.L("fc", "InnerProduct", ["bn"], blobs=[w(5, 12), w(5)], params={"num_output": 5}),
    ]  # fmt: skip
    prototxt, caffemodel = write(layers, size=2)
    with pytest.raises(NetworkError, match=r"layer 'bn' \(BatchNorm\) must have eps of at least 0"):
        load_caffe(caffemodel, prototxt)

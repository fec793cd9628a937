"""What fuzzing found in the readers of weights; each was a traceback before."""

import json

import pytest

from deepfishing.errors import WeightsError
from deepfishing.networks.load import load_network


@pytest.mark.parametrize("width", [1 << 31, 1 << 52, (1 << 63) - 1])
def test_an_empty_tensor_that_claims_to_be_endless_does_not_fit(tmp_path, width):
    # no numbers, so the file is sound; but the network's layer was made as wide as that
    facts = {
        "classifier.4.weight": {
            "dtype": "F32",
            "shape": [width, 0],
            "data_offsets": [0, 0],
        }
    }
    head = json.dumps(facts).encode()
    path = tmp_path / "net.safetensors"
    path.write_bytes(len(head).to_bytes(8, "little") + head)
    with pytest.raises(WeightsError, match=rf"classifier\.4\.weight .*\({width}, 0\)"):
        load_network("alexnet-torchvision", path)

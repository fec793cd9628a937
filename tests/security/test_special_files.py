import os

import pytest

from deepfishing.errors import StoreError, WeightsError
from deepfishing.learn import model_files
from deepfishing.networks.reference import read_preprocess

PIXELS = {"size": 224, "short_side": 224, "mean": [0, 0, 0], "std": [1, 1, 1]}


@pytest.mark.parametrize("name", [model_files.DOCUMENT, model_files.TENSORS])
@pytest.mark.parametrize("kind", ["device", "pipe"])
def test_a_model_file_that_is_no_regular_file_is_refused(tmp_path, name, kind):
    if kind == "pipe":
        os.mkfifo(tmp_path / name)
    else:
        (tmp_path / name).symlink_to("/dev/null")
    facts = {"sha256": {name: "0" * 64}}
    read = (
        model_files.read_files
        if name == model_files.DOCUMENT
        else model_files.read_tensors_of
    )
    arguments = (tmp_path,) if name == model_files.DOCUMENT else (tmp_path, facts)
    with pytest.raises(WeightsError, match="not a regular file"):
        read(*arguments)


@pytest.mark.parametrize("field", ["size", "short_side"])
@pytest.mark.parametrize("value", [0, -1, 200_000, float("nan")])
def test_a_size_that_fills_the_memory_is_refused(field, value):
    read_preprocess(PIXELS)
    with pytest.raises(
        StoreError, match="preprocess must be size and short_side up to 8,192"
    ):
        read_preprocess({**PIXELS, field: value})

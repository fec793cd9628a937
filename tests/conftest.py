"""Fixtures that many tests share."""

import numpy as np
import pytest
import torch

from deepfishing.rank_one import RankOne

torch.set_num_threads(1)  # small tensors: more threads only wait for each other


@pytest.fixture
def rng():
    return np.random.default_rng(0)


@pytest.fixture
def random_rank_one(rng):
    def make(n, d=7, D=5, P=None, dtype=np.float64):
        middle = () if P is None else (P,)
        return RankOne(
            x=rng.normal(size=(n, *middle, d)).astype(dtype),
            delta=rng.normal(size=(n, *middle, D)).astype(dtype),
        )

    return make

"""Features of one head are never taken for those of another: not in a store, not in a table."""

import numpy as np
import pytest
import torch
from PIL import Image
from torch import nn

from deepfishing.errors import OptionError, StoreError
from deepfishing.evaluation.protocols.table import reproduce
from deepfishing.extraction.pipeline import extract_to
from deepfishing.images.dataset import Dataset, Split
from deepfishing.images.preprocess import Preprocess
from deepfishing.networks.network import wrap
from deepfishing.store import Store

SMALL = Preprocess(4, 4, mean=(127.0,) * 3, std=(128.0,) * 3)


class TwoHeads(nn.Module):
    """A backbone with two classifiers of the same shape."""

    def __init__(self):
        super().__init__()
        self.trunk, self.one, self.two = (
            nn.Linear(48, 6),
            nn.Linear(6, 3),
            nn.Linear(6, 3),
        )

    def forward(self, x):
        x = torch.relu(self.trunk(x.flatten(1)))
        return {"one": self.one(x), "two": self.two(x)}


def squares(outputs):
    return (outputs["one"] ** 2).sum()


def powers(power):
    return lambda outputs: (outputs["one"] ** power).sum()


@pytest.fixture(scope="module")
def module():
    torch.manual_seed(0)
    return TwoHeads()


@pytest.fixture
def network(module):
    def make(**options):
        return wrap(module, layers={7: "trunk", 8: "one"}, preprocess=SMALL, **options)

    return make


FIRST = {"logits": "one"}
OTHERS = {
    "sigmoid": {"logits": "one", "head": "sigmoid"},
    "scores": {"logits": "two"},
    "own": {"head": squares},
    "random": {"logits": "one", "head": "random"},
    "function": {"logits": lambda outputs: outputs["one"] / 2},
}


@pytest.fixture
def photos(rng, tmp_path):
    folder = tmp_path / "photos"
    folder.mkdir()
    for i in range(8):
        pixels = rng.integers(0, 256, (6, 6, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(folder / f"{i}.png")
    return folder


def extracted(network, photos, folder):
    done = extract_to(
        folder, photos, network=network, features="dW7", precision="float32"
    )
    return done.computed, Store.open(folder).read(done.keys, "delta7")


@pytest.mark.parametrize("other", OTHERS.values(), ids=OTHERS)
def test_a_store_of_another_head_is_refused(network, photos, tmp_path, other):
    computed, first = extracted(network(**FIRST), photos, tmp_path / "store")
    assert computed == 8
    with pytest.raises(
        StoreError, match=r"was made with (head|scores) = .*another folder"
    ) as told:
        extracted(network(**other), photos, tmp_path / "store")
    assert "\n" not in str(told.value)
    _, second = extracted(network(**other), photos, tmp_path / "other")
    assert np.abs(first - second).max() > 1e-3 * np.abs(first).max()
    # the same again
    assert extracted(network(**FIRST), photos, tmp_path / "store")[0] == 0


def test_an_error_of_ones_own_is_told_by_what_it_computes(network, photos, tmp_path):
    assert extracted(network(head=powers(2)), photos, tmp_path / "store")[0] == 8
    assert extracted(network(head=powers(2)), photos, tmp_path / "store")[0] == 0
    with pytest.raises(StoreError, match="was made with head"):
        extracted(network(head=powers(4)), photos, tmp_path / "store")


def test_an_error_that_cannot_be_told_is_not_kept(network, photos, tmp_path):
    random = torch.Generator()

    def noisy(outputs):
        return (outputs["one"] * torch.rand(1, generator=random)).sum()

    with pytest.raises(OptionError, match=r"head of TwoHeads must be told from others"):
        extracted(network(head=noisy), photos, tmp_path / "store")
    assert not (tmp_path / "store").exists()


def test_rows_of_another_head_are_measured_again(network, photos, tmp_path):
    paths = tuple(sorted(photos.iterdir()))
    labels = np.where(np.arange(8)[:, None] % 2 == [0, 1], 1, -1).astype(np.int8)
    halves = [
        Split(name, tuple(p.stem for p in paths[a:b]), paths[a:b], labels[a:b])
        for name, a, b in (("train", 0, 4), ("test", 4, 8))
    ]
    data = Dataset("toy", ("even", "odd"), *halves, official_ap="area")

    def measured(**options):
        (row,) = reproduce(data, network(**options), tmp_path / "out", "dW7")
        return row["key"], row["head"], row["scores"]

    first = measured(**FIRST)
    assert first[1:] == ("softmax", "'one'")
    assert measured(**FIRST) == first
    others = [measured(**other) for other in OTHERS.values()]
    assert len({row[0] for row in [first, *others]}) == 1 + len(OTHERS)
    assert len(list((tmp_path / "out/features").iterdir())) == 1 + len(OTHERS)


def test_the_same_weights_in_another_architecture_are_another_store(photos, tmp_path):
    def network(activation):
        torch.manual_seed(0)
        layers = nn.Flatten(), nn.Linear(48, 6), activation, nn.Linear(6, 3)
        return wrap(nn.Sequential(*layers), preprocess=SMALL)

    assert extracted(network(nn.ReLU()), photos, tmp_path / "store")[0] == 8
    assert extracted(network(nn.ReLU()), photos, tmp_path / "store")[0] == 0
    with pytest.raises(StoreError, match="was made with weights_sha256"):
        extracted(network(nn.GELU()), photos, tmp_path / "store")

import numpy as np
import pytest

from deepfishing.store import Row, Store
from deepfishing.web.gallery import make_offer

COLUMNS = (
    "x7",
    "x8",
    "delta8",
    "dW8@3x2",
    "x:trunk",
    "in:trunk@exact",
    "delta:trunk@exact",
)


@pytest.fixture
def store(tmp_path):
    keys = [f"{n:064x}" for n in range(3)]
    store = Store(tmp_path, {"network": "toy", "layers": {"8": "fc"}})
    shapes = {
        name: (3, 2, 4) if name.endswith("@exact") else (3, 6) for name in COLUMNS
    }
    store.append(keys, {name: np.ones(shape) for name, shape in shapes.items()})
    store.write_rows(Row(k, f"{k}.jpg", k) for k in keys)
    return store


def test_all_that_the_store_has_is_offered_on_its_side(store):
    offer = make_offer(store)
    assert set(offer.forward) == {"x7", "pow(x7,0.5)", "x8", "x:trunk"}
    gradients = {"dW8", "pow(dW8,0.5)", "dW8+x7", "dW8@3x2", "dW:trunk@exact"}
    assert set(offer.gradient) == gradients
    assert {factor.name for factor in offer.factors} == set(COLUMNS)


@pytest.mark.parametrize("name", ["dW8@3x2", "dW:trunk@exact", "whiten(dW8@3x2)+x7"])
def test_every_gradient_can_be_started_with(store, name):
    offer = make_offer(store, f"x8,{name}")
    assert offer.gradient[0] == name
    assert offer.forward[0] == "x8"

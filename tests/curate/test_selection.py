import numpy as np
import pytest

from deepfishing.core.kernels import KernelProduct, KernelSum, gram
from deepfishing.core.rank_one import RankOne, l2_normalize
from deepfishing.curate import choose_rows, selection
from deepfishing.errors import FeatureError, OptionError
from deepfishing.store import Row, Store


def naive(features, n, labelled=(), weights=None):
    """Greedy choice that measures every image each time, on the whole Gram matrix."""
    K = np.maximum(gram(features), 0).astype(np.float32)
    weights = np.ones(len(K)) if weights is None else weights
    best = K[:, list(labelled)].max(axis=1, initial=0)
    chosen = []
    for _ in range(n):
        gains = weights @ np.maximum(K - best[:, None], 0)
        gains[[*labelled, *chosen]] = -1
        chosen.append(int(gains.argmax()))
        best = np.maximum(best, K[:, chosen[-1]])
    return chosen


def grouped(rng, n, d, groups):
    return l2_normalize(
        rng.normal(size=(groups, d))[rng.integers(groups, size=n)]
        + 0.5 * rng.normal(size=(n, d))
    )


def gradients(rng, n, groups):
    both = grouped(rng, n, 22, groups)
    return RankOne(
        *(l2_normalize(f.astype(np.float32)) for f in np.split(both, [16], axis=1))
    )


def coverage(features, chosen):
    """F of the images chosen, as a share of all: the mean similarity to the nearest of them."""
    return float(
        np.maximum(gram(features, features[np.asarray(chosen)]).max(axis=1), 0).mean()
    )


def numbers(steps):
    return [step.number for step in steps]


@pytest.mark.parametrize("kind", ["array", "gradient", "sum", "product"])
def test_the_lazy_choice_is_the_greedy_one(rng, kind):
    x, delta = grouped(rng, 300, 8, 20), grouped(rng, 300, 5, 9)
    features = {
        "array": x,
        "gradient": RankOne(x, delta),
        "sum": KernelSum((x, RankOne(x, delta)), weights=(1.0, 2.0)),
        "product": KernelProduct((x, delta)),
    }[kind]
    weights = rng.random(300)
    found = choose_rows(features, 25, labelled=[3, 77], weights=weights)
    assert numbers(found) == naive(features, 25, [3, 77], weights)


def test_the_choice_among_5000_is_that_of_the_whole_matrix_kept_or_not(
    rng, monkeypatch
):
    features = gradients(rng, 5000, 40)
    expected = naive(features, 4)
    assert numbers(choose_rows(features, 4)) == expected
    monkeypatch.setattr(selection, "MAX_GRAM_BYTES", 0)
    assert numbers(choose_rows(features, 4)) == expected


def test_by_vectors_and_a_sample_nearly_as_much_is_covered(rng, monkeypatch):
    features = gradients(rng, 1500, 25)
    monkeypatch.setattr(selection, "CLIENTS", 500)
    monkeypatch.setattr(selection, "LANDMARKS", 256)
    exact, nearly = (
        numbers(choose_rows(features, 20, exact=how)) for how in (True, False)
    )
    assert coverage(features, nearly) > 0.97 * coverage(features, exact)


def test_gains_fall_and_sum_up_to_what_is_covered(rng):
    x = grouped(rng, 100, 8, 20)
    gains = [step.gain for step in choose_rows(x, 30)]
    assert gains == sorted(gains, reverse=True)
    assert sum(gains) == pytest.approx(coverage(x, numbers(choose_rows(x, 30))))


def test_photos_that_are_the_same_are_chosen_once(rng):
    x = np.repeat(grouped(rng, 3, 8, 3), 4, axis=0)
    assert sorted(number // 4 for number in numbers(choose_rows(x, 12))) == [0, 1, 2]
    assert numbers(choose_rows(x[:1], 5)) == [0]
    assert numbers(choose_rows(x[:4], 5, labelled=[2])) == []


@pytest.mark.parametrize("wrong", [{"n": 0}, {"n": 1, "weights": -np.ones(3)}])
def test_what_cannot_be_is_refused(wrong):
    with pytest.raises(OptionError, match="must be"):
        choose_rows(np.eye(3), **wrong)


@pytest.mark.parametrize("number", [0, 3])
@pytest.mark.parametrize("value", [np.nan, np.inf])
@pytest.mark.parametrize("exact", [True, False])
def test_features_that_are_not_finite_are_refused(rng, number, value, exact):
    features = np.abs(rng.normal(size=(20, 4)))
    features[number, 2] = value
    with pytest.raises(FeatureError, match="must be finite, got NaN or infinity"):
        choose_rows(features, 3, exact=exact)


def test_photos_are_chosen_by_prototypes_where_there_are_enough_to_make_a_head_of(
    tmp_path, rng
):
    for n, expected in ((99, "x7"), (100, "2*x7+own(x7,64)+pow(own(x7),0.5)")):
        store = Store(
            tmp_path / f"{n}", {"network": "toy", "layers": {"8": "fc"}}, "float32"
        )
        keys = [f"{number:064x}" for number in range(n)]
        store.append(keys, {"x7": rng.normal(size=(n, 8)).astype(np.float32)})
        store.write_rows(Row(key, key, key) for key in keys)
        photos = selection.open_photos(store)
        assert photos.recipe.name == expected
        assert len({pick.id for pick in selection.choose_photos(photos, 5)}) == 5

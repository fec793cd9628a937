import numpy as np
import pytest
from sklearn.svm import SVC

from deepfishing.core.kernels import gram
from deepfishing.core.metrics import average_precision
from deepfishing.core.recipes import parse_recipe
from deepfishing.core.recipes.language import (
    best_recipe,
    candidates,
    forward_prior,
    prior,
)
from deepfishing.errors import FeatureError
from deepfishing.learn.auto import FEW_LABELS, choose, looked_at
from deepfishing.learn.choice import at_temperature
from deepfishing.learn.folds import FOLDS, make_folds, validation_groups
from deepfishing.learn.pool import Pool

LAYERS = {7: "fc7", 8: "fc8"}


def collection(rng, informative, n=90, classes=3, strength=8.0):
    """Factors of which only the named ones know the class of an image."""
    shown = np.arange(n) % classes
    labels = np.where(shown[:, None] == np.arange(classes), 1, -1)
    arrays = {}
    for name, width in (("x6", 12), ("x7", 11), ("delta7", 10), ("delta8", 9)):
        noise = rng.normal(size=(n, width))
        # as behind a rectifier
        noise = np.abs(noise) if name.startswith("x") else noise
        signal = (
            strength * np.eye(classes, width)[shown] if name in informative else 0.0
        )
        arrays[name] = (noise + signal).astype(np.float32)
    return arrays, labels


def by_name(choice):
    return {
        one.recipe: one for one in choice.tried if one.cost == 1 and one.tau is None
    }


def test_the_judge_is_the_cross_validated_machine(rng):
    """Compared with scikit-learn's, trained without each fold on the kernel of the recipe."""
    arrays, labels = collection(rng, {"x7", "delta8"}, strength=2.0)
    found = by_name(choose(arrays, labels, LAYERS))
    folds = make_folds(labels, validation_groups(arrays)).number
    for name in ("x7", "(2*x6+1)*(dW7+x7)", "pow(dW8,0.5)+dW8+dW7", "x6*(dW7+x7)"):
        K = gram(parse_recipe(name, LAYERS).fit(arrays)(arrays))
        ap = []
        for column in labels.T:
            scores = np.empty(len(K))
            for fold in range(FOLDS):
                rest, held = (
                    np.flatnonzero(folds != fold),
                    np.flatnonzero(folds == fold),
                )
                svm = SVC(kernel="precomputed").fit(K[np.ix_(rest, rest)], column[rest])
                scores[held] = svm.decision_function(K[np.ix_(held, rest)])
            ap.append(average_precision(column, scores, "area"))
        # it stops near the optimum
        assert found[name].map == pytest.approx(np.mean(ap), abs=1.5)


def test_forward_features_are_taken_where_gradients_know_nothing_more(rng):
    arrays, labels = collection(rng, {"x7"})
    choice = choose(arrays, labels, LAYERS)
    assert choice.recipe == "x7"
    assert set(by_name(choice)) == set(candidates(LAYERS))


def test_a_gradient_is_taken_where_only_its_delta_knows_the_class(rng):
    arrays, labels = collection(rng, {"delta8"})
    choice = choose(arrays, labels, LAYERS)
    assert parse_recipe(choice.recipe, LAYERS).is_gradient
    assert by_name(choice)[choice.recipe].map > by_name(choice)["x7"].map + 10


def test_what_is_taken_is_preferred_or_the_simplest_of_those_that_are_as_good(rng):
    arrays, labels = collection(rng, {"delta7", "delta8"}, n=150, strength=2.0)
    choice = choose(arrays, labels, LAYERS)
    as_good = [
        one.recipe for one in by_name(choice).values() if one.behind <= one.error
    ]
    wanted = [prior(LAYERS), best_recipe(LAYERS), forward_prior(LAYERS), *as_good]
    assert choice.recipe == next(name for name in wanted if name in as_good)
    assert choice.recipe != "x7"
    assert choice.gain.low > 0


@pytest.mark.parametrize(("classes", "n"), [(1, 60), (2, 60), (8, 80)])
def test_no_gain_is_claimed_where_labels_are_noise(classes, n):
    """The interval of the stated gain includes 0, and with many labels x7 is kept."""
    runs, includes, kept = 10, 0, 0
    for run in range(runs):
        rng = np.random.default_rng([run, classes])
        arrays, _ = collection(rng, set(), n=n)
        shown = rng.permutation(n) % max(classes, 2)
        labels = np.where(shown[:, None] == np.arange(classes), 1, -1)
        choice = choose(arrays, labels, LAYERS)
        includes += choice.gain is None or choice.gain.low <= 0 <= choice.gain.high
        kept += choice.recipe == "x7"
    assert includes >= 0.9 * runs
    assert n / max(classes, 2) < FEW_LABELS or kept >= 0.8 * runs


def test_nearly_the_same_photographs_do_not_vouch_for_each_other(rng):
    """x6 knows each photograph but no class; every photograph is there three times."""
    arrays, labels = collection(rng, {"delta8"}, n=60)
    thrice = {name: np.repeat(values, 3, axis=0) for name, values in arrays.items()}
    assert by_name(choose(thrice, np.repeat(labels, 3, axis=0), LAYERS))["x7"].map < 70


@pytest.mark.parametrize("layers", [LAYERS, {6: "a", 7: "b", 8: "c"}, {8: "fc"}])
@pytest.mark.parametrize("each", [1, 3])
def test_few_examples_are_left_out_one_at_a_time(rng, each, layers):
    arrays, labels = collection(rng, {"x7"}, n=3 * each)
    arrays["x5"] = arrays["x6"]
    choice = choose(arrays, labels, layers)
    assert each < FEW_LABELS
    assert bool(choice.tried) == (each > 1)
    assert choice.why.startswith(f"{each} label")
    gram(parse_recipe(choice.recipe, layers).fit(arrays)(arrays))


def test_a_higher_cost_is_taken_where_it_is_clearly_better(rng):
    """The classes differ a little, and all images differ much in something else."""
    _, labels = collection(rng, {}, n=120, classes=4)
    other = rng.normal(size=(120, 4))
    x = np.concatenate(
        [other, 0.06 * labels + 0.02 * rng.normal(size=(120, 4))], axis=1
    )
    choice = choose({"x7": x}, labels, LAYERS, recipe="x7")
    maps = {one.cost: one.map for one in choice.tried}
    assert {one.recipe for one in choice.tried} == {"x7"}
    assert choice.cost > 1
    assert maps[choice.cost] > maps[1.0] + 1


def test_difficult_examples_and_a_class_without_positives_do_no_harm(rng):
    arrays, labels = collection(rng, {"x7"})
    labels = np.concatenate([labels, np.full((len(labels), 1), -1)], axis=1)
    labels[:5, 1] = 0
    assert choose(arrays, labels, LAYERS).recipe == "x7"


def test_two_choices_of_the_same_images_are_the_same(rng):
    arrays, labels = collection(rng, {"delta7", "x7"})
    assert choose(arrays, labels, LAYERS) == choose(arrays, labels, LAYERS)


def test_auto_makes_do_with_the_factors_that_there_are(rng):
    arrays, labels = collection(rng, {"delta8"})
    some = {name: arrays[name] for name in ("x7", "delta8")}
    assert {one.recipe for one in choose(some, labels, LAYERS).tried} <= {
        *("x7", "pow(x7,0.5)", "rbf(x7,2)", "rbf(pow(x7,0.5),2)"),
        *(
            "dW8",
            "dW8+x7",
            "pow(dW8,0.5)",
            "pow(dW8,0.5)+dW8",
            "pow(dW8,0.5)+pow(x7,0.5)",
        ),
    }
    with pytest.raises(
        FeatureError, match="features that can be compared, got delta8; extract x7"
    ):
        choose({"delta8": arrays["delta8"]}, labels, LAYERS)


def test_auto_takes_what_there_is_where_none_of_the_usual_features_is(rng):
    arrays, labels = collection(rng, {"delta8"})
    own = {"in:block.fc": arrays["x7"], "delta:block.fc": arrays["delta8"]}
    assert choose(own, labels, LAYERS).recipe == "dW:block.fc"
    assert (
        choose({**own, "x:block": arrays["x7"]}, labels, LAYERS).recipe == "dW:block.fc"
    )
    few = choose(own, labels[:, :1], LAYERS, recipe="dW:block.fc")
    assert few.recipe == "dW:block.fc"


def test_temperatures_are_tried_where_the_scores_are_there(rng):
    arrays, labels = collection(rng, {"x7"})
    arrays["y8"] = rng.normal(size=(90, 9)).astype(np.float32)
    arrays["delta8"] = at_temperature(arrays, 2.0)["delta8"]
    tried = {
        (one.recipe, one.tau)
        for one in choose(arrays, labels, LAYERS, tempered=2.0).tried
    }
    assert {("dW8", 4.0), ("dW8", 8.0), ("pow(dW8,0.5)", 1.0)} < tried
    assert all(one.tau is None for one in choose(arrays, labels, LAYERS).tried)


@pytest.mark.parametrize(
    "scale", [3.0, 0.5], ids=["scaled scores", "mean of two heads"]
)
def test_temperatures_are_not_tried_where_delta_is_that_of_other_scores(rng, scale):
    arrays, labels = collection(rng, {"x7"})
    arrays["y8"] = rng.normal(size=(90, 9)).astype(np.float32)
    arrays["delta8"] = (
        scale * at_temperature({"y8": scale * arrays["y8"]}, 2.0)["delta8"]
    )
    choice = choose(arrays, labels, LAYERS, tempered=2.0)
    assert all(one.tau is None for one in choice.tried)


def test_delta_of_another_temperature_is_that_of_autograd(rng):
    torch = pytest.importorskip("torch")
    from deepfishing.networks.objectives import cross_entropy

    y = torch.tensor(rng.normal(size=(4, 7)), requires_grad=True)
    (delta,) = torch.autograd.grad(cross_entropy(tau=4.0)(y), y)
    found = at_temperature({"y8": y.detach().numpy()}, 4.0)["delta8"]
    np.testing.assert_allclose(found, delta.numpy(), rtol=1e-6, atol=1e-9)


def test_of_very_many_classes_some_are_looked_at_with_enough_examples(rng):
    shown = rng.integers(0, 500, 10_000)
    labels = np.where(shown[:, None] == np.arange(500), 1, -1).astype(np.int8)
    counts = (labels[looked_at(labels)] == 1).sum(axis=0)
    assert np.median(counts[counts > 0]) >= 15
    assert len(looked_at(labels[:300])) == 300


def test_auto_needs_a_classifier():
    with pytest.raises(FeatureError, match="'auto' needs a network with a classifier"):
        parse_recipe("auto", {7: "fc"})


def test_one_label_per_class_in_a_pool_uses_neighbours():
    """Which is what was best on average; without a pool there are none."""
    rng = np.random.default_rng(0)
    arrays = {"x7": rng.normal(size=(4, 6)), "delta8": rng.normal(size=(4, 5))}
    labels = np.where(np.arange(4)[:, None] == np.arange(4), 1, -1)
    layers, photos = {8: "fc"}, Pool({"x7": rng.normal(size=(500, 6))})
    alone, pooled = (
        choose(arrays, labels, layers, pool=pool) for pool in (None, photos)
    )
    assert "smooth" not in alone.recipe
    assert "smooth" in pooled.recipe
    assert "neighbours" in pooled.why


@pytest.mark.parametrize("each", [2, 30])
def test_auto_forward_takes_no_gradient_and_forward_no_pool(rng, each):
    arrays, labels = collection(rng, {"delta8"}, n=3 * each)
    photos = Pool({"x7": rng.normal(size=(200, 11))})
    for kind in ("auto-forward", "forward"):
        choice = choose(arrays, labels, LAYERS, kind=kind, pool=photos)
        tried = {choice.recipe, *(one.recipe for one in choice.tried)}
        recipes = [parse_recipe(name, LAYERS) for name in tried]
        assert not any(recipe.is_gradient for recipe in recipes)
        assert kind == "auto-forward" or not any(recipe.uses_pool for recipe in recipes)


def test_a_pool_learns_a_part_once(rng):
    pool = Pool({"x7": rng.normal(size=(60, 5))})
    pool.fit(parse_recipe("own(x7,4)"), {"x7": np.eye(5)})
    first = dict(pool.learnt)
    pool.fit(parse_recipe("x7+own(x7,4)"), {"x7": np.eye(5)})
    assert all(pool.learnt[name] is values for name, values in first.items())


@pytest.mark.parametrize(
    "pool", [{"x6": (300, 12)}, {"x7": (30, 11)}], ids=["no x7", "too small"]
)
def test_a_pool_of_no_use_is_not_used(rng, pool):
    arrays, labels = collection(rng, {"x7"}, n=12)
    photos = Pool({name: rng.normal(size=shape) for name, shape in pool.items()})
    choice = choose(arrays, labels, LAYERS, pool=photos)
    assert not parse_recipe(choice.recipe, LAYERS).uses_pool


def test_prototypes_that_are_cross_validated_have_not_seen_the_fold():
    """Otherwise they fit the photos that are held out better than new ones."""
    rng = np.random.default_rng(0)
    scene = np.arange(90) // 3
    x = rng.normal(size=(30, 40))[scene] + rng.normal(size=(90, 40))
    x = x.astype(np.float32)
    labels = np.where(scene[:, None] % 2 == np.arange(2), 1, -1)
    found = by_name(choose({"x7": x}, labels, {8: "-"}))
    folds = make_folds(labels, validation_groups({"x7": x}))
    recipe = parse_recipe("own(x7,64)")
    ap = []
    for column in labels.T:
        scores = np.empty(len(x))
        for rest, held in folds:
            value = recipe.fit({"x7": x}, {"x7": x[rest]})({"x7": x})
            K = gram(value)
            svm = SVC(kernel="precomputed").fit(K[np.ix_(rest, rest)], column[rest])
            scores[held] = svm.decision_function(K[np.ix_(held, rest)])
        ap.append(average_precision(column, scores, "area"))
    assert found["own(x7,64)"].map == pytest.approx(np.mean(ap), abs=1.5)

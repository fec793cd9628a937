import json
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from deepfishing.core.recipes import parse_recipe
from deepfishing.errors import DatasetError, FeatureError, WeightsError
from deepfishing.extraction.settings import Settings
from deepfishing.images.item import Item
from deepfishing.images.preprocess import Preprocess
from deepfishing.learn.labelled import read_labels
from deepfishing.learn.model import Model
from deepfishing.learn.svm import train_svm
from deepfishing.learn.training import train_model
from deepfishing.networks.reference import NetworkRef

LAYERS = {7: "fc7", 8: "fc8"}
SETTINGS = Settings(
    network=NetworkRef(
        name="toy",
        weights_sha256="0" * 64,
        layers={7: "fc7", 8: "fc8"},
        preprocess=Preprocess(8, 8, mean=(0.0,) * 3, std=(1.0,) * 3),
    )
)
UNSAID = ("head", "scores", "source")  # by version 0.1
OLD = {name: value for name, value in SETTINGS.as_dict().items() if name not in UNSAID}
RECIPES = [
    "x7",
    "dW7*x7",
    "whiten(dW7)+pow(whiten(x7,0.123456789),0.5)",
    "x7;x6",
    "dW8@exact",
]


def factors(rng, n):
    widths = {
        "x6": (5,),
        "delta7": (4,),
        "x7": (6,),
        "x7@exact": (3, 6),
        "delta8@exact": (3, 4),
    }
    return {k: rng.normal(size=(n, *d)).astype(np.float32) for k, d in widths.items()}


@pytest.fixture
def arrays(rng):
    return factors(rng, 60)


@pytest.fixture
def labels(rng):
    return np.where(rng.random((60, 3)) < 0.4, 1, -1).astype(np.int8)


def train(recipe, arrays, labels, **options):
    classes = ("cat", "dog", "owl")
    return train_model(recipe, arrays, labels, classes, settings=SETTINGS, **options)


@pytest.fixture
def saved(arrays, labels, tmp_path):
    train("whiten(dW7,0.2)+x7", arrays, labels).save(tmp_path / "m")
    return tmp_path / "m"


@pytest.mark.parametrize("recipe", RECIPES)
def test_scores_are_those_of_the_machines_on_all_training_images(
    rng, arrays, labels, recipe
):
    model = train(recipe, arrays, labels, C=0.5)
    fitted = parse_recipe(recipe, LAYERS).fit(arrays)
    svm = train_svm(fitted(arrays), labels, C=0.5, calibrated=True)
    others = factors(rng, 9)
    expected = svm.decision_function(fitted(others))
    np.testing.assert_allclose(model.scores(others), expected, atol=1e-6)
    slope, offset = svm.calibration
    by_hand = 1 / (1 + np.exp(-slope * expected - offset))
    np.testing.assert_allclose(model.probabilities(others), by_hand, atol=1e-6)


@pytest.mark.parametrize("recipe", RECIPES)
def test_a_saved_and_loaded_model_gives_the_same_scores(
    rng, arrays, labels, recipe, tmp_path
):
    model = train(recipe, arrays, labels, C="cv")
    model.save(tmp_path / "m")
    loaded = Model.load(tmp_path / "m")
    others = factors(rng, 9)
    np.testing.assert_allclose(loaded.scores(others), model.scores(others), atol=1e-6)
    np.testing.assert_allclose(
        loaded.probabilities(others), model.probabilities(others), atol=1e-6
    )
    assert (loaded.recipe, loaded.classes, loaded.factors) == (
        model.recipe,
        model.classes,
        model.factors,
    )
    assert loaded.settings == SETTINGS
    np.testing.assert_array_equal(loaded.svm.cost, model.svm.cost)


def test_only_support_vectors_are_kept(rng, labels):
    apart = {"x7": np.repeat(labels, 2, axis=1) + 0.1 * rng.normal(size=(60, 6))}
    model = train("x7", apart, labels, C=100.0)
    n = len(model.support["x7"])
    assert 0 < n < 40
    assert model.svm.dual.shape == (n, 3)
    assert model.svm.dual.any(axis=1).all()


def test_a_fitted_recipe_is_its_state(rng, arrays):
    recipe = parse_recipe("whiten(dW7)+pow(whiten(x7),0.5)", LAYERS)
    fitted = recipe.fit(arrays)
    assert {k: v.shape for k, v in fitted.state.items()} == {
        "whiten(dW7)/0": (5, 5),
        "whiten(dW7)/1": (4, 4),
        "whiten(x7)/0": (6, 6),
    }
    again, others = recipe.load(fitted.state), factors(rng, 4)
    np.testing.assert_array_equal(
        again(others).parts[0].delta, fitted(others).parts[0].delta
    )
    with pytest.raises(FeatureError, match=r"whiten\(dW7\)"):
        recipe.load({})


def test_the_name_of_a_recipe_keeps_all_digits():
    for name in (
        "pow(x7,0.512345678)",
        "whiten(x7,0.123456789)",
        "pow(x7,0.5)",
        "pow(x7,2)",
    ):
        assert parse_recipe(name, LAYERS).name == name


def test_a_model_is_json_and_safetensors_and_nothing_else(saved):
    names = {path.name for path in saved.iterdir()}
    assert names == {".lock", "model.json", "model.safetensors"}
    facts = json.loads((saved / "model.json").read_text())
    assert facts["settings"]["weights_sha256"] == "0" * 64
    assert facts["recipe"] == "whiten(dW7,0.2)+x7"
    assert facts["classes"] == ["cat", "dog", "owl"]


def cut(saved):
    path = saved / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-100])


def change_facts(**changes):
    def change(saved):
        path = saved / "model.json"
        facts = {**json.loads(path.read_text()), **changes}
        facts.pop("seal", None)
        path.write_text(json.dumps(facts))

    return change


def resave(change):
    """Other numbers with the right hash, as if they had been saved so."""

    def damage(saved):
        import hashlib

        path = saved / "model.safetensors"
        tensors = load_file(path)
        change(tensors)
        save_file(tensors, path)
        change_facts(sha256={path.name: hashlib.sha256(path.read_bytes()).hexdigest()})(
            saved
        )

    return damage


def set_nan(tensors):
    tensors["bias"][0] = np.nan


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (cut, "sha256 must be"),
        (lambda m: (m / "model.safetensors").unlink(), "copy the whole folder"),
        (lambda m: (m / "model.json").unlink(), "deepfish train"),
        (lambda m: (m / "model.json").write_text('{"format"'), "no JSON"),
        (lambda m: (m / "model.json").write_bytes(b"\xff\xfe\x00"), "no JSON"),
        (lambda m: (m / "model.json").write_text("[" * 100_000), "no JSON"),
        (lambda m: (m / "model.json").write_text("[]"), "format of a model"),
        (change_facts(format="deepfishing-model-9"), "deepfishing-model-9"),
        (change_facts(sha256=None), "sha256 must be None"),
        (change_facts(classes=["cat", "dog"]), "must be of shape"),
        (change_facts(classes=7), "not iterable"),
        (change_facts(recipe="dw7"), "did you mean dW7"),
        (change_facts(recipe="x7"), "must have ('x7',), got"),
        (change_facts(recipe="whiten(dW7,0.3)+x7"), "must hold whiten(dW7,0.3)"),
        (change_facts(recipe="dW8"), "delta8"),
        (change_facts(settings={}), "network must be text"),
        (change_facts(settings=[]), "damaged"),
        (
            change_facts(settings=OLD),
            "as in version 0.1; make the store or the model again",
        ),
        (change_facts(trained=[True]), "one per class"),
        (resave(set_nan), "finite"),
        (resave(lambda t: t.pop("dual")), "dual"),
        (resave(lambda t: t.update({"factor/x7": t["factor/x7"][1:]})), "images"),
        (
            resave(lambda t: t.update({"state/whiten(dW7,0.2)/0": np.eye(2)})),
            "model is damaged",
        ),
        (resave(lambda t: t.pop("state/whiten(dW7,0.2)/1")), "model is damaged"),
    ],
)
def test_a_damaged_or_foreign_model_is_told_in_one_line(saved, damage, words):
    damage(saved)
    with pytest.raises(WeightsError) as error:
        Model.load(saved)
    message = str(error.value)
    assert words in message
    assert str(saved) in message
    assert "\n" not in message


def test_a_model_of_features_that_an_earlier_version_projected_is_to_be_trained_again(
    rng, labels, tmp_path
):
    projected = {"dW7@4x4": rng.normal(size=(60, 16)).astype(np.float32)}
    train("dW7@4x4", projected, labels).save(tmp_path / "m")
    assert Model.load(tmp_path / "m").columns == ("dW7@4x4",)
    change_facts(projection=None)(tmp_path / "m")
    with pytest.raises(
        WeightsError, match=r"an earlier version projected.*deepfish train"
    ):
        Model.load(tmp_path / "m")


def test_a_model_cannot_be_saved_where_a_file_stands(arrays, labels, tmp_path):
    (tmp_path / "m").write_text("mine")
    with pytest.raises(WeightsError, match="cannot be written"):
        train("x7", arrays, labels).save(tmp_path / "m")


def test_a_model_needs_a_class_with_and_without(arrays, labels):
    with pytest.raises(DatasetError, match="cat, dog, owl"):
        train("x7", arrays, np.ones_like(labels))


def items(*ids, labels=None):
    return [Item(i, Path("p") / i, labels) for i in ids]


def test_labels_are_folders_or_the_images_own(tmp_path):
    found = read_labels(items("b/1.jpg", "a/x/2.jpg"))
    assert found.classes == ("a", "b")
    assert found.rows["b/1.jpg"].tolist() == [-1, 1]
    own = [*items("1", labels=("cat", "dog")), *items("2", labels=()), *items("3")]
    found = read_labels(own)
    known, rows = found.of(own)
    assert [item.id for item in known] == ["1", "2"]
    assert rows.tolist() == [[1, 1], [-1, -1]]


def test_labels_come_from_a_table_by_id(tmp_path):
    table = tmp_path / "labels.csv"
    table.write_text("path,labels\n2.jpg,cat;dog\n1.jpg,dog\n")
    images = items("1.jpg", "2.jpg", "3.jpg")
    known, rows = read_labels(images, table).of(images)
    assert [item.id for item in known] == ["1.jpg", "2.jpg"]
    assert rows.tolist() == [[-1, 1], [1, 1]]


@pytest.mark.parametrize(
    ("name", "text", "words"),
    [
        ("l.csv", "path,label\nnine.jpg,cat\n", "first 'nine.jpg'"),
        ("l.csv", "path\n1.jpg\n", "column label"),
        ("l.csv", "path,label\n1.jpg,cat\n", "got only 'cat'"),
        ("l.json", "{}", "must be a table"),
    ],
)
def test_tables_that_cannot_be_labels_are_refused(tmp_path, name, text, words):
    (tmp_path / name).write_text(text)
    with pytest.raises(DatasetError, match=words) as error:
        read_labels(items("1.jpg", "2.jpg"), tmp_path / name)
    assert str(tmp_path) in str(error.value)


def test_images_outside_of_class_folders_are_refused():
    with pytest.raises(DatasetError, match=r"got '1.jpg', and no other"):
        read_labels(items("1.jpg", "2.jpg"))
    with pytest.raises(DatasetError, match="got only 'a'"):
        read_labels(items("a/1.jpg", "a/2.jpg"))


def test_images_outside_of_class_folders_are_not_used_and_that_is_said():
    images = items("a/1.jpg", "2.jpg", "b/3.jpg")
    found = read_labels(images)
    assert found.rows.keys() == {"a/1.jpg", "b/3.jpg"}
    told = "not used: 1 image that is not labelled for training, such as 2.jpg"
    assert found.unused(images) == told
    assert found.unused(images[::2]) == ""


def test_of_a_train_folder_beside_a_test_folder_only_train_is_trained_on():
    images = items("train/a/1.jpg", "train/b/2.jpg", "test/a/3.jpg", "val/c/4.jpg")
    found = read_labels(images)
    assert found.classes == ("a", "b")
    assert found.rows.keys() == {"train/a/1.jpg", "train/b/2.jpg"}
    assert read_labels(items("train/a/1.jpg", "train/b/2.jpg")).classes == ("a", "b")

import csv
import json
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from deepfishing.core.recipes import parse_recipe
from deepfishing.extraction.extract import Extractor
from deepfishing.learn.model import Model
from deepfishing.learn.svm import train_svm
from deepfishing.networks.load import load_network

SMALL = ("--features", "pow(dW8,0.5)+x7", "--weights", "random")


def lines(ran):
    assert ran.code == 0, ran.err
    return [json.loads(line) for line in ran.out.splitlines()]


def features(network, paths, recipe, fitted=None):
    """Factors computed at once, without a store."""
    batches = list(Extractor(network, recipe.factors)(paths))
    return {
        f: np.concatenate([batch.factors[f] for batch in batches])
        for f in recipe.columns
    }


@pytest.fixture
def model(deepfish, shapes):
    """Trained on `shapes/train`, with a random network."""
    ran = deepfish("train", shapes, "model", *SMALL)
    assert ran.code == 0, ran.err
    return shapes.parent / "model"


def test_predictions_are_those_of_the_machines_computed_directly(
    deepfish, shapes, model
):
    found = lines(deepfish("predict", model, shapes / "test", "--json"))
    network = load_network("efficientnet-lite0", "random")
    recipe = parse_recipe("pow(dW8,0.5)+x7", network.layers)
    train = sorted((shapes / "train").rglob("*.jpg"))
    test = sorted((shapes / "test").rglob("*.jpg"))
    is_light = np.array([path.parent.name == "light" for path in train])
    labels = np.where(np.stack([~is_light, is_light], axis=1), 1, -1)
    arrays = features(network, train, recipe)
    fitted = recipe.fit(arrays)
    svm = train_svm(fitted(arrays), labels, calibrated=True)
    other = fitted(features(network, test, recipe))
    assert [one["image"] for one in found] == [
        p.relative_to(shapes / "test").as_posix() for p in test
    ]
    # the store holds half precision, so the last digits differ
    for what, expected in (
        ("scores", svm.decision_function(other)),
        ("probabilities", svm.probabilities(other)),
    ):
        ours = np.array([[one[what]["dark"], one[what]["light"]] for one in found])
        np.testing.assert_allclose(ours, expected, atol=2e-3)


def test_light_and_dark_are_told_apart_and_the_table_has_the_best_first(
    deepfish, shapes, model
):
    ran = deepfish("predict", model, shapes / "test", "--top", "1")
    assert ran.code == 0, ran.err
    table = [line.split() for line in ran.out.splitlines()]
    assert len(table) == 12
    assert all(image.split("/")[0] == best for image, best, _ in table)
    assert all(0.5 < float(chance) <= 1 for _, _, chance in table)
    both = deepfish("predict", model, shapes / "test" / "dark" / "0.jpg").out.split()
    assert both[0] == "0.jpg"
    assert float(both[2]) >= float(both[4])


def test_predict_takes_several_paths_and_writes_complete_rows(
    deepfish, shapes, model, tmp_path
):
    test = shapes / "test"
    paths = [
        test / "light",
        test / "dark" / "1.jpg",
        test / "dark" / "1.jpg",
        test / "dark",
    ]
    ran = deepfish(
        "predict", model, *paths, "--top", "1", "--out", tmp_path / "predictions.csv"
    )
    assert ran.code == 0, ran.err
    rows = [line.split("\t") for line in ran.out.splitlines()]
    images = [row[0] for row in rows]
    assert len(images) == len(set(images)) == 12
    assert images[0] == str(test / "light" / "0.jpg")
    assert all(Path(image).parent.name == best for image, best, _ in rows)
    with (tmp_path / "predictions.csv").open(encoding="utf-8") as file:
        written = list(csv.DictReader(file))
    assert [one["path"] for one in written] == images
    assert [one["label"] for one in written] == [best for _, best, _ in rows]
    missing = deepfish("predict", model, test / "light", "absent.jpg")
    assert missing.code == 1
    assert "absent.jpg, which does not exist" in missing.err


def test_the_model_folder_is_all_that_predict_needs(deepfish, shapes, model, tmp_path):
    before = lines(deepfish("predict", model, shapes / "test", "--json"))
    moved = tmp_path / "elsewhere"
    moved.mkdir()
    for name in ("model.json", "model.safetensors"):
        shutil.move(model / name, moved / name)
    shutil.rmtree(model)
    shutil.rmtree(shapes / "train")
    assert lines(deepfish("predict", moved, shapes / "test", "--json")) == before


def test_unreadable_images_are_listed_and_left_out(deepfish, shapes):
    (shapes / "train" / "dark" / "bad.jpg").write_text("no image")
    (shapes / "test" / "dark" / "bad.jpg").write_text("no image")
    ran = deepfish("train", shapes, "model", *SMALL)
    assert ran.code == 0, ran.err
    assert ran.err.count("left out") == 1
    assert "12 images" in ran.out
    ran = deepfish("predict", "model", shapes / "test")
    assert ran.code == 0
    assert "bad.jpg" in ran.err
    assert len(ran.out.splitlines()) == 12
    found = lines(deepfish("predict", "model", shapes / "test", "--json"))
    assert [one["image"] for one in found if "error" in one] == ["dark/bad.jpg"]
    ran = deepfish("predict", "model", shapes / "test" / "dark" / "bad.jpg")
    assert ran.code == 1


def test_other_weights_are_refused_with_both_hashes(deepfish, shapes, model):
    facts = json.loads((model / "model.json").read_text())
    facts["settings"]["source"]["kind"] = "published"
    del facts["seal"]
    (model / "model.json").write_text(json.dumps(facts))
    ran = deepfish("predict", model, shapes / "test")
    assert ran.code == 1
    assert "random-0" in ran.err
    assert load_network().weights_sha256 in ran.err
    assert ran.err.count("\n") == 1
    assert deepfish("predict", model, shapes / "test", "--weights", "random").code == 0


def test_a_store_trains_the_same_model_without_the_network(
    deepfish, shapes, model, tmp_path
):
    ran = deepfish(
        *(
            "extract",
            shapes / "train",
            "s",
            "--weights",
            "random",
            "--features",
            "x7,dW8",
        ),
        *(
            "--precision",
            "int8",
        ),  # in which images are kept if `train` extracts them itself
    )
    assert ran.code == 0, ran.err
    shutil.rmtree(shapes / "train")
    assert deepfish("train", "s", "second", *SMALL).code == 0
    first, second = Model.load(model), Model.load(tmp_path / "second")
    np.testing.assert_allclose(second.svm.bias, first.svm.bias, atol=1e-5)
    np.testing.assert_allclose(second.svm.calibration, first.svm.calibration, rtol=1e-3)
    assert len(lines(deepfish("predict", "second", shapes / "test", "--json"))) == 12
    ran = deepfish("train", "s", "third", "--features", "dW7")
    assert ran.code == 1
    assert "lacks x6, delta7" in ran.err


def test_labels_may_come_from_a_table(deepfish, shapes, tmp_path):
    paths = sorted((shapes / "train").rglob("*.jpg"))
    rows = [
        f"{p.relative_to(shapes).as_posix()},{'day' if i % 2 else 'night'}"
        for i, p in enumerate(paths)
    ]
    (tmp_path / "labels.csv").write_text("\n".join(["path,label", *rows]))
    ran = deepfish("train", shapes, "model", "--labels", "labels.csv", *SMALL, "--json")
    (summary,) = lines(ran)
    assert summary["images"] == 12
    assert list(summary["classes"]) == ["day", "night"]
    # the table alone says where the images are
    table = shapes / "labels.csv"
    table.write_text("\n".join(["path,label", *rows]))
    (alone,) = lines(deepfish("train", table, "other", *SMALL, "--json"))
    assert alone["classes"] == summary["classes"]


def test_a_voc_tree_is_trained_on_one_split(deepfish, shapes, tmp_path):
    root = tmp_path / "voc"
    (root / "JPEGImages").mkdir(parents=True)
    (root / "ImageSets" / "Main").mkdir(parents=True)
    for split, name in (("trainval", "train"), ("test", "test")):
        photos = sorted((shapes / name).rglob("*.jpg"))
        ids = [f"{split}-{path.parent.name}-{path.stem}" for path in photos]
        for path, i in zip(photos, ids, strict=True):
            shutil.copy(path, root / "JPEGImages" / f"{i}.jpg")
        (root / "ImageSets" / "Main" / f"{split}.txt").write_text("\n".join(ids))
        for label in ("dark", "light"):
            rows = [f"{i} {1 if label in i else -1}" for i in ids]
            (root / "ImageSets" / "Main" / f"{label}_{split}.txt").write_text(
                "\n".join(rows)
            )
    arguments = ("--weights", "random", "--features", "x7", "--cost", "cv", "--json")
    (summary,) = lines(deepfish("train", root, "model", *arguments))
    assert summary["images"] == 12
    assert set(summary["classes"]) == {"dark", "light"}


def test_the_summary_has_costs_and_cross_validated_ap(deepfish, shapes):
    ran = deepfish(
        "train",
        shapes,
        "model",
        *SMALL,
        "--cost",
        "vissl",
    )
    assert ran.code == 0, ran.err
    assert "cross-validated AP" in ran.out
    assert "mAP" in ran.out
    assert "cross-validated accuracy 100.0 % (" in ran.out
    assert "always the commonest class: 50.0 %" in ran.out
    facts = json.loads((shapes.parent / "model" / "model.json").read_text())
    assert facts["training"]["C"] == "vissl"


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--cost", "0"], "positive number"),
        (["--cost", "cvv"], "did you mean cv"),
        (["--features", "dw8"], "did you mean dW8"),
        (
            ["--features", "x7,dW8"],
            "one recipe is needed here, got the list 'x7,dW8'; write x7+dW8",
        ),
        (["--labels", "none.csv"], "none.csv"),
        (["--network", "nonet"], "nonet"),
    ],
)
def test_bad_options_of_train_are_one_line(deepfish, shapes, arguments, words):
    ran = deepfish("train", shapes, "model", "--weights", "random", *arguments)
    assert ran.code == 1
    assert words in ran.err
    assert ran.err.count("\n") == 1
    assert not (shapes.parent / "model").exists()


def test_a_folder_that_cannot_be_made_is_refused_before_the_work(
    deepfish, shapes, model, tmp_path, monkeypatch
):
    (tmp_path / "a.txt").write_text("a file")
    words = "must be a folder that can be written to, got a.txt; choose another"
    for name in ("train_on_images", "train_on_store"):
        monkeypatch.setattr(f"deepfishing.cli.train.{name}", None)
    ran = deepfish("train", shapes, "a.txt", "--weights", "random")
    assert (ran.code, ran.err) == (1, f"deepfish: MODEL {words}\n")
    ran = deepfish("predict", model, shapes / "test", "--copy-into", "a.txt")
    assert (ran.code, ran.out) == (1, "")
    assert ran.err == f"deepfish: --copy-into {words}\n"


def test_bad_input_of_predict_is_one_line(deepfish, shapes, model, tmp_path):
    Image.new("RGB", (8, 8)).save(tmp_path / "a.png")
    for arguments, words in [
        (("nowhere", "a.png"), "nowhere"),
        ((model, "none.png"), "none.png"),
        ((model, "a.png", "--top", "0"), "--top"),
        ((shapes, "a.png"), "model.json"),
    ]:
        ran = deepfish("predict", *arguments)
        assert ran.code == 1
        assert words in ran.err
        assert ran.err.count("\n") == 1


def test_train_calls_best_by_its_title_and_has_the_formula_once(deepfish, shapes):
    ran = deepfish(
        "train", shapes, "model", "--weights", "random", "--features", "best"
    )
    assert ran.code == 0, ran.err
    formula = Model.load(shapes.parent / "model").recipe
    assert ran.out.count(formula) == 1
    assert f"best = {formula}\n" in ran.out
    assert "model: best, " in ran.out


def test_auto_is_the_default_and_prints_what_it_tried_and_took(deepfish, shapes):
    ran = deepfish("train", shapes, "chosen", "--weights", "random")
    assert ran.code == 0, ran.err
    facts = json.loads((shapes.parent / "chosen" / "model.json").read_text())
    chosen = facts["training"]["auto"]
    assert facts["recipe"] == chosen["recipe"]
    assert facts["cost"] == [chosen["cost"]] * 2
    assert len({one["recipe"] for one in chosen["tried"]}) > 2
    (marked,) = (line for line in ran.out.splitlines() if line.startswith("* "))
    assert chosen["recipe"] in marked
    assert (
        f"auto: {chosen['recipe']}, cost {chosen['cost']:g}; 6 labels per class"
        in ran.out
    )
    found = lines(deepfish("predict", "chosen", shapes / "test", "--json"))
    right = [one["probabilities"][one["image"].split("/")[0]] > 0.5 for one in found]
    assert all(right)


def few_labels(shapes, tmp_path):
    """Two labels of each class in a table, beside other photos of both classes."""
    paths = sorted((shapes / "train").rglob("*.jpg"))
    chosen = [path for path in paths if path.stem in "01"]
    rows = [
        f"{path.relative_to(shapes).as_posix()},{path.parent.name}" for path in chosen
    ]
    (tmp_path / "few.csv").write_text("\n".join(["path,label", *rows]))
    return tmp_path / "few.csv"


def test_photos_without_labels_are_neighbours_but_not_those_of_the_test_split(
    deepfish, shapes, tmp_path, monkeypatch
):
    monkeypatch.setattr("deepfishing.learn.auto.MIN_POOL", 5)
    table = few_labels(shapes, tmp_path)
    ran = deepfish("train", shapes, "few", "--labels", table, "--weights", "random")
    assert ran.code == 0, ran.err
    facts = json.loads((tmp_path / "few" / "model.json").read_text())["training"]
    assert (facts["images"], facts["pool"]) == (4, 12)
    assert "neighbours and prototypes are of 12 images, labelled or not" in ran.err
    assert "smooth" in facts["auto"]["recipe"]
    # a model predicts and is exported, both without the pool's labels
    found = lines(deepfish("predict", "few", shapes / "test", "--json"))
    assert len(found) == 12
    # a table of the labelled ones as data leaves the others out
    beside = shutil.copy(table, shapes / "few.csv")
    again = deepfish("train", beside, "other", "--weights", "random")
    assert again.code == 0, again.err
    facts = json.loads((tmp_path / "other" / "model.json").read_text())["training"]
    assert facts["images"] == 4
    assert "pool" not in facts


def test_auto_makes_do_with_a_store_that_lacks_a_factor(deepfish, shapes, model):
    ran = deepfish("train", model / "features", "chosen")
    assert ran.code == 0, ran.err
    facts = json.loads((shapes.parent / "chosen" / "model.json").read_text())
    assert not any("dW7" in one["recipe"] for one in facts["training"]["auto"]["tried"])


def test_a_chosen_temperature_is_that_of_the_model(deepfish, shapes, monkeypatch):
    """Predictions compute delta8 with it, and agree with the classifiers trained on it."""
    from deepfishing.learn import auto

    given = ("--weights", "random", "--features", "all", "--precision", "float32")
    assert deepfish("extract", shapes / "train", "s", *given).code == 0
    plain = auto.choose
    with monkeypatch.context() as patch:
        patch.setattr(
            "deepfishing.learn.training.choose",
            lambda *given, **more: replace(
                plain(*given, **more), recipe="dW8+x7", tau=4.0
            ),
        )
        assert deepfish("train", "s", "warm").code == 0
    facts = json.loads((shapes.parent / "warm" / "model.json").read_text())
    assert facts["settings"]["tau"] == 4
    given = (*given[:2], "--features", "x7,dW8", *given[4:], "--tau", "4")
    assert deepfish("extract", shapes / "train", "s4", *given).code == 0
    cost = f"{facts['cost'][0]:g}"
    assert (
        deepfish("train", "s4", "same", "--features", "dW8+x7", "--cost", cost).code
        == 0
    )
    one, other = (
        lines(deepfish("predict", name, shapes / "test", "--json"))
        for name in ("warm", "same")
    )
    for a, b in zip(one, other, strict=True):
        assert a["scores"]["dark"] == pytest.approx(b["scores"]["dark"], abs=0.02)


@pytest.mark.parametrize("recipe", ["pow(dW8,0.5)+x7", "best", "auto"])
def test_very_many_images_are_trained_on_as_vectors(
    deepfish, shapes, monkeypatch, recipe
):
    """They are told apart as by the kernel matrix, and a line says what was done."""
    given = ("--weights", "random", "--features", recipe, "--cost", "1")
    assert deepfish("train", shapes, "exact", *given).code == 0
    monkeypatch.setattr("deepfishing.learn.training.LARGE", 5)
    ran = deepfish("train", "exact/features", "large", *given[2:])
    assert ran.code == 0, ran.err
    assert "linear classifiers on vectors of" in ran.out
    facts = [
        json.loads((shapes.parent / n / "model.json").read_text())
        for n in ("exact", "large")
    ]
    assert facts[0]["recipe"] == facts[1]["recipe"]
    exact, large = (
        lines(deepfish("predict", name, shapes / "test", "--json"))
        for name in ("exact", "large")
    )
    for found in (exact, large):
        dark = [one["image"].startswith("dark") for one in found]
        scores = np.array([one["scores"]["dark"] for one in found])
        assert scores[dark].min() > scores[np.logical_not(dark)].max()


def test_predict_copies_photos_into_folders_and_moves_nothing(
    deepfish, shapes, model, tmp_path
):
    before = {path: path.read_bytes() for path in shapes.rglob("*.jpg")}
    sorted_ = tmp_path / "sorted"
    ran = deepfish(
        "predict",
        model,
        shapes / "test",
        "--copy-into",
        sorted_,
        "--out",
        tmp_path / "list.csv",
    )
    assert ran.code == 0, ran.err
    assert "12 files copied" in ran.err
    assert {path: path.read_bytes() for path in shapes.rglob("*.jpg")} == before
    with (tmp_path / "list.csv").open() as file:
        listed = list(csv.DictReader(file))
    assert [one["folder"] for one in listed] == ["dark"] * 6 + ["light"] * 6
    for name in ("dark", "light"):
        contents = {path.read_bytes() for path in (sorted_ / name).iterdir()}
        assert contents == {
            path.read_bytes() for path in (shapes / "test" / name).iterdir()
        }
    again = deepfish("predict", model, shapes / "test", "--copy-into", sorted_)
    assert "0 files copied, 12 were there already" in again.err
    inside = deepfish(
        "predict", model, shapes / "test", "--copy-into", shapes / "test" / "new"
    )
    assert (inside.code, inside.err.count("\n")) == (1, 1)
    assert "--copy-into must be outside" in inside.err


def test_photos_below_the_threshold_of_a_model_are_unsure(
    deepfish, shapes, model, tmp_path
):
    loaded = Model.load(model)
    replace(loaded, thresholds=np.array([0.0, 1.0])).save(tmp_path / "strict")
    assert Model.load(tmp_path / "strict").thresholds.tolist() == [0.0, 1.0]
    sure = {"dark": 0.0, "light": 1.0}
    replace(loaded, thresholds=np.array([1.0, sure["light"]])).save(tmp_path / "never")
    found = lines(deepfish("predict", "never", shapes / "test", "--json"))
    assert {tuple(one["folders"]) for one in found} == {("unsure",)}
    found = lines(deepfish("predict", "strict", shapes / "test", "--json"))
    assert [one["folders"] for one in found] == [["dark"]] * 6 + [["unsure"]] * 6

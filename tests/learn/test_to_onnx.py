"""A model as an .onnx file gives, in onnxruntime, the probabilities of `predict`."""

import json
import re
import warnings
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from PIL import ExifTags, Image
from torch import nn

from deepfishing import Preprocess, load_network, wrap
from deepfishing.core.recipes import parse_recipe
from deepfishing.errors import NetworkError
from deepfishing.extraction.extract import Extractor
from deepfishing.extraction.settings import Settings
from deepfishing.learn.to_onnx import export_model
from deepfishing.learn.training import train_model

SIZE = 12
CPU = ["CPUExecutionProvider"]
PIXELS = Preprocess(
    size=SIZE, short_side=SIZE, mean=(104, 117, 123), std=(58, 57, 57.5), order="BGR"
)


def toy(*top):
    torch.manual_seed(0)
    module = nn.Sequential(
        nn.Conv2d(3, 6, 3, stride=2), nn.BatchNorm2d(6), nn.ReLU(), *top
    )
    with torch.no_grad():
        for weights in module.parameters():
            weights *= 2  # else all images look alike
    return module.eval()


class Functional(nn.Module):
    """Functions and methods in place of modules."""

    def __init__(self):
        super().__init__()
        self.low, self.fc7, self.fc8 = toy(), nn.Linear(6, 8), nn.Linear(8, 5)

    def forward(self, x):
        x = torch.flatten(nn.functional.adaptive_avg_pool2d(self.low(x), 1), 1)
        return self.fc8(torch.tanh(self.fc7(x)))


MODULES = {
    "stack": lambda: toy(
        *(nn.MaxPool2d(2), nn.Flatten(), nn.Linear(24, 9), nn.ReLU(), nn.Dropout()),
        *(nn.Linear(9, 8), nn.Sigmoid(), nn.Linear(8, 5)),
    ),
    "pooled": lambda: toy(
        *(nn.Conv2d(6, 8, 1, bias=False), nn.BatchNorm2d(8), nn.ReLU6()),
        *(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 5)),
    ),
    "functional": Functional,
}
LAYERS = {"pooled": {7: "3", 8: "8"}}


@pytest.fixture
def images(rng):
    """Red, green and blue ones in turn, with noise."""
    tints = 60 + 150 * np.eye(3)[np.arange(24) % 3] + rng.normal(0, 25, (24, 3))
    noise = rng.normal(0, 40, (24, SIZE, SIZE, 3))
    return list(np.uint8(np.clip(tints[:, None, None] + noise, 0, 255)))


def trained(network, recipe, images, **options):
    settings = Settings.from_network(network, **options)
    factors = parse_recipe(recipe, network.layers).factors
    batches = [
        batch.factors
        for batch in Extractor(network, factors, settings=settings)(images)
    ]
    arrays = {
        name: np.concatenate([batch[name] for batch in batches]) for name in batches[0]
    }
    labels = np.where(np.arange(len(images))[:, None] % 3 == np.arange(3), 1, -1)
    return train_model(recipe, arrays, labels, "abc", settings=settings)


def check(model, network, images, path, atol=1e-5):
    export_model(model, path, network=network)
    onnx.checker.check_model(str(path))
    session = onnxruntime.InferenceSession(path, providers=CPU)
    probabilities, scores = session.run(None, {"pixels": np.stack(images)})
    # photos that are asked about are not averaged with neighbours
    model = model.compact()
    np.testing.assert_allclose(
        probabilities, model.predict_proba(images, network=network), atol=atol
    )
    expected = model.decision_function(images, network=network)
    np.testing.assert_allclose(scores, expected, atol=1e-4)
    assert np.ptp(probabilities, axis=0).min() > 1e-3, (
        "of all images alike, nothing is seen"
    )


RECIPES = (
    *(
        "x7",
        "x8",
        "x7;y8",
        "dW8",
        "dW7",
        "dW7@4x3",
        "pow(dW7,0.5)+x7",
        "whiten(dW8,0.5)",
    ),
    *("(2*x6+1)*(whiten(dW7,0.5)+pow(dW8,0.5)+x7)", "x6*dW8"),
    *("rbf(pow(x7,0.5),2)*x6", "x7+pow(own(x7,3),0.5)"),
    *("smooth(x7,2)+x7", "smooth(rbf(x7,2)+dW8+own(x7,3),3)"),
)


@pytest.mark.parametrize("recipe", RECIPES)
@pytest.mark.parametrize("kind", MODULES)
def test_probabilities_are_those_of_predict(kind, recipe, images, tmp_path):
    network = wrap(MODULES[kind](), LAYERS.get(kind), PIXELS)
    check(trained(network, recipe, images), network, images, tmp_path / "model.onnx")


@pytest.mark.parametrize("head", ["softmax", "sigmoid"])
@pytest.mark.parametrize("label", ["predicted", 2, [0.5, 0.1, 0.0, 0.0, 0.7]])
def test_every_error_has_its_gradient(head, label, images, tmp_path):
    network = wrap(MODULES["stack"](), preprocess=PIXELS, head=head)
    model = trained(network, "dW7+dW8", images, tau=3.0, label=label)
    check(model, network, images, tmp_path / "model.onnx")


def test_what_is_in_the_file_says_how_to_use_it(images, tmp_path):
    network = wrap(MODULES["stack"](), preprocess=PIXELS)
    model = trained(network, "dW8", images)
    export_model(model, tmp_path / "model.onnx", network=network)
    facts = {
        p.key: json.loads(p.value)
        for p in onnx.load(tmp_path / "model.onnx").metadata_props
    }
    assert facts["deepfishing.classes"] == ["a", "b", "c"]
    assert facts["deepfishing.preprocess"]["order"] == "BGR"
    assert facts["deepfishing.recipe"] == "dW8"


def save_photos(folder, rng):
    """One photo of each kind that needs more than decoding."""
    pixels = rng.integers(0, 256, (60, 90, 4), dtype=np.uint8)
    photo = Image.fromarray(pixels[:, :, :3])
    turned = Image.Exif()
    turned[ExifTags.Base.Orientation] = 6
    palette = photo.quantize(8)
    palette.info["transparency"] = 0
    smooth = photo.resize((1300, 900), Image.Resampling.BICUBIC)
    photo.save(folder / "plain.png")
    photo.save(folder / "turned.jpg", exif=turned, quality=95)
    smooth.save(folder / "large-turned.jpg", exif=turned, quality=95)
    Image.fromarray(pixels).save(folder / "transparent.png")
    palette.save(folder / "palette.png", transparency=0)
    photo.convert("L").save(folder / "grey.png")
    photo.convert("CMYK").save(folder / "cmyk.jpg", quality=95)
    photo.resize((40, 400)).save(folder / "narrow.webp", lossless=True)
    return sorted(folder.iterdir())


@pytest.mark.parametrize("short_side", [SIZE, SIZE + 3])
def test_the_snippet_of_the_docs_classifies_as_predict_does(
    images, rng, tmp_path, short_side
):
    text = (Path(__file__).parents[2] / "docs" / "onnx.md").read_text(encoding="utf-8")
    blocks = re.findall(r"```python\n(.*?)```", text, re.S)
    (code,) = [block for block in blocks if "def classify" in block]
    snippet = {}
    exec(code, snippet)
    pixels = replace(PIXELS, short_side=short_side, resample="bicubic")
    network = wrap(MODULES["stack"](), preprocess=pixels)
    model = trained(network, "dW8+x7", images)
    export_model(model, tmp_path / "model.onnx", network=network)
    (tmp_path / "photos").mkdir()
    for path in save_photos(tmp_path / "photos", rng):
        found = snippet["classify"](tmp_path / "model.onnx", path)
        (expected,) = model.predict_proba([path], network=network)
        np.testing.assert_allclose(
            list(found.values()), expected, atol=1e-5, err_msg=path.name
        )


def test_what_cannot_be_exported_is_refused_in_one_line(images, tmp_path):
    class Residual(nn.Module):
        def __init__(self):
            super().__init__()
            self.low, self.fc7, self.fc8 = (
                toy(nn.MaxPool2d(5), nn.Flatten()),
                nn.Linear(6, 6),
                nn.Linear(6, 5),
            )

        def forward(self, x):
            y = torch.relu(self.fc7(self.low(x)))
            return self.fc8(y + y * y)

    gelu = toy(
        nn.MaxPool2d(5), nn.Flatten(), nn.Linear(6, 7), nn.GELU(), nn.Linear(7, 5)
    )
    cases = {
        "no chain": (Residual(), "dW7", {}),
        "GELU between": (gelu, "dW7", {}),
        "the feature x6@exact": (MODULES["pooled"](), "dW7@exact", {}),
        "flip views": (MODULES["stack"](), "x7", {"views": "flip"}),
    }
    for reason, (module, recipe, options) in cases.items():
        layers = LAYERS["pooled"] if "exact" in recipe else None
        network = wrap(module, layers, PIXELS)
        model = trained(network, recipe, images, **options)
        with pytest.raises(NetworkError, match=reason):
            export_model(model, tmp_path / "model.onnx", network=network)
    assert not (tmp_path / "model.onnx").exists()
    # what needs no gradient below it is no obstacle
    network = wrap(gelu, preprocess=PIXELS)
    check(trained(network, "dW8", images), network, images, tmp_path / "model.onnx")


def test_the_command_line_writes_the_model_of_an_onnx_network(
    images, tmp_path, deepfish
):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that the exporter is the old one
        batch, names = (torch.zeros(1, 3, SIZE, SIZE),), {"input_names": ["i"]}
        names["dynamic_axes"] = {"i": {0: "n"}}
        torch.onnx.export(
            MODULES["stack"](), batch, tmp_path / "net.onnx", dynamo=False, **names
        )
    pixels = {"mean": PIXELS.mean, "std": PIXELS.std, "order": "BGR"}
    (tmp_path / "pixels.json").write_text(json.dumps(pixels))
    for i, image in enumerate(images):
        folder = tmp_path / "photos" / "abc"[i % 3]
        folder.mkdir(parents=True, exist_ok=True)
        Image.fromarray(image).save(folder / f"{i}.png")
    asked = (
        "--network",
        "net.onnx",
        "--preprocess",
        "pixels.json",
        "--features",
        "dW7+x7",
    )
    assert deepfish("extract", "photos", "store", *asked).code == 0
    assert deepfish("train", "store", "model", "--features", "dW7+x7").code == 0
    for name, words in [
        ("model.txt", "must end in .onnx, got model.txt"),
        ("none/model.onnx", "must be in a folder that exists, got none/model.onnx"),
    ]:
        ran = deepfish("export-model", "model", name)
        assert ran.code == 1
        assert ran.err == f"deepfish: the exported model {words}" + (
            "; make it first\n" if "/" in name else "\n"
        )
        assert not (tmp_path / name).exists()
    ran = deepfish("export-model", "model", "model.onnx")
    assert ran.code == 0, ran.err
    assert (
        "pixels (n, 12, 12, 3) uint8 RGB to probabilities and scores (n, 3)" in ran.out
    )
    lines = deepfish("predict", "model", "photos", "--json").out.splitlines()
    session = onnxruntime.InferenceSession(
        tmp_path / "model.onnx", providers=["CPUExecutionProvider"]
    )
    for line in map(json.loads, lines):
        pixels = np.asarray(Image.open(line["path"]))[None]
        found = session.run(["probabilities"], {"pixels": pixels})[0][0]
        expected = [line["probabilities"][name] for name in "abc"]
        np.testing.assert_allclose(found, expected, atol=1e-5)
    assert len(lines) == len(images)


@pytest.mark.slow
def test_the_best_recipe_of_the_default_network_is_as_exact(images, tmp_path):
    network = load_network()
    large = [
        image.repeat(19, axis=0).repeat(19, axis=1)[:224, :224] for image in images
    ]
    check(trained(network, "best", large), network, large, tmp_path / "model.onnx")


def test_the_compact_form_ranks_photos_as_the_model_does(images):
    network = wrap(MODULES["stack"](), preprocess=PIXELS)
    model = trained(network, "smooth(x7+own(x7,3),3)", images)
    full = model.predict_proba(images, network=network)
    compact = model.compact().predict_proba(images, network=network)
    assert not np.allclose(full, compact, atol=1e-4)
    assert np.abs(full - compact).mean() < 0.1
    plain = trained(network, "x7", images)
    assert plain.compact() is plain

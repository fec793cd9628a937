import dataclasses

import numpy as np
import pytest
import torch
from PIL import Image

from deepfishing.core.features import needed_factors, parse_factor
from deepfishing.core.kernels import gram
from deepfishing.core.rank_one import RankOne
from deepfishing.core.recipes import parse_recipes
from deepfishing.errors import (
    FeatureError,
    ImageError,
    LayerError,
    NetworkError,
    OptionError,
)
from deepfishing.extraction.batches import gather
from deepfishing.extraction.extract import Extractor, extract
from deepfishing.extraction.options import Resources
from deepfishing.extraction.pipeline import extract_to
from deepfishing.extraction.settings import Settings
from deepfishing.images.preprocess import VIEWS, Preprocess
from deepfishing.learn.predict import predict
from deepfishing.learn.training import train_model
from deepfishing.networks.network import Network, wrap
from deepfishing.networks.objectives import cross_entropy
from deepfishing.search import Searcher
from deepfishing.store import Store


def extract_factors(network, images, factors, tau=2.0, views="centre", **more):
    settings = Settings.from_network(network, tau=tau, views=views)
    return Extractor(network, factors, settings=settings, resources=Resources(**more))(
        images
    )


class TinyLite(torch.nn.Module):
    """A 3x3 trunk and a head like EfficientNet-Lite's: 1x1 convolution, pooling, classifier."""

    def __init__(self):
        super().__init__()
        self.trunk = torch.nn.Conv2d(3, 6, 3, stride=2)
        self.head = torch.nn.Conv2d(6, 10, 1)
        self.fc = torch.nn.Linear(10, 4)

    def forward(self, x):
        return self.fc(
            torch.relu(self.head(torch.relu(self.trunk(x)))).mean(dim=(2, 3))
        )


@pytest.fixture
def network():
    torch.manual_seed(0)
    module = TinyLite().double().eval()
    preprocess = Preprocess(16, 16, mean=(127.0,) * 3, std=(128.0,) * 3)
    return Network("tiny", module, {7: "head", 8: "fc"}, preprocess, "none")


@pytest.fixture
def images(rng):
    return [rng.integers(0, 256, (20, 24, 3), dtype=np.uint8) for _ in range(7)]


@pytest.fixture
def pixels(network, images):
    return torch.from_numpy(np.stack([network.preprocess(i) for i in images])).double()


def unit(rows):
    return rows / np.linalg.norm(rows, axis=-1, keepdims=True)


def test_forward_features_are_the_normalised_layers(network, images, pixels):
    got = extract(network, images, "x6,x7,y8,x8,x7;y8,y7,x:trunk")
    m = network.module
    with torch.no_grad():
        trunk = m.trunk(pixels)
        y7 = m.head(torch.relu(trunk))
        x7 = torch.relu(y7).mean(dim=(2, 3))
        y8 = m.fc(x7)
    expected = {
        "x:trunk": trunk.mean(dim=(2, 3)),
        "x6": torch.relu(trunk).mean(dim=(2, 3)),
        "y7": y7.mean(dim=(2, 3)),
        "x7": x7,
        "y8": y8,
        "x8": torch.softmax(y8, dim=1),
    }
    for name, value in expected.items():
        np.testing.assert_allclose(got[name], unit(value.numpy()), rtol=1e-5, atol=1e-7)
    both = np.concatenate([unit(x7.numpy()), unit(y8.numpy())], axis=1) / np.sqrt(2)
    np.testing.assert_allclose(got["x7;y8"], both, rtol=1e-6)


@pytest.mark.parametrize("label", ["uniform", "predicted", 1, [0.1, 0.2, 0.3, 0.4]])
def test_gradient_kernels_are_those_of_the_per_sample_gradients(
    network, images, pixels, per_sample_gradient, label
):
    got = extract(network, images, "dW8,dW7@exact,dW:trunk@exact", tau=3.0, label=label)
    for name, path in [
        ("dW8", "fc"),
        ("dW7@exact", "head"),
        ("dW:trunk@exact", "trunk"),
    ]:
        objective = cross_entropy(3.0, label)
        dense = (
            per_sample_gradient(network.module, pixels, path, objective)
            .flatten(1)
            .numpy()
        )
        np.testing.assert_allclose(
            gram(got[name]), unit(dense) @ unit(dense).T, atol=1e-10
        )


def test_a_pooled_gradient_is_the_pool_of_the_exact_one(network, images):
    got = extract(network, images, "dW7,dW7@exact")
    assert got["dW7@exact"].x.shape == (7, 49, 6)
    pooled = got["dW7@exact"].pool().normalize()
    np.testing.assert_allclose(gram(got["dW7"]), gram(pooled), atol=1e-10)
    assert np.abs(gram(got["dW7"]) - gram(got["dW7@exact"])).max() > 1e-4


def test_asking_for_gradients_does_not_change_forward_features(network, images):
    alone = extract(network, images, "x6,x7,x8")
    together = extract(network, images, "all")
    assert list(together) == ["x6", "x7", "y8", "x8", "x6;x7", "dW7", "x7;y8", "dW8"]
    for name, value in alone.items():
        np.testing.assert_allclose(together[name], value, rtol=1e-12)


@pytest.mark.parametrize("batch_size", [1, 2, 3, 100])
def test_the_result_does_not_depend_on_the_batch_size(network, images, batch_size):
    whole = extract(network, images, "x7,dW7", batch_size=7)
    parts = extract(network, images, "x7,dW7", batch_size=batch_size)
    np.testing.assert_allclose(parts["x7"], whole["x7"], rtol=1e-12)
    np.testing.assert_allclose(parts["dW7"].delta, whole["dW7"].delta, rtol=1e-10)


def test_paths_images_and_arrays_can_be_mixed(network, images, tmp_path):
    Image.fromarray(images[0]).save(tmp_path / "a.png")
    mixed = [
        tmp_path / "a.png",
        str(tmp_path / "a.png"),
        Image.fromarray(images[0]),
        images[0],
    ]
    x7 = extract(network, mixed, "x7")["x7"]
    np.testing.assert_allclose(x7, np.repeat(x7[:1], 4, axis=0), rtol=1e-12)


def test_a_network_that_mixes_images_is_refused(network, images):
    class Mixing(TinyLite):
        def forward(self, x):
            return super().forward(x - x.mean(dim=0, keepdim=True))

    mixing = dataclasses.replace(network, module=Mixing().double())
    with pytest.raises(NetworkError, match="must treat each image on its own"):
        extract(mixing, images, "x7")


def test_an_unreadable_image_is_raised_by_extract_and_reported_in_batches(
    network, images, tmp_path
):
    (tmp_path / "bad.jpg").write_bytes(b"\xff\xd8\xff")
    mixed = [images[0], tmp_path / "bad.jpg", images[1]]
    with pytest.raises(ImageError, match=r"bad\.jpg"):
        extract(network, mixed, "x7")
    (batch,) = extract_factors(network, mixed, X7)
    assert batch.indices == [0, 2]
    assert list(batch.failures) == [1]
    assert len(batch.factors["x7"]) == 2


def test_a_stopped_extraction_does_not_decode_the_rest(network, images, monkeypatch):
    decoded = []
    original = Preprocess.see

    def counting(self, image, views):
        decoded.append(1)
        return original(self, image, views)

    monkeypatch.setattr(Preprocess, "see", counting)
    batches = extract_factors(network, images * 50, X7, batch_size=2)
    next(batches)
    batches.close()
    assert 2 <= len(decoded) < 20


def test_wrong_options_are_refused(network, images):
    for options, error in [
        ({"features": "dW6"}, FeatureError),
        ({"features": "x:nothing"}, LayerError),
        ({"tau": 0}, OptionError),
        ({"batch_size": 0}, OptionError),
        ({"batch_size": "automatic"}, OptionError),
        ({"memory": "little"}, OptionError),
        ({"views": "flips"}, OptionError),
        ({"label": 4, "features": "dW8"}, OptionError),
    ]:
        with pytest.raises(error):
            extract(network, images, **options)
    with pytest.raises(OptionError, match="at least one image"):
        extract(network, [])


def test_half_precision_networks_give_single_precision_features(network, images):
    half = dataclasses.replace(network, module=network.module.to(torch.float16))
    got = extract(half, images, "x7,dW8")
    assert got["x7"].dtype == np.float32
    assert np.isfinite(gram(got["dW8"])).all()


MEAN = [
    "x6",
    "x7",
    "y8",
    "x8",
    "x:trunk",
    "delta7",
    "delta8",
    "dW7@3x2",
    "dW:trunk@4x4",
    "dW8@2x2",
]
EXACT = ["x6@exact", "delta7@exact", "x7@exact", "delta8@exact"]
ALL = [parse_factor(name) for name in MEAN + EXACT]
X7 = [parse_factor("x7")]


def factors_of(network, images, **options):
    batches = list(extract_factors(network, images, ALL, tau=3.0, **options))
    return {
        f: np.concatenate([batch.factors[f] for batch in batches]) for f in MEAN + EXACT
    }


def squares_of(network, image, views):
    """The views of an image as pictures of their own; TinyLite's pixels are (value - 127) / 128."""
    pixels = network.preprocess.see(image, VIEWS[views])
    return list((pixels.transpose(0, 2, 3, 1) * 128 + 127).round().astype(np.uint8))


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
@pytest.mark.parametrize("views", ["flip", "scales", "crops"])
def test_views_give_the_mean_of_what_each_view_gives_alone(
    network, images, views, dtype
):
    network = dataclasses.replace(network, module=network.module.to(dtype))
    tight = 1e-12 if dtype == torch.float64 else 1e-5
    got = factors_of(network, images, views=views, engine="torch")
    for number, image in enumerate(images):
        each = factors_of(
            network, squares_of(network, image, views), batch_size=1, engine="torch"
        )
        for factor in MEAN:
            mean = each[factor].mean(axis=0)
            np.testing.assert_allclose(
                got[factor][number], mean, rtol=tight, atol=tight * np.abs(mean).max()
            )
        for x, delta in [EXACT[:2], EXACT[2:]]:
            dense = RankOne(got[x], got[delta])[number].dense()[0]
            mean = RankOne(each[x], each[delta]).dense().mean(axis=0)
            np.testing.assert_allclose(dense, mean, atol=tight * np.abs(mean).max())


def test_flip_is_the_mean_of_a_picture_and_its_mirror_image(network, rng):
    wide = [rng.integers(0, 256, (16, 22, 3), dtype=np.uint8) for _ in range(5)]
    crops = [image[:, 3:19] for image in wide]
    as_they_are = factors_of(network, crops)
    mirrored = factors_of(
        network, [np.ascontiguousarray(np.fliplr(crop)) for crop in crops]
    )
    got = factors_of(network, wide, views="flip")
    for factor in MEAN:
        mean = (as_they_are[factor] + mirrored[factor]) / 2
        np.testing.assert_allclose(got[factor], mean, rtol=1e-12, atol=1e-14)
        assert np.abs(got[factor] - as_they_are[factor]).max() > 1e-6


def test_the_mean_is_taken_before_the_normalisation(network, images):
    got = extract(network, images, "x7,dW8", tau=3.0, views="flip")
    raw = factors_of(network, images, views="flip")
    np.testing.assert_allclose(got["x7"], unit(raw["x7"]), rtol=1e-12)
    np.testing.assert_allclose(got["dW8"].x, unit(raw["x7"]), rtol=1e-12)
    np.testing.assert_allclose(got["dW8"].delta, unit(raw["delta8"]), rtol=1e-12)
    np.testing.assert_allclose(raw["x8"].sum(axis=1), 1, rtol=1e-6)


def test_exact_gradients_keep_the_positions_of_every_view(network, images):
    got = extract(network, images, "dW7@exact,dW8@exact", views="scales")
    assert got["dW7@exact"].x.shape == (7, 6 * 49, 6)
    assert got["dW8@exact"].x.shape == (7, 6, 10)


def test_a_picture_that_is_its_own_mirror_image_is_described_by_its_centre(
    network, rng
):
    half = rng.integers(0, 256, (16, 10, 3), dtype=np.uint8)
    image = np.concatenate([half, half[:, ::-1]], axis=1)
    centre, flip = (
        factors_of(network, [image], views=views) for views in ("centre", "flip")
    )
    for factor in MEAN:
        np.testing.assert_allclose(flip[factor], centre[factor], rtol=1e-12, atol=1e-15)


def test_one_view_is_the_centre_to_the_last_bit(network, images, pixels):
    network = dataclasses.replace(network, module=network.module.float())
    (default,) = extract_factors(network, images, ALL)
    (centre,) = extract_factors(network, images, ALL, batch_size=32, views="centre")
    for factor in MEAN + EXACT:
        np.testing.assert_array_equal(default.factors[factor], centre.factors[factor])
    assert default.factors["x6@exact"].shape == (7, 49, 6)
    assert default.factors["x7@exact"].shape == (7, 10)


@pytest.mark.parametrize("batch_size", [1, 3, 100])
def test_views_of_unreadable_images_are_left_out(network, images, tmp_path, batch_size):
    (tmp_path / "bad.jpg").write_bytes(b"\xff\xd8\xff")
    mixed = [images[0], tmp_path / "bad.jpg", *images[1:]]
    batches = list(
        extract_factors(network, mixed, X7, batch_size=batch_size, views="crops")
    )
    assert [i for batch in batches for i in batch.indices] == [0, *range(2, 8)]
    assert [i for batch in batches for i in batch.failures] == [1]
    got = np.concatenate([batch.factors["x7"] for batch in batches if batch.factors])
    np.testing.assert_allclose(
        got, factors_of(network, images, views="crops")["x7"], rtol=1e-12
    )


def sizes(network, images, factor, **options):
    batches = extract_factors(network, images, [parse_factor(factor)], **options)
    return [len(batch.indices) for batch in batches]


def test_auto_takes_32_inputs_unless_the_budget_is_smaller(network, images):
    many = images * 10
    assert sizes(network, many, "x7") == [32, 32, 6]
    assert sizes(network, many, "x7", views="flip")[:2] == [16, 16]
    assert sizes(network, many, "x7", views="scales")[0] == 4
    assert sizes(network, many[:3], "x7", memory=1) == [1, 1, 1]
    assert sizes(network, many, "x7", memory="10GB") == [32, 32, 6]


def test_a_hungry_layer_gets_smaller_batches(network, images):
    lean, hungry = (
        sizes(network, images * 10, factor, memory="300kB")[0]
        for factor in ("y8", "dW:trunk@4x4")
    )
    assert 1 < hungry < lean
    assert hungry == sizes(network, images * 10, "dW:trunk@4x4", memory="300kB")[0]


def test_probabilities_of_a_float64_network_are_float64(network, images, pixels):
    x8 = extract(network, images, "x8")["x8"]
    assert x8.dtype == np.float64
    expected = network.module(pixels).softmax(dim=1).detach().numpy()
    np.testing.assert_allclose(x8, unit(expected), rtol=1e-14)


def test_a_recipe_that_needs_no_fit_is_extracted(network, images):
    text = "pow(dW8,0.5)+x7"
    found = extract(network, images, [text, "dW8", "x7"])
    x, delta = (
        np.sign(v) * np.abs(v) ** 0.5 for v in (found["dW8"].x, found["dW8"].delta)
    )
    root = gram(RankOne(x, delta).normalize())
    np.testing.assert_allclose(
        gram(found[text]), (root + gram(found["x7"])) / 2, rtol=1e-12
    )


@pytest.mark.parametrize("text", ["best", "whiten(dW8)+x7"])
def test_a_recipe_that_needs_training_images_says_what_to_write(network, images, text):
    with pytest.raises(
        FeatureError, match=r"training images.*write features='.*dW8.*Whiten"
    ):
        extract(network, images, text)


def test_a_network_may_be_given_by_its_name(images, monkeypatch, network):
    asked = []

    def load_network(name, device):
        asked.append((name, device))
        return network

    monkeypatch.setattr("deepfishing.networks.load.load_network", load_network)
    found = extract("efficientnet-lite0", images, "x7", device="cpu")["x7"]
    np.testing.assert_array_equal(found, extract(network, images, "x7")["x7"])
    assert asked == [("efficientnet-lite0", "cpu")]
    with pytest.raises(OptionError, match="is loaded on cpu, got cuda"):
        extract(network, images, "x7", device="cuda")


def test_a_torch_module_is_wrapped(images):
    torch.manual_seed(0)
    module = TinyLite()
    found = extract(module, images, "x7")["x7"]
    np.testing.assert_array_equal(found, extract(wrap(module), images, "x7")["x7"])
    small = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(3 * 8 * 8, 4))
    with pytest.raises(
        LayerError, match=r"give preprocess, .* see the options of .*wrap"
    ):
        extract(small, images, "x7")
    with pytest.raises(OptionError, match=r"a Network .* or a torch module, got int"):
        extract(3, images, "x7")


def test_images_that_cannot_be_used_are_skipped_if_asked_for(network, images):
    given = [images[0], "absent.jpg", *images[1:3], "absent.png"]
    with pytest.raises(ImageError, match=r"absent\.jpg"):
        extract(network, given, "x7")
    with pytest.warns(
        UserWarning, match=r"left out: 2, the first is number 1: .*absent\.jpg"
    ):
        found = extract(network, given, "x7", on_error="skip")
    np.testing.assert_allclose(
        found["x7"], extract(network, images[:3], "x7")["x7"], atol=1e-7
    )
    assert found.indices == [0, 2, 3]
    assert list(found.failures) == [1, 4]
    with pytest.raises(
        OptionError, match="on_error must be one of raise, skip, got 'ignore'"
    ):
        extract(network, given, "x7", on_error="ignore")
    with (
        pytest.warns(UserWarning, match="left out"),
        pytest.raises(OptionError, match="none of 1"),
    ):
        extract(network, ["absent.jpg"], "x7", on_error="skip")


class Dead(torch.nn.Module):
    """Its scores of a dark image are all 0, so its probabilities are the uniform label."""

    def __init__(self):
        super().__init__()
        self.hidden = torch.nn.Linear(3 * 16 * 16, 5)
        self.fc = torch.nn.Linear(5, 4, bias=False)
        self.hidden.weight.data.abs_()

    def forward(self, x):
        return self.fc(torch.relu(self.hidden(x.flatten(1))))


def test_images_with_a_zero_gradient_are_counted(images, tmp_path):
    torch.manual_seed(0)
    pixels = Preprocess(16, 16, mean=(64.0,) * 3, std=(64.0,) * 3)
    network = wrap(Dead(), preprocess=pixels)
    given = [images[0], np.zeros((20, 20, 3), np.uint8), images[1]]
    with pytest.warns(
        UserWarning, match="1 of 3 images have a zero gradient, such as number 1"
    ):
        extract(network, given, "dW8")
    extract(network, given, "x7")  # without a gradient there is nothing to report
    done = extract_to(tmp_path / "s", given, network=network, features="dW8", name="p")
    assert done.zero_gradients == ("p/0000001",)


def test_queries_and_predictions_with_a_zero_gradient_are_counted(images, tmp_path):
    torch.manual_seed(0)
    pixels = Preprocess(16, 16, mean=(64.0,) * 3, std=(64.0,) * 3)
    network = wrap(Dead(), preprocess=pixels)
    for number, values in enumerate([*images[:3], np.zeros((20, 20, 3), np.uint8)]):
        Image.fromarray(values).save(tmp_path / f"{number}.png")
    paths = [tmp_path / f"{number}.png" for number in range(4)]
    store = tmp_path / "s"
    extract_to(store, paths[:3], network=network, features="dW8")
    notes = []
    searcher = Searcher(Store(store), "dW8", network=network, notice=notes.append)
    searcher.search([paths[3]], 1)
    assert "1 image has a zero gradient, such as" in notes[-1]
    assert "3.png" in notes[-1]

    columns = needed_factors(parse_recipes(["dW8"], network.layers))
    arrays = gather(Extractor(network, columns)(paths[:3]))
    labels = np.array([[1], [-1], [1]])
    settings = Settings.from_network(network)
    model = train_model("dW8", arrays, labels, ["a"], settings=settings)
    found = [one.has_zero_gradient for one in predict(model, paths, network=network)]
    assert found == [False, False, False, True]

"""Where the images and the channels are; the same weights in several places."""

import dataclasses

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional

from deepfishing.core.features import parse_factor
from deepfishing.core.kernels import gram
from deepfishing.core.rank_one import RankOne
from deepfishing.errors import LayerError
from deepfishing.extraction.extract import Extractor, extract
from deepfishing.extraction.options import Resources
from deepfishing.images.preprocess import Preprocess
from deepfishing.networks.network import wrap

SMALL = Preprocess(8, 8, mean=(127.0,) * 3, std=(128.0,) * 3)


class Tokens(nn.Module):
    """Four patches of an image, attention, an MLP on tokens in some layout, a classifier."""

    def __init__(self):
        super().__init__()
        self.patches = nn.Conv2d(3, 6, 4, stride=4)
        self.attention = nn.Linear(6, 6)
        self.layout, self.mlp = nn.Identity(), nn.Linear(6, 7)
        self.fc = nn.Linear(7, 5)

    def forward(self, x):
        x = self.patches(x).flatten(2).transpose(1, 2)  # (n, 4, 6)
        x = x + torch.softmax(self.attention(x) @ x.transpose(1, 2), dim=-1) @ x
        n, (there, back) = len(x), self.ways()
        y = torch.tanh(self.mlp(self.layout(there(x))))
        return self.fc(back(y, n).mean(dim=1))

    def ways(self):
        """(n, 4, d) there and back."""
        return lambda x: x, lambda y, n: y


class ChannelsLast(Tokens):
    def ways(self):
        return lambda x: x.reshape(-1, 2, 2, 6), lambda y, n: y.reshape(n, 4, 7)


class SequenceFirst(Tokens):
    def ways(self):
        return lambda x: x.transpose(0, 1), lambda y, n: y.transpose(0, 1)


class Windows(Tokens):
    def ways(self):
        return lambda x: x.reshape(-1, 2, 6), lambda y, n: y.reshape(n, 4, 7)


class Rows(Tokens):
    """All tokens below each other."""

    def ways(self):
        return lambda x: x.flatten(0, 1), lambda y, n: y.reshape(n, 4, 7)


class TokenByToken(Tokens):
    """The first tokens of all images, then the second ones."""

    def ways(self):
        return (
            lambda x: x.transpose(0, 1).flatten(0, 1),
            lambda y, n: y.reshape(4, n, 7).transpose(0, 1),
        )


LAYOUTS = [Tokens, ChannelsLast, SequenceFirst, Windows, Rows, TokenByToken]


class Stack(nn.Module):
    """Two fully connected layers below a classifier; which weights they use is up to `apply`."""

    def __init__(self):
        super().__init__()
        self.a, self.b, self.fc = nn.Linear(192, 6), nn.Linear(6, 6), nn.Linear(6, 4)
        self.c = nn.Linear(6, 6)

    def forward(self, x):
        return self.fc(self.middle(torch.tanh(self.a(x.flatten(1)))))


class Tied(Stack):
    def __init__(self):
        super().__init__()
        self.c.weight = self.b.weight

    def middle(self, x):
        return torch.tanh(self.c(torch.tanh(self.b(x))))


class UsedTwice(Stack):
    def middle(self, x):
        return torch.tanh(self.b(torch.tanh(self.b(x))))


class OneUnused(Stack):
    """A run whose output nobody takes has no part in the gradient."""

    def middle(self, x):
        self.b(x + 1)
        return torch.tanh(self.b(x))


class OutsideOfTheModule(Stack):
    def middle(self, x):
        return torch.tanh(functional.linear(torch.tanh(self.b(x)), self.b.weight))


class Standardised(Stack):
    """Weights that are changed before they are used."""

    def __init__(self):
        super().__init__()
        self.b = Centred(6, 6)

    def middle(self, x):
        return torch.tanh(self.b(x))


class Centred(nn.Linear):
    def forward(self, x):
        return functional.linear(x, self.weight - self.weight.mean(), self.bias)


class InPlace(Stack):
    """What goes in is overwritten afterwards."""

    def middle(self, x):
        y = self.b(x)
        return y + self.write(x)

    def write(self, x):
        return x.relu_()


class NotInPlace(InPlace):
    def write(self, x):
        return x.relu()


@pytest.fixture
def images(rng):
    return [rng.integers(0, 256, (9, 12, 3), dtype=np.uint8) for _ in range(5)]


@pytest.fixture
def pixels(images):
    return torch.from_numpy(np.stack([SMALL(image) for image in images])).double()


def network_of(kind):
    torch.manual_seed(0)
    return wrap(kind().double(), preprocess=SMALL)


def one_by_one(module, pixels, path):
    """dE/dW (d, D) of each image, from a backward pass of its own."""
    weight = module.get_submodule(path).weight
    each = []
    for image in pixels:
        error = -torch.log_softmax(module.eval()(image[None]) / 2, dim=1).mean()
        each.append(torch.autograd.grad(error, weight)[0].T)
    return torch.stack(each).numpy()


def factors(network, images, *names, **options):
    parsed = [parse_factor(name) for name in names]
    batches = list(Extractor(network, parsed, resources=Resources(**options))(images))
    return [
        np.concatenate([batch.factors[name] for batch in batches]) for name in names
    ]


@pytest.mark.parametrize("batch_size", [1, 3, 5])
@pytest.mark.parametrize("kind", LAYOUTS)
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
def test_gradients_are_those_of_each_image_in_any_layout(
    kind, images, pixels, batch_size, dtype
):
    network = network_of(kind)
    true = one_by_one(network.module, pixels, "mlp")
    network.module.to(dtype)  # in float32 the part below the layer runs by itself
    x, delta = factors(
        network,
        images,
        "in:mlp@exact",
        "delta:mlp@exact",
        batch_size=batch_size,
        engine="torch",
    )
    assert x.shape == (5, 4, 6)
    tight = 1e-12 if dtype == torch.float64 else 1e-6
    np.testing.assert_allclose(RankOne(x, delta).dense(), true, atol=tight)
    pooled_x, pooled_delta = factors(
        network, images, "in:mlp", "delta:mlp", batch_size=batch_size
    )
    np.testing.assert_allclose(pooled_x, x.mean(axis=1), atol=tight)
    np.testing.assert_allclose(pooled_delta, delta.sum(axis=1), atol=tight)


@pytest.mark.parametrize("batch_size", [1, 3])
@pytest.mark.parametrize("kind", LAYOUTS)
def test_outputs_are_averaged_over_positions_in_any_layout(
    kind, images, pixels, batch_size
):
    network, plain = network_of(kind), network_of(Tokens)
    options = {"batch_size": batch_size}
    for path, width in [("mlp", 7), ("layout", 6), ("patches", 6), ("attention", 6)]:
        (got,) = factors(network, images, f"x:{path}", **options)
        (expected,) = factors(plain, images, f"x:{path}", **options)
        assert got.shape == (5, width)
        np.testing.assert_allclose(got, expected, atol=1e-12)
    with torch.no_grad():
        maps = network.module.patches(pixels)
    (got,) = factors(network, images, "x:patches")
    np.testing.assert_allclose(got, maps.mean(dim=(2, 3)), atol=1e-12)


@pytest.mark.parametrize("kind", [Tied, UsedTwice, OneUnused])
def test_the_gradient_of_weights_is_the_sum_over_all_their_uses(kind, images, pixels):
    network = network_of(kind)
    paths = ["b", "c"] if kind is Tied else ["b"]
    for path in paths:
        true = one_by_one(network.module, pixels, path).reshape(5, -1)
        got = extract(network, images, f"dW:{path}@exact")
        rows = true / np.linalg.norm(true, axis=1, keepdims=True)
        np.testing.assert_allclose(*map(gram, (*got.values(), rows)), atol=1e-10)
    # in one pass
    both = extract(network, images, [f"dW:{path}@exact" for path in paths])
    assert len(both) == (1 if kind is not Tied else 2)
    for gradient in both.values():
        np.testing.assert_allclose(gram(gradient), gram(rows), atol=1e-10)


def test_an_input_that_is_overwritten_afterwards_counts_as_it_was(images, pixels):
    network = network_of(InPlace)
    x, delta = factors(network, images, "in:b@exact", "delta:b@exact")
    true = one_by_one(network_of(NotInPlace).module, pixels, "b")
    np.testing.assert_allclose(RankOne(x, delta).dense(), true, atol=1e-12)


def test_a_numbered_layer_that_runs_twice_has_all_features(images, pixels):
    network = network_of(UsedTwice)
    assert network.layers == {7: "b", 8: "fc"}
    found = extract(network, images)
    assert list(found) == ["x6", "x7", "y8", "x8", "x6;x7", "dW7", "x7;y8", "dW8"]
    x, delta = factors(network, images, "x6@exact", "delta7@exact")
    np.testing.assert_allclose(
        RankOne(x, delta).dense(), one_by_one(network.module, pixels, "b"), atol=1e-12
    )
    x6, delta7, y7 = factors(network, images, "x6", "delta7", "y7")
    np.testing.assert_allclose(x6, x.mean(axis=1), atol=1e-12)
    np.testing.assert_allclose(delta7, delta.sum(axis=1), atol=1e-12)
    b = network.module.b
    np.testing.assert_allclose(
        y7,
        (x @ b.weight.detach().numpy().T + b.bias.detach().numpy()).mean(axis=1),
        atol=1e-12,
    )
    (alone,) = factors(network_of(OneUnused), images, "x6")  # no gradient asked for
    beside, _ = factors(network_of(OneUnused), images, "x6", "delta7")
    np.testing.assert_allclose(alone, beside, atol=1e-12)


def test_tied_layers_have_one_number(images, pixels):
    network = network_of(Tied)
    assert network.layers == {7: "c", 8: "fc"}
    x, delta = factors(network, images, "x6@exact", "delta7@exact")
    np.testing.assert_allclose(
        RankOne(x, delta).dense(), one_by_one(network.module, pixels, "b"), atol=1e-12
    )
    x6, delta7 = factors(network, images, "x6", "delta7")
    np.testing.assert_allclose(x6, x.mean(axis=1), atol=1e-12)
    np.testing.assert_allclose(delta7, delta.sum(axis=1), atol=1e-12)


def test_one_module_with_two_names_is_found_under_both(images, pixels):
    network = network_of(UsedTwice)
    network.module.again = network.module.b
    both = [
        factors(network, images, f"in:{p}@exact", f"delta:{p}@exact")
        for p in ("b", "again")
    ]
    np.testing.assert_array_equal(both[0], both[1])


@pytest.mark.parametrize("kind", [OutsideOfTheModule, Standardised])
def test_weights_used_where_no_module_shows_it_are_refused(kind, images):
    network = network_of(kind)
    for feature in ("dW:b", "dW:b@exact", "dW:b@4x4"):
        with pytest.raises(
            LayerError, match=r"gradient of layer b is not its input times"
        ):
            extract(network, images, feature)
    assert extract(network, images, "x:b,dW8")["x:b"].shape == (5, 6)


@pytest.mark.filterwarnings("ignore:.* images have a zero gradient")
@pytest.mark.parametrize("scale", [1e-3, 1e-5, 1e-7, 1e-9])
def test_gradients_near_the_smallest_number_of_half_precision_are_not_refused(
    images, scale
):
    torch.manual_seed(0)
    module = UsedTwice().half()
    network = wrap(
        module, preprocess=SMALL, head=lambda y: scale * y.float().pow(2).sum()
    )
    assert np.isfinite(extract(network, images, "dW:b")["dW:b"].delta).all()


class Strange(nn.Module):
    """Layers that have no row per image, or no channels that can be told from positions."""

    def __init__(self):
        super().__init__()
        self.conv, self.fc = nn.Conv2d(3, 6, 1), nn.Linear(6, 4)
        self.learned, self.square, self.mixed = (
            nn.Identity(),
            nn.Identity(),
            nn.Identity(),
        )
        self.table = nn.Parameter(torch.randn(1, 5, 6))

    def forward(self, x):
        y = self.conv(x)
        self.mixed(torch.cat([y.flatten(2), y.flatten(2).flip(0)]).mean(dim=2))
        self.square((y.flatten(2) @ y.flatten(2).transpose(1, 2))[:, :5])
        return self.fc(y.mean(dim=(2, 3)) + self.learned(self.table).mean(dim=1))


@pytest.mark.parametrize("batch_size", [1, 3])
@pytest.mark.parametrize(
    ("path", "words"),
    [
        (
            "learned",
            r"which image: its shape is \(1, 5, 6\) for one image and \(1, 5, 6\) for two",
        ),
        (
            "mixed",
            r"which image: its shape is \(2, 6\) for one image and \(4, 6\) for two",
        ),
    ],
)
def test_an_output_without_a_part_per_image_is_refused(images, path, words, batch_size):
    with pytest.raises(LayerError, match=f"layer {path} belongs to {words}"):
        extract(network_of(Strange), images, f"x:{path}", batch_size=batch_size)


class Ambiguous(nn.Module):
    """A map whose height is as long as it has channels, turned around."""

    def __init__(self):
        super().__init__()
        self.conv, self.turned, self.fc = (
            nn.Conv2d(3, 8, 1),
            nn.Identity(),
            nn.Linear(8, 4),
        )
        self.plain = nn.ReLU()

    def forward(self, x):
        y = self.plain(self.conv(x))  # (n, 8, 8, 8)
        return self.fc(
            self.turned(y.flip(3)[..., :7].permute(0, 2, 3, 1)).mean(dim=(1, 2))
        )


def test_channels_that_cannot_be_told_from_positions_are_refused(images, pixels):
    network = network_of(Ambiguous)
    with pytest.raises(
        LayerError, match=r"layer turned has the channels.*gives \(8, 7, 8\)"
    ):
        extract(network, images, "x:turned")
    with torch.no_grad():
        maps = torch.relu(network.module.conv(pixels))
    for path in ("plain", "conv"):  # the map is that of a convolution: its kind tells
        (got,) = factors(network, images, f"x:{path}")
        expected = maps if path == "plain" else network.module.conv(pixels).detach()
        np.testing.assert_allclose(got, expected.mean(dim=(2, 3)), atol=1e-12)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
def test_a_network_that_takes_one_image_at_a_time_still_works(images, dtype):
    class Single(Tokens):
        def forward(self, x):
            return super().forward(x.reshape(1, 3, 8, 8))

    network, plain = network_of(Single), network_of(Tokens)
    network.module.to(dtype)
    names = "x:patches", "in:mlp@exact", "delta:mlp@exact"
    got = factors(network, images, *names, batch_size=1)
    for value, expected in zip(got, factors(plain, images, *names), strict=True):
        np.testing.assert_allclose(value, expected, atol=1e-6)


def test_what_is_found_out_about_a_network_is_kept(images):
    network = network_of(Windows)
    runs = []
    network.module.register_forward_hook(lambda *_: runs.append(1))
    first = factors(network, images[:1], "in:mlp", "delta:mlp", batch_size=1)
    before = len(runs)
    again = factors(network, images[:1], "in:mlp", "delta:mlp", batch_size=1)
    for value, same in zip(first, again, strict=True):
        np.testing.assert_array_equal(value, same)
    assert len(runs) - before < before
    other = dataclasses.replace(network, module=network_of(Rows).module)
    assert factors(other, images, "in:mlp")[0].shape == (5, 6)

import dataclasses

import numpy as np
import pytest
import torch
from torch import nn

from deepfishing.core.kernels import gram
from deepfishing.errors import (
    FeatureError,
    LayerError,
    NetworkError,
    OptionError,
    WeightsError,
)
from deepfishing.extraction.extract import extract
from deepfishing.extraction.settings import Settings
from deepfishing.images.preprocess import Preprocess
from deepfishing.networks.network import wrap

SMALL = Preprocess(8, 8, mean=(127.0,) * 3, std=(128.0,) * 3)


def mlp(*widths):
    layers = [nn.Flatten()]
    for i in range(len(widths) - 1):
        layers += [nn.Linear(widths[i], widths[i + 1]), nn.ReLU(inplace=True)]
    return nn.Sequential(*layers[:-1]).double()


class ViT(nn.Module):
    """Two transformer blocks on 2x2 patches, a class token, a linear head."""

    def __init__(self):
        super().__init__()
        self.patches = nn.Conv2d(3, 12, 4, stride=4)
        self.token = nn.Parameter(torch.randn(1, 1, 12))
        self.blocks = nn.ModuleList(
            nn.TransformerEncoderLayer(12, 2, 24, batch_first=True) for _ in range(2)
        )
        self.fc = nn.Linear(12, 5)

    def forward(self, x):
        x = self.patches(x).flatten(2).transpose(1, 2)
        x = torch.cat([self.token.expand(len(x), -1, -1), x], dim=1)
        for block in self.blocks:
            x = block(x)
        return self.fc(x[:, 0])


class Returns(nn.Module):
    """A network that returns its scores inside something else."""

    def __init__(self, shape):
        super().__init__()
        self.fc = nn.Linear(192, 4)
        self.shape = shape

    def forward(self, x):
        return self.shape(self.fc(x.flatten(1)))


@pytest.fixture
def images(rng):
    return [rng.integers(0, 256, (9, 12, 3), dtype=np.uint8) for _ in range(5)]


@pytest.fixture
def pixels(images):
    return torch.from_numpy(np.stack([SMALL(image) for image in images])).double()


def cosine(module, pixels, path, error):
    """Trace kernel of the normalised gradients, one image at a time."""
    weight = module.get_submodule(path).weight
    rows = []
    for image in pixels:
        (g,) = torch.autograd.grad(error(module.eval()(image[None])), weight)
        rows.append(g.flatten() / g.norm())
    return (torch.stack(rows) @ torch.stack(rows).T).numpy()


def softmax_error(y, tau=2.0):
    return -torch.log_softmax(y / tau, dim=1).mean(dim=1).sum()


def test_the_classifier_and_the_layers_below_it_are_found():
    assert wrap(mlp(192, 9, 7, 4), preprocess=SMALL).layers == {6: "1", 7: "3", 8: "5"}
    assert wrap(ViT(), preprocess=SMALL).layers == {8: "fc"}
    assert wrap(mlp(192, *[6] * 11), preprocess=SMALL).layers[1] == "7"
    assert wrap(Returns(lambda y: 3 * y), preprocess=SMALL).layers == {8: "fc"}
    pooled = nn.Sequential(
        nn.Conv2d(3, 4, 1), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten()
    )
    assert wrap(pooled, preprocess=SMALL).layers == {8: "0"}


def test_scores_that_no_layer_makes_have_no_short_names(images):
    assert wrap(nn.Flatten(), preprocess=SMALL, head="softmax").layers == {}
    network = wrap(
        Returns(lambda y: y[:, :2]).double(), preprocess=SMALL, head="softmax"
    )
    assert network.layers == {}
    assert extract(network, images, "dW:fc")["dW:fc"].shape == (5, 192, 4)


@pytest.mark.parametrize(
    "path", ["fc", "patches", "blocks.1.linear2", "blocks.0.linear1"]
)
def test_gradients_of_a_transformer_are_those_of_each_image(images, pixels, path):
    torch.manual_seed(0)
    module = ViT().double()
    network = wrap(module, preprocess=SMALL)
    found = extract(network, images, f"dW:{path}@exact")
    (kernel,) = map(gram, found.values())
    np.testing.assert_allclose(
        kernel, cosine(module, pixels, path, softmax_error), atol=1e-8
    )


@pytest.mark.parametrize(
    ("shape", "logits"),
    [
        (lambda y: {"out": y, "aux": 2 * y}, "out"),
        (lambda y: (y[:, :1], y), 1),
        (lambda y: [y.sum(), {"deep": y}], lambda output: output[1]["deep"]),
    ],
    ids=["dict", "tuple", "function"],
)
def test_scores_are_picked_out_of_dicts_tuples_and_anything(
    images, pixels, shape, logits
):
    torch.manual_seed(0)
    module = Returns(shape).double()
    network = wrap(module, preprocess=SMALL, logits=logits)
    plain = wrap(Returns(lambda y: y).double(), preprocess=SMALL)
    plain.module.load_state_dict(module.state_dict())
    for name in ("x8", "y8", "x7"):
        np.testing.assert_allclose(
            extract(network, images, name)[name],
            extract(plain, images, name)[name],
            rtol=1e-12,
        )
    np.testing.assert_allclose(
        gram(extract(network, images, "dW8")["dW8"]),
        gram(extract(plain, images, "dW8")["dW8"]),
    )
    with pytest.raises(LayerError, match="say which part of it with wrap"):
        wrap(module, preprocess=SMALL)


def test_an_output_object_is_picked_by_attribute(images):
    @dataclasses.dataclass
    class Output:
        logits: torch.Tensor

    network = wrap(Returns(Output).double(), preprocess=SMALL, logits="logits")
    assert network.layers == {8: "fc"}


@pytest.mark.parametrize("label", ["uniform", "predicted", 2, [0.1, 0.9, 0.5, 0.0]])
def test_a_sigmoid_head_has_binary_cross_entropies(images, pixels, label):
    torch.manual_seed(0)
    module = mlp(192, 9, 4)
    network = wrap(module, preprocess=SMALL, head="sigmoid")

    def error(y):
        s = torch.sigmoid(y / 3)
        g = {"uniform": torch.full_like(y, 0.5), "predicted": (y > 0).double()}.get(
            str(label)
        )
        if g is None:
            g = (
                torch.tensor(label).double()
                if isinstance(label, list)
                else torch.eye(4)[2]
            )
        return -(g * torch.log(s) + (1 - g) * torch.log(1 - s)).sum()

    found = extract(network, images, "dW7,x8", tau=3.0, label=label)
    np.testing.assert_allclose(
        gram(found["dW7"]), cosine(module, pixels, "1", error), atol=1e-10
    )
    expected = torch.sigmoid(module(pixels)).detach().numpy()
    expected /= np.linalg.norm(expected, axis=1, keepdims=True)
    np.testing.assert_allclose(found["x8"], expected, rtol=1e-5)


def test_an_embedding_takes_the_users_own_error(images, pixels):
    torch.manual_seed(0)
    module = mlp(192, 9, 4)

    def error(embedding):
        return (embedding**2).sum()

    network = wrap(module, preprocess=SMALL, head=error)
    assert network.layers == {}
    kernel = gram(extract(network, images, "dW:1")["dW:1"])
    np.testing.assert_allclose(kernel, cosine(module, pixels, "1", error), atol=1e-10)
    with pytest.raises(FeatureError, match="`all` needs a network with a classifier"):
        extract(network, images)


def test_an_embedding_gets_a_fixed_random_head(images, pixels):
    torch.manual_seed(0)
    module = mlp(192, 9, 4)

    def kernel(seed):
        network = wrap(module, preprocess=SMALL, head="random", seed=seed)
        return gram(extract(network, images, "dW:1")["dW:1"]), Settings.from_network(
            network
        ).digest

    first, again, other = kernel(0), kernel(0), kernel(1)
    np.testing.assert_array_equal(first[0], again[0])
    assert np.abs(first[0] - other[0]).max() > 1e-6
    assert first[1] == again[1] != other[1]
    R = torch.randn(4, 1000, generator=torch.Generator().manual_seed(0)).double() / 2
    expected = cosine(module, pixels, "1", lambda e: softmax_error(e @ R))
    np.testing.assert_allclose(first[0], expected, atol=1e-8)


def test_the_module_is_left_as_it_was(images):
    module = mlp(192, 9, 4).train()
    network = wrap(module, preprocess=SMALL)
    extract(network, images, "dW7")
    assert all(m.training for m in module.modules())
    assert all(p.requires_grad and p.grad is None for p in module.parameters())
    assert not any(m._forward_hooks for m in module.modules())


def test_other_weights_have_another_hash():
    module = mlp(192, 9, 4)
    before = wrap(module, preprocess=SMALL).weights_sha256
    with torch.no_grad():
        module[1].weight[0, 0] += 1e-6
    assert wrap(module, preprocess=SMALL).weights_sha256 != before


def test_what_cannot_be_wrapped_is_said_in_one_line():
    for module, options, error, words in [
        (lambda x: x, {}, OptionError, "must be a torch module"),
        (mlp(192, 4), {"head": "sofmax"}, OptionError, "head must be softmax"),
        (mlp(100, 4), {}, LayerError, "a blank one fails"),
        (nn.Conv2d(3, 4, 3), {"head": "softmax"}, LayerError, "got shape"),
        (mlp(192, 4), {"layers": {8: "2"}}, LayerError, "got '2' for 8"),
        (mlp(192, 4), {"layers": {9: "1"}}, LayerError, "numbered 1 to 8"),
        (ViT(), {"layers": {7: "patches"}}, LayerError, "ask for dW:PATH"),
    ]:
        with pytest.raises(error, match=words.replace("(", r"\(")):
            wrap(module, preprocess=SMALL, **options)


def test_given_layers_have_the_short_names(images):
    module = mlp(192, 9, 7, 4)
    network = wrap(module, layers={8: "5", 7: "3"}, preprocess=SMALL)
    assert list(extract(network, images)) == [
        *("x6", "x7", "y8", "x8", "x6;x7", "dW7", "x7;y8", "dW8"),
    ]


class Heads(nn.Module):
    """Two heads on one fully connected layer, and what is made of both."""

    def __init__(self, join):
        super().__init__()
        self.fc = nn.Linear(192, 6)
        self.a, self.b = nn.Linear(6, 4), nn.Linear(6, 4)
        self.join = join

    def forward(self, x):
        x = self.fc(x.flatten(1)).relu_()
        return self.join(self.a(x), self.b(x))


@pytest.mark.parametrize(("logits", "path"), [(0, "a"), (1, "b")])
def test_of_two_heads_the_classifier_is_the_one_that_makes_the_scores(
    images, logits, path
):
    module = Heads(lambda a, b: (a, b)).double()
    network = wrap(module, preprocess=SMALL, logits=logits)
    assert network.layers == {7: "fc", 8: path}  # and not the other head as layer 7
    pixels = torch.from_numpy(np.stack([SMALL(image) for image in images])).double()
    scores = module.eval()(pixels)[logits].detach()
    expected = scores / scores.norm(dim=1, keepdim=True)
    np.testing.assert_allclose(
        extract(network, images, "y8")["y8"], expected, rtol=1e-10
    )


def test_scores_that_several_layers_make_are_told():
    network = wrap(Heads(lambda a, b: (a + b) / 2), preprocess=SMALL)
    assert network.layers == {7: "fc", 8: "b"}
    assert network.notes == ("the scores are made of a and b; layer 8 is b",)
    assert wrap(Heads(lambda a, b: b), preprocess=SMALL).notes == ()


@pytest.mark.parametrize(
    ("end", "back", "head"),
    [
        (lambda y: y.softmax(1), torch.log, "softmax"),
        (torch.sigmoid, torch.logit, "sigmoid"),
    ],
    ids=["softmax", "sigmoid"],
)
def test_probabilities_are_not_taken_for_scores(images, end, back, head):
    torch.manual_seed(0)
    module = Returns(end).double()
    with pytest.raises(
        LayerError, match=rf"ends with a .*logits=torch\.{back.__name__}"
    ):
        wrap(module, preprocess=SMALL, head=head)
    plain = wrap(Returns(lambda y: y).double(), preprocess=SMALL, head=head)
    plain.module.load_state_dict(module.state_dict())
    again = wrap(module, preprocess=SMALL, head=head, logits=back)
    kernels = [
        gram(extract(network, images, "dW8")["dW8"]) for network in (again, plain)
    ]
    np.testing.assert_allclose(*kernels, rtol=1e-9)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_program_made_of_a_module_is_refused():
    module = mlp(192, 6, 4).eval()
    example = torch.zeros(2, 3, 8, 8).double()
    program = torch.export.export(module, (example,)).module()
    with pytest.raises(
        OptionError, match="module must be a torch module with its layers"
    ):
        wrap(program, preprocess=SMALL)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_torchscript_program_is_an_embedding(images, tmp_path):
    module = mlp(192, 6, 4).float().eval()
    other = mlp(192, 6, 4).float().eval()
    programs = []
    for number, one in enumerate((module, other)):
        torch.jit.save(torch.jit.script(one), tmp_path / f"{number}.pt")
        programs.append(torch.jit.load(tmp_path / f"{number}.pt"))
    network = wrap(programs[0], preprocess=SMALL)
    assert network.layers == {8: "-"}
    assert "TorchScript" in network.embedding
    pixels = torch.from_numpy(np.stack([SMALL(image) for image in images])).float()
    expected = module(pixels).detach().numpy()
    expected /= np.linalg.norm(expected, axis=1, keepdims=True)
    for engine in ("auto", "torch"):
        found = extract(network, images, "x7", engine=engine)["x7"]
        np.testing.assert_allclose(found, expected, atol=1e-5)
    again = torch.jit.load(tmp_path / "0.pt")
    assert wrap(again, preprocess=SMALL).weights_sha256 == network.weights_sha256
    assert wrap(programs[1], preprocess=SMALL).weights_sha256 != network.weights_sha256
    for wrong in ({"head": "softmax"}, {"logits": 0}, {"layers": {8: "4"}}):
        with pytest.raises(OptionError, match="must be used as an embedding"):
            wrap(programs[0], preprocess=SMALL, **wrong)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_compiled_module_is_read_as_it_was_before(images):
    module = mlp(192, 6, 4)
    network = wrap(torch.compile(module), preprocess=SMALL)
    assert network.module is module
    assert network.layers == {7: "1", 8: "3"}


def test_weights_without_numbers_are_refused():
    with pytest.raises(
        WeightsError, match=r"dense numbers, got a Tensor on meta for 1\.weight"
    ):
        wrap(mlp(192, 4).to("meta"), preprocess=SMALL)


def test_a_module_without_weights_has_probabilities(images):
    network = wrap(nn.Flatten(), preprocess=SMALL, head="softmax")
    assert extract(network, images, "x8")["x8"].shape == (5, 192)


@pytest.mark.parametrize("feature", ["x7", "y8", "x8", "dW8"])
def test_a_network_with_noise_is_refused_also_for_one_image_at_a_time(images, feature):
    module = Returns(lambda y: y).double()
    module.fc.register_forward_pre_hook(
        lambda _m, args: nn.functional.dropout(args[0], 0.3)
    )
    network = wrap(module, preprocess=SMALL)
    with pytest.raises(NetworkError, match="must give the same for the same image"):
        extract(network, images, feature, batch_size=1)


def test_features_that_are_not_finite_are_refused(images):
    module = Returns(lambda y: y)
    with torch.no_grad():
        module.fc.weight[0, 0] = torch.nan
    network = wrap(module, preprocess=SMALL)
    with pytest.raises(FeatureError, match="y8 must be finite"):
        extract(network, images, "y8", batch_size=1, engine="torch")
    with pytest.raises(
        LayerError, match="gradient of layer fc must be finite, got nan"
    ):
        extract(network, images, "dW8", batch_size=1)


def test_whatever_a_module_raises_for_a_blank_image_is_one_line():
    class Picky(nn.Module):
        def forward(self, x):
            assert x.shape[-1] % 7 == 0, "a side must be a multiple of 7"
            return x

    with pytest.raises(
        LayerError, match=r"a blank one fails \(a side must be a multiple of 7"
    ):
        wrap(Picky(), preprocess=SMALL)


def test_a_number_without_a_classifier_is_told_why(images):
    network = wrap(nn.Flatten(), preprocess=SMALL, head="softmax")
    with pytest.raises(
        FeatureError, match="got 'dW8': no layer was found that makes scores"
    ):
        extract(network, images, "dW8")


@pytest.mark.parametrize(
    "options", [{"tau": 3.0}, {"label": "predicted"}, {"label": [1.0] * 4}]
)
def test_tau_and_label_are_refused_beside_an_error_of_ones_own(images, options):
    network = wrap(mlp(192, 4), preprocess=SMALL, head=lambda y: y.pow(2).sum())
    with pytest.raises(OptionError, match="tau and label are for softmax and sigmoid"):
        extract(network, images, "dW:1", **options)

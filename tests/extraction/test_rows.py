import pytest
import torch
from torch import nn
from torch.nn import functional

from deepfishing.core.features import parse_factor
from deepfishing.core.projections import two_sided
from deepfishing.core.rank_one import RankOne
from deepfishing.extraction import rows
from deepfishing.extraction.extract import Extractor
from deepfishing.extraction.rows import few_rows, skipping_rows
from deepfishing.extraction.tap import tap
from deepfishing.networks.network import wrap
from deepfishing.networks.objectives import cross_entropy


class Block(nn.Module):
    """A transformer's last block: attention, then a pre-norm MLP on every token."""

    def __init__(self, read="token"):
        super().__init__()
        self.attention = nn.MultiheadAttention(8, 2, batch_first=True)
        self.proj = nn.Linear(8, 8)
        self.norm, self.fc1, self.fc2 = nn.LayerNorm(8), nn.Linear(8, 16), nn.Linear(16, 8)
        self.last, self.head = nn.LayerNorm(8), nn.Linear(8, 5)
        self.read = read

    def forward(self, x):
        x = x + self.proj(self.attention(x, x, x, need_weights=False)[0])
        x = x + self.fc2(functional.gelu(self.fc1(self.norm(x))))
        x = self.last(x)
        return self.head(x[:, 0] if self.read == "token" else x.mean(dim=1))


@pytest.fixture
def tokens():
    torch.manual_seed(0)
    return torch.randn(3, 7, 8)


@pytest.mark.parametrize("layer", ["proj", "fc1", "fc2"])
@pytest.mark.parametrize("read", ["token", "mean"])
def test_skipping_rows_changes_no_gradient(tokens, layer, read):
    torch.manual_seed(1)
    block = Block(read)
    layers = [layer, "fc2"] if layer != "fc2" else [layer]
    for path in layers:
        plain, skipped = (
            tap(block, tokens, (), layers, cross_entropy(), skip).calls[path][0].delta
            for skip in (False, True)
        )
        assert skipped.abs().max() > 0
        torch.testing.assert_close(skipped, plain, rtol=1e-5, atol=1e-8)


def test_only_rows_with_a_gradient_are_run_again(tokens, monkeypatch):
    seen = []

    def apply(func, rest, kwargs, x):
        seen.append(tuple(x.shape))
        return func(x, *rest, **kwargs)

    monkeypatch.setattr(rows, "_apply", apply)
    x = tokens.requires_grad_()
    with skipping_rows():
        y = functional.linear(functional.gelu(x), torch.randn(4, 8))
    assert seen == [(3, 7, 8), (3, 7, 8)]
    torch.autograd.grad(y[:2, 0].sum(), x)
    assert seen[2:] == [(2, 8), (2, 8)]


def test_a_tensor_that_was_written_to_begins_a_new_chain(tokens):
    x = tokens.requires_grad_()
    with skipping_rows():
        h = functional.gelu(x)
        h.mul_(3)
        y = functional.silu(h)
    (got,) = torch.autograd.grad(y[:, 0].sum(), x)
    (expected,) = torch.autograd.grad(functional.silu(functional.gelu(x) * 3)[:, 0].sum(), x)
    torch.testing.assert_close(got, expected)


def test_a_value_that_is_used_twice_gets_both_gradients(tokens):
    def twice(x):
        h = functional.gelu(x)
        return (functional.silu(h) * h)[:, 1].sum()

    x = tokens.requires_grad_()
    with skipping_rows():
        value = twice(x)
    (got,) = torch.autograd.grad(value, x)
    (expected,) = torch.autograd.grad(twice(x), x)
    torch.testing.assert_close(got, expected)


def test_a_norm_over_tokens_and_weights_that_learn_are_left_to_torch(tokens):
    x = tokens.requires_grad_()
    weight = torch.randn(4, 8, requires_grad=True)
    with skipping_rows():
        value = (
            functional.layer_norm(x, (7, 8))[:, 0].sum()
            + functional.linear(x, weight)[:, 0].square().sum()
        )
    got = torch.autograd.grad(value, (x, weight))
    value = (
        functional.layer_norm(x, (7, 8))[:, 0].sum()
        + functional.linear(x, weight)[:, 0].square().sum()
    )
    for a, b in zip(got, torch.autograd.grad(value, (x, weight)), strict=True):
        torch.testing.assert_close(a, b)


def test_nothing_but_the_chains_begin_is_kept(tokens):
    x = tokens.requires_grad_()
    wide = torch.randn(400, 8)
    kept = []
    with (
        torch.autograd.graph.saved_tensors_hooks(lambda t: kept.append(t.shape) or t, lambda t: t),
        skipping_rows(),
    ):
        functional.gelu(functional.linear(functional.layer_norm(x, (8,)), wide))
    assert {shape[-1] for shape in kept} == {8}


def test_maps_and_vectors_are_not_tokens():
    delta = torch.zeros(2, 3, 4)
    delta[:, 0] = 1
    assert few_rows([delta])
    assert not few_rows([delta, delta[:, :1]])
    assert not few_rows([torch.zeros(2, 3)])
    assert not few_rows([torch.zeros(2, 3, 4, 4)])


class Patches(nn.Module):
    """Images to tokens, a block on them, and an addition in place if asked for."""

    def __init__(self, read, add_in_place=False):
        super().__init__()
        torch.manual_seed(0)
        self.patches, self.proj = nn.Conv2d(3, 8, 56, stride=56), nn.Linear(8, 8)
        self.fc, self.block = nn.Linear(8, 8), Block(read)
        self.add_in_place = add_in_place

    def forward(self, x):
        x = self.patches(x).flatten(2).transpose(1, 2)
        if self.add_in_place:
            x = self.proj(x)
            x += self.fc(x)
            return self.block.head(x[:, 0])
        return self.block(x)


@pytest.mark.parametrize(
    ("read", "in_place", "skips"),
    [("token", False, True), ("mean", False, False), ("token", True, False)],
)
def test_an_extractor_skips_rows_where_that_helps_and_is_the_same(read, in_place, skips):
    network = wrap(Patches(read, in_place))
    layer = "proj" if in_place else "block.proj"
    names = [f"in:{layer}@exact", f"delta:{layer}@exact", f"dW:{layer}@3x2"]
    extractor = Extractor(network, [parse_factor(name) for name in names])
    pixels = torch.randn(3, 3, 224, 224)
    found = extractor.compute(extractor.compute.run(pixels.numpy()).clone(), 3)
    factors = {factor.name: values for factor, values in found.items()}
    assert extractor.compute.skips is skips
    call = tap(network.module, pixels, (), [layer], cross_entropy()).calls[layer][0]
    torch.testing.assert_close(torch.from_numpy(factors[f"delta:{layer}@exact"]), call.delta)
    torch.testing.assert_close(torch.from_numpy(factors[f"in:{layer}@exact"]), call.x)
    whole = two_sided(RankOne(call.x.numpy(), call.delta.numpy()), 3, 2)
    torch.testing.assert_close(torch.from_numpy(factors[f"dW:{layer}@3x2"]), torch.tensor(whole))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_a_row_of_any_value_but_zero_has_a_gradient(dtype):
    gradient = torch.zeros(1, 5, 3, dtype=dtype)
    gradient[0, 1, 0] = -1  # beside zeros
    gradient[0, 2, 1] = torch.finfo(dtype).smallest_normal
    gradient[0, 3, 2] = torch.nan
    assert rows._rows(gradient).tolist() == [[False, True, True, True, False]]
    assert rows._rows(gradient[:, :1].expand(1, 4, 3)).tolist() == [[False] * 4]

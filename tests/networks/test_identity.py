"""Functions are told apart by what they compute; what cannot be told is never taken for another."""

import functools
import operator
import sys
import types

import numpy as np
import pytest
import torch
from torch import nn

from deepfishing.networks.identity import architecture, identity
from deepfishing.networks.network import wrap
from deepfishing.networks.reference import UNIDENTIFIED

SCALE = 2.0


def made(text, **names):
    """A function `f` of some source, as another run or a changed file would have it."""
    module = types.ModuleType("made_up")
    module.__dict__.update(
        {"torch": torch, "F": torch.nn.functional, "nn": nn, **names}
    )
    exec(text, module.__dict__)
    return module.f


PAIRS = {
    "code": ["def f(y): return y.sum()", "def f(y): return y.mean()"],
    "constant": ["def f(y): return (2 * y).sum()", "def f(y): return (3 * y).sum()"],
    "default": [
        "def f(y, p=2): return (y ** p).sum()",
        "def f(y, p=3): return (y ** p).sum()",
    ],
    "inner": [
        "def f(y): return (lambda z: z + 1)(y)",
        "def f(y): return (lambda z: z + 2)(y)",
    ],
    "library": ["def f(y): return F.relu(y).sum()", "def f(y): return F.gelu(y).sum()"],
    "class": [
        "class E:\n def __call__(self, y): return y.sum()\nf = E()",
        "class E:\n def __call__(self, y): return y.mean()\nf = E()",
    ],
    "method": [
        "class E:\n p = 1\n def error(self, y): return self.p * y\nf = E().error",
        "class E:\n p = 2\n def error(self, y): return self.p * y\nf = E().error",
    ],
    "module": ["f = nn.CrossEntropyLoss()", "f = nn.CrossEntropyLoss(reduction='sum')"],
    "getter": [
        "import operator; f = operator.itemgetter('a')",
        "import operator; f = operator.itemgetter('b')",
    ],
    "builtin": ["f = torch.sum", "f = torch.mean"],
}


@pytest.mark.parametrize("pair", PAIRS.values(), ids=PAIRS)
def test_the_same_source_is_the_same_and_another_is_not(pair):
    first, again, other = (identity(made(text)) for text in (pair[0], *pair))
    assert first == again != other
    assert UNIDENTIFIED not in (first, other)


@pytest.mark.parametrize(
    ("one", "two"),
    [
        (2, 3),
        (torch.ones(3), torch.zeros(3)),
        (np.ones(3), np.zeros(3)),
        ([1, {"a": 2.0}], [1, {"a": 3.0}]),
        (lambda y: y + 1, lambda y: y + 2),
        (functools.partial(max, 1), functools.partial(max, 2)),
    ],
)
def test_what_it_closes_over_and_finds_by_name_counts(one, two):
    def closing(value):
        return lambda y: (y, value)

    text = "def f(y): return (y, value)"
    for make in (closing, lambda value: made(text, value=value)):
        assert identity(make(one)) == identity(make(one)) != identity(make(two))


def test_a_function_of_ones_own_behind_a_module_counts():
    def behind(text):
        helpers = types.ModuleType("helpers_of_nobody")
        helpers.f = made(text)
        return identity(made("def f(y): return helpers.f(y)", helpers=helpers))

    assert behind("def f(y): return y") == behind("def f(y): return y")
    assert behind("def f(y): return y") != behind("def f(y): return -y")


def test_what_cannot_be_told_is_said_so(tmp_path):
    (tmp_path / "a").write_text("")
    with (tmp_path / "a").open() as file:
        assert identity(lambda y: file.read()) == UNIDENTIFIED
    assert identity(functools.partial(operator.add, torch.Generator())) == UNIDENTIFIED
    deep = []
    for _ in range(sys.getrecursionlimit()):
        deep = [deep]
    assert identity(lambda y: deep) == UNIDENTIFIED


def test_a_network_says_which_head_and_which_scores():
    module = nn.Sequential(nn.Flatten(), nn.Linear(3 * 224 * 224, 4))

    def reference(**options):
        found = wrap(module, layers={8: "1"}, **options).reference()
        return found.head, found.scores

    assert reference() == ("softmax", "")
    assert reference(head="sigmoid") == ("sigmoid", "")
    assert reference(logits="out") == ("softmax", "'out'")
    assert reference(logits=0) != reference(logits="0")
    own = [reference(head=made(text)) for text in (PAIRS["code"][0], *PAIRS["code"])]
    assert own[0] == own[1] != own[2]
    seeds = [reference(head="random", seed=seed) for seed in (0, 0, 1)]
    assert seeds[0] == seeds[1] != seeds[2]
    assert reference(logits=lambda output: SCALE * output)[1] != UNIDENTIFIED


def test_the_same_weights_in_another_architecture_are_another_network():
    def network(activation, scale=1):
        class Own(nn.Sequential):
            def forward(self, x):
                return super().forward(x) * (2 if scale == 2 else 1)

        torch.manual_seed(0)
        return nn.Sequential(nn.Linear(4, 3), activation, Own(nn.Linear(3, 2)))

    relu, again, gelu = (
        architecture(network(a)) for a in (nn.ReLU(), nn.ReLU(), nn.GELU())
    )
    assert relu == again != gelu


class Holds(nn.Module):
    """A module that computes with whatever it holds."""

    def __init__(self, held):
        super().__init__()
        self.held = held

    def forward(self, x):
        return x * self.held


class Adds(Holds):
    def forward(self, x):
        return self.of(x)

    def of(self, x):
        return x + self.held


class Scales(Adds):
    def of(self, x):
        return x * self.held


def with_buffer(value):
    module = nn.Identity()
    module.register_buffer("value", torch.full((2,), value), persistent=False)
    return module


def with_hook(factor):
    module = nn.Identity()
    module.register_forward_hook(lambda _m, _x, y: factor * y)
    return module


@pytest.mark.parametrize(
    ("make", "one", "other"),
    [
        (Holds, 1, 2),
        (Holds, torch.ones(2), torch.zeros(2)),
        (Holds, lambda x: x + 1, lambda x: x + 2),
        (lambda kind: kind(1), Adds, Scales),
        (lambda heads: nn.MultiheadAttention(4, heads), 1, 2),
        (
            lambda first: nn.TransformerEncoderLayer(4, 1, 8, norm_first=first),
            False,
            True,
        ),
        (with_buffer, 1.0, 2.0),
        (with_hook, 1, 2),
    ],
    ids=[
        "number",
        "tensor",
        "function",
        "method",
        "heads",
        "norm first",
        "buffer",
        "hook",
    ],
)
def test_what_a_module_holds_tells_it_from_another(make, one, other):
    hashes = [architecture(nn.Sequential(make(value))) for value in (one, one, other)]
    assert hashes[0] == hashes[1] != hashes[2]


def test_of_what_cannot_be_told_in_a_module_the_kind_counts(tmp_path):
    with (tmp_path / "a").open("w") as a, (tmp_path / "b").open("w") as b:
        hashes = [architecture(Holds([file, 1])) for file in (a, b)]
    assert hashes[0] == hashes[1]

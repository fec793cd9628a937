"""Recipes that have a name of their own: `best`, `beyond`, and those among which `auto` chooses.

Comes in: a network's layers. Goes out: names of recipes, which `language` reads. `deepfishing.auto`
judges the candidates.
"""

from __future__ import annotations

from collections.abc import Mapping

from deepfishing.errors import FeatureError
from deepfishing.features import TOP

AUTO = "auto"  # what suits the training images
BEST = "best"  # what did best on validation data, docs/recipes.md
SCORES = f"y{TOP}"  # of which the delta of any temperature can be made
ROOT = f"pow(dW{TOP},0.5)"

# Other temperatures than the store's are tried with these: delta of lower layers needs the network.
TEMPERED = (("pow(dW8,0.5)", 1.0), ("dW8", 4.0), ("dW8", 8.0), ("dW8+x7", 4.0))

# What was tried beyond the paper, and is measured again by `--features beyond` (docs/recipes.md).
BEYOND = (
    # forward features alone
    *("pow(x7,0.5)", "whiten(x7,0.5)", "x6+x7+y8", "low+x7", "low*x7", "(2*low+1)*x7"),
    # one gradient
    *("pow(dW7,0.5)", "pow(dW8,0.5)", "whiten(dW7,0.5)", "whiten(dW8,0.5)", "whiten(dW8)"),
    # gradients and forward features
    *("dW7+x7", "dW8+x7", "dW6+dW7+x5", "pow(dW8,0.5)+pow(x7,0.5)", "whiten(dW8,0.5)+x7"),
    *("whiten(dW7,0.5)+low+x7", "whiten(dW7,0.5)+whiten(dW8,0.5)+x7", "low*dW8"),
    "low*(whiten(dW7,0.5)+whiten(dW8,0.5)+pow(dW8,0.5)+x7)",
    "(2*low+1)*(whiten(dW7,0.5)+whiten(dW8,0.5)+pow(dW8,0.5)+x7)",
    BEST,
)


def best_recipe(layers: Mapping[int, str]) -> str:
    """What `best` stands for: "looks alike" below the layers, times "means alike" in them.

    What is below fully connected layers is a map, which says where things are. Below other
    layers it is averaged over positions, and then it counts for two thirds.

    >>> best_recipe({6: "fc6", 7: "fc7", 8: "fc8"})
    'x5*(whiten(dW7,0.5)+whiten(dW8,0.5)+pow(dW8,0.5)+x6+x7)'
    >>> best_recipe({7: "_conv_head", 8: "_fc"})
    '(2*x6+1)*(whiten(dW7,0.5)+whiten(dW8,0.5)+pow(dW8,0.5)+x7)'
    """
    _need_classifier(layers, f"recipe {BEST!r}")
    lowest = min(layers)
    low = f"x{lowest - 1}" if lowest <= TOP - 2 else f"(2*x{lowest - 1}+1)"
    forward = [f"x{k}" for k in range(min(lowest, TOP - 1), TOP)]
    return f"{low}*({'+'.join([_whitened(layers), ROOT, *forward])})"


def prior(layers: Mapping[int, str]) -> str:
    """The recipe that is taken unless the training images speak for another one."""
    return f"dW7+dW8+{ROOT}+x7" if TOP - 1 in layers else f"dW8+{ROOT}+x7"


def few_rule(examples: float, layers: Mapping[int, str]) -> str:
    """The recipe for so few examples per class that nothing can be validated.

    >>> few_rule(1, {7: "_conv_head", 8: "_fc"}), few_rule(4, {7: "_conv_head", 8: "_fc"})
    ('2*dW8+pow(dW8,0.5)', 'pow(dW8,0.5)+dW8+dW7')
    """
    lowest, few = min(layers), f"{ROOT}+dW8+dW7"
    if lowest <= TOP - 2:  # below is a map, as in `best_recipe`
        return f"(2*x{lowest - 1}+1)*({few})"
    return f"2*dW8+{ROOT}" if examples < 2 or TOP - 1 not in layers else few


def candidates(layers: Mapping[int, str]) -> tuple[str, ...]:
    """The recipes that `auto` compares, the simplest first.

    >>> candidates({8: "fc"})[:5]
    ('x7', 'dW8', 'pow(dW8,0.5)', 'dW8+x7', 'pow(dW8,0.5)+dW8')
    """
    _need_classifier(layers, repr(AUTO))
    low, full = f"x{min(layers) - 1}", f"{_whitened(layers)}+{ROOT}+x7"
    names = ["x7", f"{low}+x7", "dW8", "dW7", ROOT, "dW8+x7", "dW7+x7", f"{ROOT}+dW8"]
    names += [f"{ROOT}+pow(x7,0.5)", f"pow(dW7,0.5)+{ROOT}", f"{ROOT}+dW8+dW7", prior(layers)]
    names += [f"{_whitened(layers)}+x7", full, f"(2*{low}+1)*x7", f"{low}*x7"]
    for part in (f"{ROOT}+x7", "dW7+x7", prior(layers), full):
        names += [f"(2*{low}+1)*({part})", f"{low}*({part})"]
    if low == "x7":  # which says nothing beside itself
        names = [name for name in names if not name.startswith(("(", "x7*", "x7+"))]
    names = [name for name in names if TOP - 1 in layers or "dW7" not in name]
    return tuple(dict.fromkeys([*names, best_recipe(layers)]))


def _whitened(layers: Mapping[int, str]) -> str:
    return "+".join(f"whiten(dW{k},0.5)" for k in (TOP - 1, TOP) if k in layers)


def _need_classifier(layers: Mapping[int, str], what: str) -> None:
    if TOP not in layers:
        raise FeatureError(f"{what} needs a network with a classifier; name the features")

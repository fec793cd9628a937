"""Target: the names of features and the language of recipes, up to a kernel of three images."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from deepfishing.core.features import parse_features
from deepfishing.core.kernels import gram
from deepfishing.core.recipes import Recipe, parse_recipe, parse_recipes
from fuzz.rule import obey
from fuzz.target import Run, Target

LAYERS = {6: "fc6", 7: "fc7", 8: "fc8"}
_WIDTHS = {
    "x5": 4,
    "x6": 3,
    "x7": 3,
    "x8": 2,
    "y6": 3,
    "y7": 3,
    "y8": 2,
    "delta6": 3,
    "delta7": 3,
    "delta8": 2,
}
_MOST = 12  # parts of a recipe that is fitted


def _recipe(folder: Path) -> Run:
    rng = np.random.default_rng(0)
    arrays = {name: rng.normal(size=(3, d)).astype("f4") for name, d in _WIDTHS.items()}

    def use(recipe: Recipe) -> None:
        again = parse_recipe(recipe.name, LAYERS)
        if again.name != recipe.name:
            raise ValueError(f"{recipe.name!r} is read back as {again.name!r}")
        # what is named by number must be there; a path may be any text
        numbered = [f for f in recipe.factors if isinstance(f.layer, int)]
        there = [f.name for f in numbered if f.positions == "pooled"]
        if absent := [name for name in there if name not in arrays]:
            raise KeyError(f"{recipe.name!r} needs {absent}, which no network has")
        if len(there) == len(recipe.factors) and len(recipe.name) < 40 * _MOST:
            gram(recipe.fit(arrays)(arrays))

    def run(data: bytes) -> None:
        text = data.decode("utf-8", "surrogateescape")
        obey(lambda: parse_features(text, LAYERS))
        obey(lambda: [use(recipe) for recipe in parse_recipes(text, LAYERS)])

    return run


_SEEDS = (
    "all",
    "beyond",
    "best",
    "x5;x6,dW7@exact",
    "dW:head.1@64x32,x:a.b",
    "dW8*low",
)
_SEEDS += ("pow(dW7,0.5)+whiten(dW8,0.1)*x7", "2*(x7+3*y8)*x6+1", "whiten(pow(x6,2))")
_TOKENS = (
    "pow(",
    "whiten(",
    ")",
    "(",
    "+",
    "*",
    ",",
    ";",
    "@",
    "@exact",
    "@2x3",
    "x7",
    "dW8",
)
_TOKENS += ("dW:", "x:", "y8", "low", "0.5", "1e-9", "best", " ", "x٧", "dW٨", "x07")

TARGETS = {
    "recipe": Target(
        "names of features and recipes",
        _recipe,
        lambda: [text.encode() for text in _SEEDS],
        tokens=tuple(token.encode() for token in _TOKENS),
    )
}

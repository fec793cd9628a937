"""The recipes among which `auto` chooses, and the factors that it needs for that.

Comes in: a network's layers. Goes out: names of recipes, the simplest first. `deepfishing.auto` is
the judge; this part costs nothing, so that a command can tell a mistyped name at once.
"""

from __future__ import annotations

from collections.abc import Mapping

from deepfishing.errors import FeatureError
from deepfishing.features import TOP, Factor, needed_factors
from deepfishing.recipes.language import parse_recipe, parse_recipes
from deepfishing.recipes.recipe import best_recipe

AUTO = "auto"


def candidates(layers: Mapping[int, str]) -> tuple[str, ...]:
    """The recipes that are compared, the simplest first.

    Examples
    --------
    >>> candidates({8: "fc"})[:5]
    ('x7', 'dW8', 'pow(dW8,0.5)', 'dW8+x7', 'pow(dW8,0.5)+dW8')
    """
    if TOP not in layers:
        raise FeatureError(f"{AUTO!r} needs a network with a classifier; name the features")
    low, x7, r8 = f"x{min(layers) - 1}", "x7", "pow(dW8,0.5)"
    deep = TOP - 1 in layers
    sums = [x7, *([f"{low}+x7"] if low != x7 else []), "dW8", *(["dW7"] if deep else []), r8]
    sums += ["dW8+x7", *(["dW7+x7"] if deep else []), f"{r8}+dW8", f"{r8}+pow(x7,0.5)"]
    sums += [f"pow(dW7,0.5)+{r8}+x7", f"dW7+dW8+{r8}+x7"] if deep else [f"dW8+{r8}+x7"]
    inner = [x7, f"{r8}+x7", *(["dW7+x7", f"dW7+dW8+{r8}+x7"] if deep else [])]
    outer = [f"(2*{low}+1)", low] if low != x7 else []
    products = [f"{times}*({part})" for times in outer for part in inner]
    return (*sums, *products, best_recipe(layers))


def factors_of(recipe: str, layers: Mapping[int, str]) -> tuple[Factor, ...]:
    """The factors that a recipe needs; `auto` needs those of all candidates.

    Examples
    --------
    >>> [factor.name for factor in factors_of("auto", {8: "fc"})]
    ['x7', 'delta8']
    """
    if recipe.strip() == AUTO:
        return needed_factors(parse_recipes(candidates(layers), layers))
    return parse_recipe(recipe, layers).factors

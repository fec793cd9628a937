"""The recipes among which `auto` chooses, and the factors that it needs for that.

Comes in: a network's layers. Goes out: names of recipes, the simplest first. `deepfishing.auto` is
the judge; this part costs nothing, so that a command can tell a mistyped name at once.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from deepfishing.errors import FeatureError
from deepfishing.features import TOP, parse_feature
from deepfishing.recipes.language import AUTO, parse_recipes
from deepfishing.recipes.recipe import Recipe, Transform, Whitenings, best_recipe

SCORES = f"y{TOP}"  # of which the delta of any temperature can be made
ROOT = f"pow(dW{TOP},0.5)"

# Other temperatures than the store's are tried with these: delta of lower layers needs the network.
TEMPERED = (("pow(dW8,0.5)", 1.0), ("dW8", 4.0), ("dW8", 8.0), ("dW8+x7", 4.0))


def prior(layers: Mapping[int, str]) -> str:
    """The recipe that is taken unless the training images speak for another one."""
    return f"dW7+dW8+{ROOT}+x7" if TOP - 1 in layers else f"dW8+{ROOT}+x7"


def few_rule(examples: float, layers: Mapping[int, str]) -> str:
    """The recipe for so few examples per class that nothing can be validated.

    Examples
    --------
    >>> few_rule(1, {7: "_conv_head", 8: "_fc"}), few_rule(4, {7: "_conv_head", 8: "_fc"})
    ('2*dW8+pow(dW8,0.5)', 'pow(dW8,0.5)+dW8+dW7')
    >>> few_rule(4, {6: "fc6", 7: "fc7", 8: "fc8"})
    '(2*x5+1)*(pow(dW8,0.5)+dW8+dW7)'
    """
    lowest, few = min(layers), f"{ROOT}+dW8+dW7"
    if lowest <= TOP - 2:  # below is a map, as in `best_recipe`
        return f"(2*x{lowest - 1}+1)*({few})"
    return f"2*dW8+{ROOT}" if examples < 2 or TOP - 1 not in layers else few


def candidates(
    layers: Mapping[int, str], columns: Collection[str] | None = None
) -> tuple[str, ...]:
    """The recipes that are compared, the simplest first: those that these columns suffice for.

    Examples
    --------
    >>> candidates({8: "fc"})[:5]
    ('x7', 'dW8', 'pow(dW8,0.5)', 'dW8+x7', 'pow(dW8,0.5)+dW8')
    >>> candidates({7: "fc7", 8: "fc8"}, ["x6", "x7"])
    ('x7', 'x6+x7', '(2*x6+1)*x7', 'x6*x7')
    """
    if TOP not in layers:
        raise FeatureError(f"{AUTO!r} needs a network with a classifier; name the features")
    low, x7, deep = f"x{min(layers) - 1}", "x7", TOP - 1 in layers
    whitened = "+".join(f"whiten(dW{k},0.5)" for k in (TOP - 1, TOP) if k in layers)
    sums = [x7, *([f"{low}+x7"] if low != x7 else []), "dW8", *(["dW7"] if deep else []), ROOT]
    sums += ["dW8+x7", *(["dW7+x7"] if deep else []), f"{ROOT}+dW8", f"{ROOT}+pow(x7,0.5)"]
    sums += [f"pow(dW7,0.5)+{ROOT}", f"{ROOT}+dW8+dW7"] if deep else []
    sums += [prior(layers), f"{whitened}+x7", f"{whitened}+{ROOT}+x7"]
    inner = [x7, f"{ROOT}+x7", *(["dW7+x7"] if deep else []), prior(layers)]
    inner.append(f"{whitened}+{ROOT}+x7")
    outer = [f"(2*{low}+1)", low] if low != x7 else []
    products = [
        f"{times}*({part})" if "+" in part else f"{times}*{part}"
        for part in inner
        for times in outer
    ]
    recipes = parse_recipes([*sums, *products, best_recipe(layers)], layers)
    return tuple(r.name for r in recipes if columns is None or set(r.columns) <= set(columns))


def auto_recipe(layers: Mapping[int, str]) -> Recipe:
    """`auto` before anything is chosen: it has the features of all candidates, and the scores.

    Examples
    --------
    >>> auto_recipe({8: "fc"}).columns
    ('x7', 'delta8', 'y8')
    """
    names = parse_recipes(candidates(layers), layers)
    features = dict.fromkeys(feature for recipe in names for feature in recipe.features)

    def build(whitenings: Whitenings) -> Transform:
        raise FeatureError(f"{AUTO!r} is chosen by `deepfish train`; name a recipe here")

    return Recipe(AUTO, (*features, parse_feature(SCORES)), build, learns=True)

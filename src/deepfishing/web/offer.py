"""Stage 8, the page: the kernels that can be chosen.

Comes in: a store and the recipes that the user named. Goes out: recipes of forward features and of
gradients whose factors the store has, the preselected one first. The page can ask for these and no
others, so that a visitor cannot make the server fit whatever recipe there is.
"""

from __future__ import annotations

from dataclasses import dataclass

from deepfishing.errors import FeatureError, OptionError
from deepfishing.features import Factor, features_of, needed_factors, table_features
from deepfishing.networks.reference import layers_of
from deepfishing.recipes import Recipe, parse_recipe
from deepfishing.search.compare import DEFAULTS, choose_recipe
from deepfishing.store import Store

# Before all others if the store has them. The first gradient is what `deepfish search` takes, and
# the first forward recipe the features that most people take.
FIRST = ("x7", "pow(x7,0.5)", *DEFAULTS, "pow(dW8,0.5)")


@dataclass(frozen=True)
class Offer:
    """Recipes by their titles, the preselected one first; one side may be empty."""

    forward: tuple[str, ...]
    gradient: tuple[str, ...]
    factors: tuple[Factor, ...]  # that all of them need together

    def __contains__(self, name: object) -> bool:
        return name in self.forward or name in self.gradient


def make_offer(store: Store, forward: str | None = None, gradient: str | None = None) -> Offer:
    """What a store can be searched by, beginning with the recipes that the user named."""
    there = set(store.factors())
    layers = layers_of(store.settings)
    others = [feature.name for feature in features_of(there)]
    sides: dict[bool, dict[str, Recipe]] = {True: {}, False: {}}
    for asked, side in ((forward, False), (gradient, True)):
        if asked is not None:
            recipe = choose_recipe(store, asked)  # says what is wrong and what to do
            if recipe.is_gradient is not side:
                raise OptionError(
                    f"--{'gradient' if side else 'forward'} must be a recipe "
                    f"{'with' if side else 'without'} a gradient, got {recipe.name}; "
                    f"try {'dW8' if side else 'x7'}"
                )
            sides[side][recipe.title] = recipe
    for name in (*FIRST, *table_features(layers), *others):
        try:
            recipe = parse_recipe(name, layers)
        except FeatureError:
            continue  # of a layer that the network does not have
        if there.issuperset(recipe.columns):
            sides[recipe.is_gradient].setdefault(recipe.title, recipe)
    if not sides[False] and not sides[True]:
        choose_recipe(store)  # an empty store, or one with nothing known in it: says so
        raise OptionError(f"{store.folder} has no factors that the page knows; pass --forward")
    recipes = (*sides[False].values(), *sides[True].values())
    return Offer(tuple(sides[False]), tuple(sides[True]), needed_factors(recipes))

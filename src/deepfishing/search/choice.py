"""Stage 7, search: which recipe a store is searched by.

Comes in: a store and, if the user named one, a recipe. Goes out: the parsed recipe, whose factors
the store has; or the error with the command that adds them.
"""

from __future__ import annotations

import contextlib

from deepfishing.errors import FeatureError, StoreError
from deepfishing.networks.reference import layers_of
from deepfishing.recipes import Recipe, parse_recipe
from deepfishing.store import Store

# The first of these that a store has all factors of. The first one was the most precise on the
# trainval images of VOC 2007 (docs/search.md); then gradients from the top, then forward features.
DEFAULTS = ("pow(dW8,0.5)+pow(x7,0.5)", "dW8", "dW7", "dW6", "x7", "x6", "y8")


def choose_recipe(store: Store, by: str | None = None) -> Recipe:
    """The recipe of this name, or the default one; an error if the store lacks its factors."""
    layers = layers_of(store.settings)
    there = set(store.factors())
    if not there:
        raise StoreError(
            f"a store must have images to search in, got none in {store.folder}; add some with "
            "`deepfish extract`"
        )
    if by is None:
        for name in DEFAULTS:
            with contextlib.suppress(FeatureError):  # of a layer that the network does not have
                recipe = parse_recipe(name, layers)
                if there.issuperset(recipe.columns):
                    return recipe
        raise StoreError(
            f"{store.folder} has no factors of a default recipe, got {', '.join(sorted(there))}; "
            "name a recipe with --by"
        )
    recipe = parse_recipe(by, layers)
    absent = [name for name in recipe.columns if name not in there]
    if absent:
        names = [feature.name for feature in recipe.features]
        raise StoreError(
            f"store {store.folder} must hold {', '.join(recipe.columns)} for {recipe.name}, but "
            f"lacks {', '.join(absent)}; add them with `deepfish extract IMAGES {store.folder} "
            f"--features '{','.join(names)}'`"
        )
    return recipe

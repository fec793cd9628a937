"""Recipes: kernels made of features, as values (`recipe`) and in a small language (`language`)."""

from deepfishing.core.recipes.language import parse_recipe, parse_recipes, pieces
from deepfishing.core.recipes.recipe import AUTO, CHOSEN, Arrays, Fitted, Recipe

__all__ = [
    "AUTO",
    "CHOSEN",
    "Arrays",
    "Fitted",
    "Recipe",
    "parse_recipe",
    "parse_recipes",
    "pieces",
]

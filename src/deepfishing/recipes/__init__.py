"""Recipes: kernels made of features, as values (`recipe`) and in a small language (`language`)."""

from deepfishing.recipes.language import BEYOND, parse_recipe, parse_recipes, pieces
from deepfishing.recipes.recipe import BEST, Arrays, Fitted, Recipe, best_recipe

__all__ = [
    "BEST",
    "BEYOND",
    "Arrays",
    "Fitted",
    "Recipe",
    "best_recipe",
    "parse_recipe",
    "parse_recipes",
    "pieces",
]

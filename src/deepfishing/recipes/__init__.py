"""Recipes: kernels made of features, as values (`recipe`) and in a small language (`language`)."""

from deepfishing.recipes.candidates import candidates, few_rule, prior
from deepfishing.recipes.language import AUTO, BEYOND, parse_recipe, parse_recipes, pieces
from deepfishing.recipes.recipe import BEST, Arrays, Fitted, Recipe, best_recipe

__all__ = [
    "AUTO",
    "BEST",
    "BEYOND",
    "Arrays",
    "Fitted",
    "Recipe",
    "best_recipe",
    "candidates",
    "few_rule",
    "parse_recipe",
    "parse_recipes",
    "pieces",
    "prior",
]

"""Recipes: kernels made of features, as values (`recipe`) and in a small language (`language`)."""

from deepfishing.recipes.language import parse_recipe, parse_recipes, pieces
from deepfishing.recipes.named import AUTO, best_recipe, candidates, few_rule, prior
from deepfishing.recipes.recipe import Arrays, Fitted, Recipe

__all__ = [
    "AUTO",
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

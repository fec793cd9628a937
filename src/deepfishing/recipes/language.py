"""Recipes: features, and kernels made of them, in one small language.

Comes in: text such as `dW7`, `pow(dW7,0.5)+pow(x7,0.5)` or `whiten(dW7,0.1)*x7`. Goes out: a
`Recipe`, which is fitted on the training images and then turns factors into something that `gram`
compares.

    recipe  = term { "+" term }       the mean of kernels
    term    = [weight "*"] part { "*" part }   the product of kernels, weighted in the mean
            | weight                  the kernel that is 1 for all images
    part    = feature | "pow(" part "," exponent ")" | "whiten(" part ["," shrinkage] ")"
            | "(" recipe ")"

`best` alone is the recipe that did best on validation data, docs/recipes.md. Tables call it by that
title; its name is the formula. `auto` alone is chosen when a model is trained.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterable, Mapping
from dataclasses import replace

from deepfishing.errors import FeatureError
from deepfishing.features import TOP, Feature, expand_names, parse_feature, split_names
from deepfishing.recipes.named import AUTO, BEST, BEYOND, SCORES, best_recipe, candidates
from deepfishing.recipes.recipe import FUNCTIONS, ONE, Recipe, apply, leaf, mean, product

_WORD = r"[+*(),]|[^+*(),\s]+"
_DEEPEST = 20  # parentheses in parentheses
_WEIGHT = "a weight above 0 and up to 1000"


def parse_recipes(text: str | Iterable[str], layers: Mapping[int, str]) -> tuple[Recipe, ...]:
    """Read a comma-separated list of recipes.

    `all` stands for the rows of the paper's Table 1, `beyond` for those of `BEYOND` whose layers
    exist.

    >>> [r.name for r in parse_recipes("x7, pow(dW8,0.5)", {8: "fc"})]
    ['x7', 'pow(dW8,0.5)']
    """
    recipes: list[Recipe] = []
    for name in expand_names(text, layers):
        if name != "beyond":
            recipes.append(parse_recipe(name, layers))
            continue
        for row in BEYOND:
            with contextlib.suppress(FeatureError):  # of a layer that this network does not have
                recipes.append(parse_recipe(row, layers))
    return tuple({recipe.name: recipe for recipe in recipes}.values())


def parse_recipe(text: str, layers: Mapping[int, str] | None = None) -> Recipe:
    """Read one recipe against a network's layers, k -> module path.

    Without layers any number will do: for names that were checked when they were written.
    """
    text = text.strip()
    if text in ("all", "beyond"):
        raise FeatureError(f"one recipe is needed here, got {text!r}, a list; try {BEST}")
    if text == AUTO:  # before anything is chosen it has the features of all candidates
        names = parse_recipes([*candidates(layers or {TOP: ""}), SCORES], layers or {TOP: ""})
        features = dict.fromkeys(feature for recipe in names for feature in recipe.features)
        return Recipe(AUTO, AUTO, tuple(map(leaf, features)))
    recipe = _Parser(best_recipe(layers or {}) if text == BEST else text, layers).whole()
    if not recipe.features:
        raise FeatureError(f"recipe {text!r} must name a feature, got only a number")
    if layers is None:  # those that it names
        layers = {f.layer: "" for f in recipe.factors if isinstance(f.layer, int)}
    return replace(recipe, is_best=TOP in layers and recipe.name == best_recipe(layers))


def pieces(name: str) -> list[Feature | str]:
    """A recipe's name in order, for those who typeset it: its features, and what joins them.

    >>> [piece if isinstance(piece, str) else piece.symbols for piece in pieces("pow(x7,0.5)")]
    ['pow', '(', (('x', '7', ''),), ',', '0.5', ')']
    """
    found: list[Feature | str] = []
    for word in re.findall(_WORD, name):
        try:
            found.append(parse_feature(word))
        except FeatureError:
            found.append(word)
    return found


class _Parser:
    """Recursive descent over the words of one recipe."""

    def __init__(self, text: str, layers: Mapping[int, str] | None) -> None:
        self.text, self.layers = text, layers
        self.words = [(match.group(), match.start()) for match in re.finditer(_WORD, text)]
        self.words.append(("", len(text)))
        self.at = self.depth = 0

    @property
    def word(self) -> str:
        return self.words[self.at][0]

    def skip(self, word: str) -> bool:
        """Whether this word is next; then it is passed."""
        found = self.word == word
        self.at += found
        return found

    def expect(self, word: str, what: str) -> None:
        if not self.skip(word):
            raise self.error(what)

    def error(self, lacking: str) -> FeatureError:
        word, start = self.words[self.at]
        before, place = self.text[:start].strip(), "at its end"
        if word:
            place = f"between {before!r} and {word!r}" if before else f"before {word!r}"
        return FeatureError(f"recipe {self.text!r} lacks {lacking} {place}")

    def whole(self) -> Recipe:
        recipe = self.sum()
        word, start = self.words[self.at]
        if word == ",":
            together = "+".join(split_names(self.text))
            raise FeatureError(
                f"one recipe is needed here, got the list {self.text!r}; write {together} to "
                "compare by all of them together"
            )
        if word == ")":
            before = self.text[:start].strip()
            raise FeatureError(f"recipe {self.text!r} has one ) too many behind {before!r}")
        if word:
            raise self.error("+ or *")
        return recipe

    def sum(self) -> Recipe:
        self.depth += 1
        if self.depth > _DEEPEST:
            raise FeatureError(f"recipe {self.text[:40]!r} must not nest deeper than {_DEEPEST}")
        parts = [self.product()]
        while self.skip("+"):
            parts.append(self.product())
        self.depth -= 1
        return mean(parts)

    def product(self) -> Recipe:
        weight = 1.0
        if re.match(r"[\d.]", self.word):
            weight = self.number(_WEIGHT, 1000.0)
            if not self.skip("*"):
                return replace(ONE, weight=weight)
        parts = [self.part()]
        while self.skip("*"):
            parts.append(self.part())
        return replace(product(parts), weight=weight)

    def part(self) -> Recipe:
        word = self.word
        if self.skip("("):
            inner = self.sum()
            self.expect(")", "a closing parenthesis")
            return inner if inner.is_plain else replace(inner, name=f"({inner.name})")
        if word in ("", "+", "*", ")", ","):
            raise self.error("a feature such as x7 or dW8")
        self.at += 1
        if word in FUNCTIONS and self.skip("("):
            return self.function(word)
        return leaf(parse_feature(word, self.layers))

    def function(self, name: str) -> Recipe:
        step, inner, number = FUNCTIONS[name], self.sum(), None
        if step.is_plain and not inner.is_plain:
            raise FeatureError(
                f"{name} must take one feature, got {inner.name!r}; transform its parts instead"
            )
        if self.skip(","):
            number = self.number(step.needs, step.most)
        elif not step.optional:
            raise self.error(f"a comma and {step.number}")
        self.expect(")", "a closing parenthesis")
        return apply(name, inner, number)

    def number(self, what: str, most: float) -> float:
        try:
            value = float(self.word)
        except ValueError:
            raise self.error(what) from None
        if not 0 < value <= most:
            raise FeatureError(f"recipe {self.text!r} needs {what}, got {self.word}")
        self.at += 1
        return value

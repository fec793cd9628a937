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
from deepfishing.recipes.recipe import (
    BEST,
    ONE,
    Recipe,
    best_recipe,
    leaf,
    mean,
    power,
    product,
    whiten,
)

AUTO = "auto"  # what suits the training images: recipes.candidates, deepfishing.auto
_WORD = r"[+*(),]|[^+*(),\s]+"

# What was tried beyond the paper, and is measured again by `--features beyond` (docs/recipes.md).
BEYOND = (
    # forward features alone
    *("pow(x7,0.5)", "whiten(x7,0.5)", "x6+x7+y8", "low+x7", "low*x7", "(2*low+1)*x7"),
    # one gradient
    *("pow(dW7,0.5)", "pow(dW8,0.5)", "whiten(dW7,0.5)", "whiten(dW8,0.5)", "whiten(dW8)"),
    # gradients and forward features
    *("dW7+x7", "dW8+x7", "dW6+dW7+x5", "pow(dW8,0.5)+pow(x7,0.5)", "whiten(dW8,0.5)+x7"),
    *("whiten(dW7,0.5)+low+x7", "whiten(dW7,0.5)+whiten(dW8,0.5)+x7", "low*dW8"),
    "low*(whiten(dW7,0.5)+whiten(dW8,0.5)+pow(dW8,0.5)+x7)",
    "(2*low+1)*(whiten(dW7,0.5)+whiten(dW8,0.5)+pow(dW8,0.5)+x7)",
    BEST,
)


def parse_recipes(text: str | Iterable[str], layers: Mapping[int, str]) -> tuple[Recipe, ...]:
    """Read a comma-separated list of recipes.

    `all` stands for the rows of the paper's Table 1, `beyond` for those of `BEYOND` whose layers
    there are.

    Examples
    --------
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

    Examples
    --------
    >>> parse_recipe("pow(dW8", {8: "fc"})
    Traceback (most recent call last):
    deepfishing.errors.FeatureError: recipe 'pow(dW8' lacks a comma and an exponent at its end
    """
    if text.strip() in ("all", "beyond"):
        raise FeatureError(f"one recipe is needed here, got {text!r}, a list; try {BEST}")
    if text.strip() == AUTO:
        from deepfishing.recipes.candidates import auto_recipe  # which is made of recipes

        return auto_recipe(layers or {TOP: ""})
    parser = _Parser(best_recipe(layers or {}) if text.strip() == BEST else text, layers)
    recipe = parser.sum()
    parser.end()
    if not recipe.features:
        raise FeatureError(f"recipe {text!r} must name a feature, got only a number")
    if layers is None:  # those that it names
        layers = {f.layer: "" for f in recipe.factors if isinstance(f.layer, int)}
    return replace(recipe, is_best=TOP in layers and recipe.name == best_recipe(layers))


def pieces(name: str) -> list[Feature | str]:
    """A recipe's name in order, for those who typeset it: its features, and what joins them.

    Examples
    --------
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
    """Recursive descent over the tokens of one recipe."""

    def __init__(self, text: str, layers: Mapping[int, str] | None) -> None:
        self.text, self.layers = text, layers
        self.tokens = [(match.group(), match.start()) for match in re.finditer(_WORD, text)]
        self.tokens.append(("", len(text)))
        self.at = 0
        self.depth = 0

    def peek(self) -> str:
        return self.tokens[self.at][0]

    def take(self) -> str:
        token = self.peek()
        self.at += 1
        return token

    def expect(self, token: str, what: str) -> None:
        if self.peek() != token:
            raise self.error(what)
        self.at += 1

    def end(self) -> None:
        word, start = self.tokens[self.at]
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

    def error(self, lacking: str) -> FeatureError:
        token, start = self.tokens[self.at]
        before = self.text[:start].strip()
        place = "at its end"
        if token:
            place = f"between {before!r} and {token!r}" if before else f"before {token!r}"
        return FeatureError(f"recipe {self.text!r} lacks {lacking} {place}")

    def sum(self) -> Recipe:
        self.depth += 1
        if self.depth > 20:
            raise FeatureError(f"recipe {self.text[:40]!r} must not nest deeper than 20")
        parts = [self.product()]
        while self.peek() == "+":
            self.take()
            parts.append(self.product())
        self.depth -= 1
        return mean(parts)

    def product(self) -> Recipe:
        weight, parts = 1.0, []
        if re.match(r"[\d.]", self.peek()):
            weight = self.number("a weight above 0 and up to 1000", 0.0, 1000.0)
            if self.peek() != "*":
                return replace(ONE, weight=weight)
            self.take()
        parts.append(self.part())
        while self.peek() == "*":
            self.take()
            parts.append(self.part())
        return replace(product(parts), weight=weight)

    def part(self) -> Recipe:
        word = self.peek()
        if word == "(":
            self.take()
            inner = self.sum()
            self.expect(")", "a closing parenthesis")
            return inner if inner.is_plain else replace(inner, name=f"({inner.name})")
        if word in ("", "+", "*", ")", ","):
            raise self.error("a feature such as x7 or dW8")
        self.take()
        if word in ("pow", "whiten") and self.peek() == "(":
            return self.function(word)
        return leaf(parse_feature(word, self.layers))

    def function(self, name: str) -> Recipe:
        self.take()
        inner = self.sum()
        if not inner.is_plain:
            raise FeatureError(
                f"{name} must take one feature, got {inner.name!r}; transform its parts instead"
            )
        number = None
        if name == "pow":
            self.expect(",", "a comma and an exponent")
            number = self.number("an exponent above 0 and up to 4", 0.0, 4.0)
        elif self.peek() == ",":
            self.take()
            number = self.number("a shrinkage above 0 and up to 1", 0.0, 1.0)
        self.expect(")", "a closing parenthesis")
        return power(inner, number) if name == "pow" and number else whiten(inner, number)

    def number(self, what: str, low: float, high: float) -> float:
        try:
            value = float(self.peek())
        except ValueError:
            raise self.error(what) from None
        if not low < value <= high:
            raise FeatureError(f"recipe {self.text!r} needs {what}, got {self.peek()}")
        self.take()
        return value

"""Recipes: features, and kernels made of them, in one small language.

Text such as `dW7`, `pow(dW7,0.5)+x7` or `whiten(dW7,0.1)*x7` is read as a `Recipe`.

    recipe  = term { "+" term }       the mean of kernels
    term    = [weight "*"] part { "*" part }   the product of kernels, weighted in the mean
            | weight                  the kernel that is 1 for all images
    part    = feature | "pow(" part "," exponent ")" | "whiten(" part ["," shrinkage] ")"
            | "rbf(" recipe "," width ")"   exp(2 g (K - 1)) of the recipe's kernel K
            | "own(" part ["," count] ")"   gradient of a head made of unlabelled photos
            | "smooth(" part ["," n] ")"    mean with the n nearest unlabelled photos
            | "(" recipe ")"

`best` alone is the recipe that did best on validation data, docs/recipes.md. Tables call it by that
title; its name is the formula. `auto` alone is chosen among `candidates` when a model is trained,
`auto-forward` among those without gradients, `forward` among those of these without unlabelled
photos.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterable, Mapping
from dataclasses import replace

from deepfishing.core.features import (
    TOP,
    Feature,
    expand_names,
    has_classifier,
    parse_feature,
    split_names,
)
from deepfishing.core.recipes.recipe import (
    AUTO,
    BEST,
    CHOSEN,
    FUNCTIONS,
    ONE,
    Recipe,
    apply,
    leaf,
    spell,
)
from deepfishing.errors import FeatureError

SCORES = f"y{TOP}"  # of which the delta of any temperature can be made
ROOT = f"pow(dW{TOP},0.5)"

# Other temperatures than the store's are tried with these: delta of lower layers needs the network.
TEMPERED = (("pow(dW8,0.5)", 1.0), ("dW8", 4.0), ("dW8", 8.0), ("dW8+x7", 4.0))

# What was tried beyond the paper, and is measured again by `--features beyond` (docs/recipes.md).
BEYOND = (
    # forward features alone
    *("pow(x7,0.5)", "whiten(x7,0.5)", "x6+x7+y8", "low+x7", "low*x7", "(2*low+1)*x7"),
    # one gradient
    *(
        "pow(dW7,0.5)",
        "pow(dW8,0.5)",
        "whiten(dW7,0.5)",
        "whiten(dW8,0.5)",
        "whiten(dW8)",
    ),
    # gradients and forward features
    *(
        "dW7+x7",
        "dW8+x7",
        "dW6+dW7+x5",
        "pow(dW8,0.5)+pow(x7,0.5)",
        "whiten(dW8,0.5)+x7",
    ),
    *("whiten(dW7,0.5)+low+x7", "whiten(dW7,0.5)+whiten(dW8,0.5)+x7", "low*dW8"),
    "low*(whiten(dW7,0.5)+whiten(dW8,0.5)+pow(dW8,0.5)+x7)",
    "(2*low+1)*(whiten(dW7,0.5)+whiten(dW8,0.5)+pow(dW8,0.5)+x7)",
    BEST,
)

_WORD = r"[+*(),]|[^+*(),\s]+"
_DEEPEST = 20  # parentheses in parentheses
_WEIGHT = "a weight above 0 and up to 1000"


def parse_recipes(
    text: str | Iterable[str], layers: Mapping[int, str]
) -> tuple[Recipe, ...]:
    """Read a comma-separated list; `all` and `beyond` are replaced by rows whose layers exist."""
    recipes: dict[str, Recipe] = {}
    for name in expand_names(text, layers):
        if name == "beyond":
            recipes |= known_recipes(BEYOND, layers)
        else:
            recipe = parse_recipe(name, layers)
            recipes[recipe.name] = recipe
    return tuple(recipes.values())


def known_recipes(names: Iterable[str], layers: Mapping[int, str]) -> dict[str, Recipe]:
    """Return the recipes whose layers the network has, by their names."""
    recipes = {}
    for name in names:
        with contextlib.suppress(FeatureError):
            recipe = parse_recipe(name, layers)
            recipes[recipe.name] = recipe
    return recipes


def parse_recipe(text: str, layers: Mapping[int, str] | None = None) -> Recipe:
    """Read one recipe against a network's layers, k -> module path; without, any number will do."""
    text = text.strip()
    if text in ("all", "beyond"):
        raise FeatureError(
            f"one recipe is needed here, got {text!r}, a list; try {BEST}"
        )
    if text in CHOSEN:
        return _unchosen_recipe(text, layers or {TOP: ""})
    formula = text
    if text == BEST:
        formula = best_recipe(layers or {})
    recipe = _Parser(formula, layers).whole()
    if not recipe.features:
        raise FeatureError(f"recipe {text!r} must name a feature, got only a number")
    if layers is None:  # those that it names
        layers = {f.layer: "" for f in recipe.factors if isinstance(f.layer, int)}
    return replace(recipe, is_best=TOP in layers and recipe.name == best_recipe(layers))


def _unchosen_recipe(kind: str, layers: Mapping[int, str]) -> Recipe:
    """Return `auto`, or another of `CHOSEN`, with the features of all its candidates."""
    names = list(candidates(layers, kind))
    if kind == AUTO and has_classifier(layers):
        names.append(SCORES)
    features: dict[Feature, None] = {}
    for recipe in parse_recipes(names, layers):
        features.update(dict.fromkeys(recipe.features))
    return Recipe(kind, AUTO, tuple(map(leaf, features)))


def pieces(name: str) -> list[Feature | str]:
    """Return the features in a recipe's name and the text between them, in order."""
    parts: list[Feature | str] = []
    for word in re.findall(_WORD, name):
        try:
            parts.append(parse_feature(word))
        except FeatureError:
            parts.append(word)
    return parts


class _Parser:
    """Recursive descent over the words of one recipe."""

    def __init__(self, text: str, layers: Mapping[int, str] | None) -> None:
        self.text, self.layers = text, layers
        self.words = [
            (match.group(), match.start()) for match in re.finditer(_WORD, text)
        ]
        self.words.append(("", len(text)))
        self.at = self.depth = 0

    @property
    def word(self) -> str:
        return self.words[self.at][0]

    def skip(self, word: str) -> bool:
        """Move past this word if it is next, and return whether it was."""
        is_next = self.word == word
        if is_next:
            self.at += 1
        return is_next

    def close(self) -> None:
        if not self.skip(")"):
            raise self.error("a closing parenthesis")

    def error(self, lacking: str) -> FeatureError:
        word, start = self.words[self.at]
        before = self.text[:start].strip()
        if not word:
            where = "at its end"
        elif before:
            where = f"between {before!r} and {word!r}"
        else:
            where = f"before {word!r}"
        return FeatureError(f"recipe {self.text!r} lacks {lacking} {where}")

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
            raise FeatureError(
                f"recipe {self.text!r} has one ) too many behind {before!r}"
            )
        if word:
            raise self.error("+ or *")
        return recipe

    def sum(self) -> Recipe:
        self.depth += 1
        if self.depth > _DEEPEST:
            raise FeatureError(
                f"recipe {self.text[:40]!r} must not nest deeper than {_DEEPEST}"
            )
        parts = [self.product()]
        while self.skip("+"):
            parts.append(self.product())
        self.depth -= 1
        if len(parts) == 1:  # a weight has no effect without other parts
            return replace(parts[0], weight=1.0)
        return Recipe("+".join(map(_term, parts)), "mean", tuple(parts))

    def product(self) -> Recipe:
        weight = 1.0
        if re.match(r"[\d.]", self.word):
            weight = self.number(_WEIGHT, 1000.0)
            if not self.skip("*"):
                return replace(ONE, weight=weight)
        parts = [self.part()]
        while self.skip("*"):
            parts.append(self.part())
        if len(parts) == 1:
            return replace(parts[0], weight=weight)
        name = "*".join(part.name for part in parts)
        return Recipe(name, "product", tuple(parts), weight=weight)

    def part(self) -> Recipe:
        word = self.word
        if self.skip("("):
            inner = self.sum()
            self.close()
            if inner.is_plain:
                return inner
            return replace(inner, name=f"({inner.name})")
        if word in ("", "+", "*", ")", ","):
            raise self.error("a feature such as x7 or dW8")
        self.at += 1
        if word in FUNCTIONS and self.skip("("):
            return self.function(word)
        return leaf(parse_feature(word, self.layers))

    def function(self, name: str) -> Recipe:
        step = FUNCTIONS[name]
        inner = self.sum()
        number = None
        if step.is_plain and not inner.is_plain:
            raise FeatureError(
                f"{name} must take one feature, got {inner.name!r}; transform its parts instead"
            )
        if self.skip(","):
            number = self.number(step.needs, step.most)
        elif not step.optional:
            raise self.error(f"a comma and {step.number}")
        self.close()
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


def _term(part: Recipe) -> str:
    """Return the text of a part of a mean, with its weight."""
    if not part.features:
        return spell(part.weight)
    if part.weight == 1:
        return part.name
    return f"{spell(part.weight)}*{part.name}"


def best_recipe(layers: Mapping[int, str]) -> str:
    """Return the formula of `best`: the kernel below the layers times the one of the layers.

    The output below fully connected layers is a map, which shows where things are. Below other
    layers it is averaged over positions, and then its weight is two thirds.

    >>> best_recipe({7: "_conv_head", 8: "_fc"})
    '(2*x6+1)*(whiten(dW7,0.5)+whiten(dW8,0.5)+pow(dW8,0.5)+x7)'
    """
    _need_layers(layers, f"recipe {BEST!r}")
    if not has_classifier(layers):
        return OWN_HEAD
    lowest = min(layers)
    low = f"x{lowest - 1}"
    if lowest > TOP - 2:
        low = f"(2*{low}+1)"
    forward = [f"x{k}" for k in range(min(lowest, TOP - 1), TOP)]
    return f"{low}*({'+'.join([_whitened(layers), ROOT, *forward])})"


def forward_kernels(layers: Mapping[int, str]) -> tuple[str, str]:
    """Two Gaussian kernels of forward features that together suit most photographs."""
    lowest = min(layers)
    if lowest == TOP:
        return "rbf(pow(x7,0.5),2)", "rbf(x7,2)"
    return "rbf(pow(x7,0.5),2)", f"rbf(x{lowest - 1}+x{lowest},2)"


def forward_prior(layers: Mapping[int, str]) -> str:
    """Return the forward recipe that is taken unless validation prefers another one."""
    return "+".join(forward_kernels(layers))


def prior(layers: Mapping[int, str]) -> str:
    """Return the recipe that is taken unless validation prefers another one."""
    if not has_classifier(layers):
        return OWN_HEAD
    if TOP - 1 in layers:
        return f"dW7+dW8+{ROOT}+x7"
    return f"dW8+{ROOT}+x7"


# The embedding and gradients of a head made of the photos, for networks without a classifier.
OWN_HEAD = "2*x7+own(x7,64)+pow(own(x7),0.5)"
OWN_HEAD_CANDIDATES = (
    *("x7", "pow(x7,0.5)", "rbf(x7,2)", "own(x7,64)", "pow(own(x7),0.5)"),
    *("x7+own(x7,64)", OWN_HEAD, f"rbf({OWN_HEAD},2)"),
)


def forward_candidates(layers: Mapping[int, str]) -> tuple[str, ...]:
    """The forward recipes that `auto` compares, the simplest first."""
    names = ["x7", "pow(x7,0.5)", "rbf(x7,2)", "rbf(pow(x7,0.5),2)"]
    for below in {7: ("x6",), 6: ("x6", "x5")}.get(min(layers), ()):
        names += [
            f"{below}+x7",
            f"(2*{below}+1)*x7",
            f"{below}*x7",
            f"rbf({below}+x7,2)",
        ]
        names += [f"rbf(pow(x7,0.5),1)*{below}"]
    if min(layers) == TOP - 2:
        names += ["x5+x6", "x5+x6+x7", "x5*(x6+x7)", "rbf(x5+x6,2)", "rbf(x5+x6+x7,2)"]
    return (*names, forward_prior(layers))


def candidates(layers: Mapping[int, str], kind: str = AUTO) -> tuple[str, ...]:
    """The recipes that `auto`, or another of `CHOSEN`, compares, the simplest first."""
    _need_layers(layers, repr(kind))
    forward = forward_candidates(layers)
    if kind != AUTO:
        return forward
    if not has_classifier(layers):
        return tuple(dict.fromkeys([*forward, *OWN_HEAD_CANDIDATES]))
    low, full = f"x{min(layers) - 1}", f"{_whitened(layers)}+{ROOT}+x7"
    names = ["x7", f"{low}+x7", "dW8", "dW7", ROOT, "dW8+x7", "dW7+x7", f"{ROOT}+dW8"]
    names += [
        f"{ROOT}+pow(x7,0.5)",
        f"pow(dW7,0.5)+{ROOT}",
        f"{ROOT}+dW8+dW7",
        prior(layers),
    ]
    names += [f"{_whitened(layers)}+x7", full, f"(2*{low}+1)*x7", f"{low}*x7"]
    for part in (f"{ROOT}+x7", "dW7+x7", prior(layers), full):
        names += [f"(2*{low}+1)*({part})", f"{low}*({part})"]
    if low == "x7":  # products with itself add nothing
        names = [name for name in names if not name.startswith(("(", "x7*", "x7+"))]
    names = [name for name in names if TOP - 1 in layers or "dW7" not in name]
    return tuple(dict.fromkeys(["x7", *forward[1:], *names, best_recipe(layers)]))


def _whitened(layers: Mapping[int, str]) -> str:
    return "+".join(f"whiten(dW{k},0.5)" for k in (TOP - 1, TOP) if k in layers)


def _need_layers(layers: Mapping[int, str], what: str) -> None:
    if TOP not in layers:
        raise FeatureError(
            f"{what} needs a network with a classifier or an embedding; name the features"
        )

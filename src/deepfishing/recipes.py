"""Recipes: features, and kernels made of them, in one small language.

Comes in: text such as `dW7`, `pow(dW7,0.5)+pow(x7,0.5)` or `whiten(dW7,0.1)*x7`. Goes out: a
`Recipe`, which is fitted on the training images and then turns factors into something that `gram`
compares.

    recipe  = term { "+" term }       the mean of kernels
    term    = [weight "*"] part { "*" part }   the product of kernels, weighted in the mean
            | weight                  the kernel that is 1 for all images
    part    = feature | "pow(" part "," exponent ")" | "whiten(" part ["," shrinkage] ")"
            | "(" recipe ")"

`best` alone is the recipe that did best on validation data, docs/recipes.md.

`pow` raises both factors of a gradient to a signed power, sign(v) |v|^p, and normalises again.
`whiten` divides both factors by the Cholesky root of their second moments on the training images:
the Fisher kernel with the information matrix factored as A (x) G, docs/recipes.md. The shrinkage is
Ledoit and Wolf's unless one is given.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace

import numpy as np

from deepfishing.errors import FeatureError
from deepfishing.features import (
    TOP,
    Feature,
    assemble,
    expand_names,
    needed_factors,
    parse_feature,
)
from deepfishing.kernels import Comparable, KernelProduct, KernelSum
from deepfishing.rank_one import Array, RankOne, l2_normalize
from deepfishing.whitening import Whitening

BEST = "best"

# What was tried beyond the paper, and is measured again by `--features beyond` (docs/recipes.md).
BEYOND = (
    # forward features alone
    *("pow(x7,0.5)", "whiten(x7,0.5)", "x6+x7+y8", "low+x7", "low*x7", "(2*low+1)*x7"),
    # one gradient
    *(
        "dlogp8",
        "pow(dW7,0.5)",
        "pow(dW8,0.5)",
        "whiten(dW7,0.5)",
        "whiten(dW8,0.5)",
        "whiten(dW8)",
    ),
    # gradients and forward features
    *("dW7+x7", "dW8+x7", "dW6+dW7+x5", "pow(dW8,0.5)+pow(x7,0.5)", "whiten(dW8,0.5)+x7"),
    *("whiten(dW7,0.5)+low+x7", "whiten(dW7,0.5)+whiten(dW8,0.5)+x7", "low*dW8"),
    "low*(whiten(dW7,0.5)+whiten(dW8,0.5)+pow(dW8,0.5)+x7)",
    "(2*low+1)*(whiten(dW7,0.5)+whiten(dW8,0.5)+pow(dW8,0.5)+x7)",
    BEST,
)

Arrays = Mapping[str, Array]
Transform = Callable[[Arrays], Comparable]

# what `whiten` needs to know: its own name, the feature it takes and the shrinkage asked for
Whitenings = Callable[[str, Transform, float | None], list[Whitening]]


@dataclass(frozen=True, eq=False)
class Fitted:
    """A recipe that has seen the training images: makes of factors what `gram` compares.

    `state` is all that it learnt, the roots of its whitenings, for `Recipe.load`.
    """

    transform: Transform
    state: dict[str, Array]

    def __call__(self, arrays: Arrays) -> Comparable:
        """Turn the factors of some images into the feature, or the features, of this recipe."""
        return self.transform(arrays)


@dataclass(frozen=True)
class Recipe:
    """A parsed recipe: its name in one spelling, the factors it needs, and how to fit it.

    Examples
    --------
    >>> recipe = parse_recipe("pow( dW7 , .5 ) + x7", {7: "fc7", 8: "fc8"})
    >>> recipe.name, recipe.factors
    ('pow(dW7,0.5)+x7', ('x6', 'delta7', 'x7'))
    """

    name: str
    factors: tuple[str, ...]
    build: Callable[[Whitenings], Transform]
    # per gradient the factor whose columns its delta has, None where whitening has mixed them
    gradients: tuple[str | None, ...] = ()
    is_plain: bool = False  # one feature or a transform of it, not a combination of kernels
    weight: float = 1.0  # in the sum that it is a term of

    def fit(self, train: Arrays) -> Fitted:
        """Learn what there is to learn from the training images' factors."""
        state: dict[str, Array] = {}

        def learn(name: str, inner: Transform, shrinkage: float | None) -> list[Whitening]:
            seen = inner(train)
            factors = [seen.x, seen.delta] if isinstance(seen, RankOne) else [seen]
            learnt = [Whitening.fit(f, shrinkage) for f in factors]  # type: ignore[arg-type]
            state.update({f"{name}/{n}": white.root for n, white in enumerate(learnt)})
            return learnt

        return Fitted(self.build(learn), state)

    def load(self, state: Arrays) -> Fitted:
        """The fitted recipe again, from the `state` that an earlier fit left."""

        def recall(name: str, inner: Transform, shrinkage: float | None) -> list[Whitening]:
            roots = [state[key] for n in range(2) if (key := f"{name}/{n}") in state]
            if not roots:
                raise FeatureError(f"state of recipe {self.name} must hold {name}, got none")
            return [Whitening(root, shrinkage or 0.0) for root in roots]

        return Fitted(self.build(recall), dict(state))


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


def parse_recipe(text: str, layers: Mapping[int, str]) -> Recipe:
    """Read one recipe against a network's layers, k -> module path.

    Examples
    --------
    >>> parse_recipe("pow(dW8", {8: "fc"})
    Traceback (most recent call last):
    deepfishing.errors.FeatureError: recipe 'pow(dW8' must have ',' at character 8, got its end
    """
    parser = _Parser(best_recipe(layers) if text.strip() == BEST else text, layers)
    recipe = parser.sum()
    parser.expect("")
    if not recipe.factors:
        raise FeatureError(f"recipe {text!r} must name a feature, got only a number")
    return recipe


def best_recipe(layers: Mapping[int, str]) -> str:
    """What `best` stands for: "looks alike" below the layers, times "means alike" in them.

    What is below fully connected layers is a map, which says where things are. Below other
    layers it is averaged over positions, and then it counts for two thirds.

    Examples
    --------
    >>> best_recipe({6: "fc6", 7: "fc7", 8: "fc8"})
    'x5*(whiten(dW7,0.5)+whiten(dW8,0.5)+pow(dW8,0.5)+x6+x7)'
    >>> best_recipe({7: "_conv_head", 8: "_fc"})
    '(2*x6+1)*(whiten(dW7,0.5)+whiten(dW8,0.5)+pow(dW8,0.5)+x7)'
    """
    if TOP not in layers:
        raise FeatureError(f"recipe {BEST!r} needs a network with a classifier; name the features")
    lowest = min(layers)
    low = f"x{lowest - 1}" if lowest <= TOP - 2 else f"(2*x{lowest - 1}+1)"
    whitened = [f"whiten(dW{k},0.5)" for k in (TOP - 1, TOP) if k in layers]
    forward = [f"x{k}" for k in range(min(lowest, TOP - 1), TOP)]
    return f"{low}*({'+'.join([*whitened, f'pow(dW{TOP},0.5)', *forward])})"


class _Parser:
    """Recursive descent over the tokens of one recipe."""

    def __init__(self, text: str, layers: Mapping[int, str]) -> None:
        self.text, self.layers = text, layers
        self.tokens = [
            (match.group(), match.start()) for match in re.finditer(r"[+*(),]|[^+*(),\s]+", text)
        ] + [("", len(text))]
        self.at = 0
        self.depth = 0

    def peek(self) -> str:
        return self.tokens[self.at][0]

    def take(self) -> str:
        token = self.peek()
        self.at += 1
        return token

    def expect(self, token: str) -> None:
        if self.peek() != token:
            raise self.error(f"{token!r}" if token else "its end")
        self.at += 1

    def error(self, expected: str) -> FeatureError:
        token, start = self.tokens[self.at]
        got = repr(token) if token else "its end"
        return FeatureError(
            f"recipe {self.text!r} must have {expected} at character {start + 1}, got {got}"
        )

    def sum(self) -> Recipe:
        self.depth += 1
        if self.depth > 20:
            raise FeatureError(f"recipe {self.text[:40]!r} must not nest deeper than 20")
        parts = [self.product()]
        while self.peek() == "+":
            self.take()
            parts.append(self.product())
        self.depth -= 1
        return _sum(parts)

    def product(self) -> Recipe:
        weight, parts = 1.0, []
        if re.match(r"[\d.]", self.peek()):
            weight = self.number("a weight above 0 and up to 1000", 0.0, 1000.0)
            if self.peek() != "*":
                return replace(_ONE, weight=weight)
            self.take()
        parts.append(self.part())
        while self.peek() == "*":
            self.take()
            parts.append(self.part())
        return replace(_product(parts), weight=weight)

    def part(self) -> Recipe:
        word = self.peek()
        if word == "(":
            self.take()
            inner = self.sum()
            self.expect(")")
            if inner.is_plain:
                return inner
            return replace(inner, name=f"({inner.name})")
        if word in ("", "+", "*", ")", ","):
            raise self.error("a feature, a weight, pow(...), whiten(...) or a parenthesis")
        self.take()
        if word in ("pow", "whiten") and self.peek() == "(":
            return self.function(word)
        return _leaf(parse_feature(word, self.layers))

    def function(self, name: str) -> Recipe:
        self.expect("(")
        inner = self.sum()
        if not inner.is_plain:
            raise FeatureError(
                f"{name} must take one feature, got {inner.name!r}; transform its parts instead"
            )
        number = None
        if name == "pow":
            self.expect(",")
            number = self.number("an exponent above 0 and up to 4", 0.0, 4.0)
        elif self.peek() == ",":
            self.take()
            number = self.number("a shrinkage above 0 and up to 1", 0.0, 1.0)
        self.expect(")")
        return _power(inner, number) if name == "pow" and number else _whiten(inner, number)

    def number(self, what: str, low: float, high: float) -> float:
        try:
            value = float(self.peek())
        except ValueError:
            raise self.error(what) from None
        if not low < value <= high:
            raise self.error(what)
        self.take()
        return value


def _leaf(feature: Feature) -> Recipe:
    return Recipe(
        feature.name,
        feature.factors,
        lambda whitenings: lambda arrays: assemble(feature, arrays),
        gradients=feature.factors[1:] if feature.gradient else (),
        is_plain=True,
    )


def _power(inner: Recipe, exponent: float) -> Recipe:
    def raised(values: Array) -> Array:
        out: Array = np.sign(values) * np.abs(values) ** exponent
        return out

    def build(whitenings: Whitenings) -> Transform:
        transform = inner.build(whitenings)
        return lambda arrays: _each_factor(raised, transform(arrays))

    return replace(inner, name=f"pow({inner.name},{_spell(exponent)})", build=build)


def _whiten(inner: Recipe, shrinkage: float | None) -> Recipe:
    number = "" if shrinkage is None else f",{_spell(shrinkage)}"
    name = f"whiten({inner.name}{number})"

    def build(whitenings: Whitenings) -> Transform:
        before = inner.build(whitenings)
        learnt = whitenings(name, before, shrinkage)

        def transform(arrays: Arrays) -> Comparable:
            value = before(arrays)
            if isinstance(value, RankOne):
                return RankOne(learnt[0](value.x), learnt[1](value.delta)).normalize()
            return l2_normalize(learnt[0](value))  # type: ignore[arg-type]

        return transform

    return replace(inner, name=name, build=build, gradients=(None,) * len(inner.gradients))


def _spell(number: float) -> str:
    """Short where that is the same number: a name must be read back as the recipe it names."""
    short = f"{number:g}"
    return short if float(short) == number else repr(number)


def _each_factor(change: Callable[[Array], Array], value: Comparable) -> Comparable:
    if isinstance(value, RankOne):
        return RankOne(change(value.x), change(value.delta)).normalize()
    return l2_normalize(change(value))  # type: ignore[arg-type]


def _product(parts: list[Recipe]) -> Recipe:
    if len(parts) == 1:
        return parts[0]

    def build(whitenings: Whitenings) -> Transform:
        transforms = [part.build(whitenings) for part in parts]
        return lambda arrays: KernelProduct(tuple(transform(arrays) for transform in transforms))

    name = "*".join(part.name for part in parts)
    return Recipe(name, needed_factors(parts), build, _gradients(parts))


def _sum(parts: list[Recipe]) -> Recipe:
    if len(parts) == 1:  # a weight says nothing without others
        return replace(parts[0], weight=1.0)
    weights = tuple(part.weight for part in parts)

    def build(whitenings: Whitenings) -> Transform:
        transforms = [part.build(whitenings) for part in parts]
        return lambda arrays: KernelSum(
            tuple(transform(arrays) for transform in transforms), weights
        )

    name = "+".join(map(_term, parts))
    return Recipe(name, needed_factors(parts), build, _gradients(parts))


def _gradients(parts: list[Recipe]) -> tuple[str | None, ...]:
    return tuple(gradient for part in parts for gradient in part.gradients)


def _term(part: Recipe) -> str:
    if not part.factors:
        return _spell(part.weight)
    return part.name if part.weight == 1 else f"{_spell(part.weight)}*{part.name}"


def _constant(arrays: Arrays) -> Array:
    return np.ones((len(next(iter(arrays.values()))), 1), dtype=np.float32)


_ONE = Recipe("1", (), lambda whitenings: _constant)  # compares all images as 1

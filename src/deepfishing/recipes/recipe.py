"""A recipe as a value: kernels made of features, what they learn, and what they are called.

Comes in: features, and parts that are recipes themselves. Goes out: a `Recipe`, which is fitted on
the training images and then turns factors into something that `gram` compares.

`power` raises both factors of a gradient to a signed power, sign(v) |v|^p, and normalises again.
`whiten` divides both factors by the Cholesky root of their second moments on the training images:
the Fisher kernel with the information matrix factored as A (x) G, docs/recipes.md. The shrinkage is
Ledoit and Wolf's unless one is given.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from numbers import Real
from typing import Any

import numpy as np

from deepfishing.errors import FeatureError
from deepfishing.features import TOP, Factor, Feature, assemble, needed_factors
from deepfishing.kernels import Comparable, KernelProduct, KernelSum
from deepfishing.rank_one import Array, RankOne, l2_normalize
from deepfishing.whitening import Whitening

BEST = "best"

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
    """A parsed recipe: its name in one spelling, its features, and how to fit it.

    Examples
    --------
    >>> from deepfishing.recipes import parse_recipe
    >>> recipe = parse_recipe("pow( dW7 , .5 ) + x7", {7: "fc7", 8: "fc8"})
    >>> recipe.name, recipe.columns
    ('pow(dW7,0.5)+x7', ('x6', 'delta7', 'x7'))
    >>> parse_recipe("best", {7: "fc7", 8: "fc8"}).title
    'best'
    """

    name: str
    features: tuple[Feature, ...]
    build: Callable[[Whitenings], Transform]
    # per gradient the factor whose columns its delta has, None where whitening has mixed them
    gradients: tuple[Factor | None, ...] = ()
    is_plain: bool = False  # one feature or a transform of it, not a combination of kernels
    learns: bool = False  # something from the training images
    weight: float = 1.0  # in the sum that it is a term of
    is_best: bool = False  # the formula that `best` stands for
    # how it is made, for those who compute it elsewhere: a word, then what it is made of
    tree: tuple[Any, ...] = ()
    parts: tuple[Recipe, ...] = ()  # of a mean or a product

    @property
    def title(self) -> str:
        """What tables and the page call it: its name, unless that is the formula of `best`."""
        return BEST if self.is_best else self.name

    @property
    def factors(self) -> tuple[Factor, ...]:
        """The factors that it needs, each once."""
        return needed_factors(self.features)

    @property
    def columns(self) -> tuple[str, ...]:
        """The names of its factors, which are columns of a store."""
        return tuple(factor.name for factor in self.factors)

    @property
    def is_gradient(self) -> bool:
        """Whether one of its features is a gradient."""
        return any(feature.is_gradient for feature in self.features)

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


def leaf(feature: Feature) -> Recipe:
    """A feature as it is."""
    return Recipe(
        feature.name,
        (feature,),
        lambda whitenings: lambda arrays: assemble(feature, arrays),
        gradients=feature.factors[1:] if feature.is_gradient else (),
        is_plain=True,
        tree=("feature", feature),
    )


def power(inner: Recipe, exponent: float) -> Recipe:
    """The signed power of a feature, of both factors if it is a gradient."""
    _check_number("an exponent above 0 and up to 4", exponent, 4.0)
    name = f"pow({inner.name},{spell(exponent)})"
    for feature in inner.features:
        if feature.is_projected:  # the power of a projection is not the projection of the power
            whole = replace(feature.factors[0], positions="pooled").name
            raise FeatureError(
                f"{name} cannot be computed: of {feature.name} only a projection is known, and pow "
                f"takes the gradient itself; write {name.replace(feature.name, whole)}"
            )

    def raised(values: Array) -> Array:
        out: Array = np.sign(values) * np.abs(values) ** exponent
        return out

    def build(whitenings: Whitenings) -> Transform:
        transform = inner.build(whitenings)
        return lambda arrays: _each_factor(raised, transform(arrays))

    return replace(inner, name=name, build=build, tree=("pow", inner.tree, exponent))


def whiten(inner: Recipe, shrinkage: float | None) -> Recipe:
    """A feature in units of its spread on the training images."""
    if shrinkage is not None:
        _check_number("a shrinkage above 0 and up to 1", shrinkage, 1.0)
    number = "" if shrinkage is None else f",{spell(shrinkage)}"
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

    mixed = (None,) * len(inner.gradients)
    tree = ("whiten", inner.tree, name)
    return replace(inner, name=name, build=build, gradients=mixed, learns=True, tree=tree)


def _check_number(what: str, number: float, high: float) -> None:
    if not (isinstance(number, Real) and 0 < number <= high):
        raise FeatureError(f"recipe needs {what}, got {number}")


def spell(number: float) -> str:
    """Short where that is the same number: a name must be read back as the recipe it names."""
    short = f"{number:g}"
    return short if float(short) == number else repr(number)


def _each_factor(change: Callable[[Array], Array], value: Comparable) -> Comparable:
    if isinstance(value, RankOne):
        return RankOne(change(value.x), change(value.delta)).normalize()
    return l2_normalize(change(value))  # type: ignore[arg-type]


def product(parts: list[Recipe]) -> Recipe:
    """The product of kernels."""
    if len(parts) == 1:
        return parts[0]

    def build(whitenings: Whitenings) -> Transform:
        transforms = [part.build(whitenings) for part in parts]
        return lambda arrays: KernelProduct(tuple(transform(arrays) for transform in transforms))

    return _joined("product", "*".join(part.name for part in parts), parts, build)


def mean(parts: list[Recipe]) -> Recipe:
    """The mean of kernels, by their weights."""
    if len(parts) == 1:  # a weight says nothing without others
        return replace(parts[0], weight=1.0)
    weights = tuple(part.weight for part in parts)

    def build(whitenings: Whitenings) -> Transform:
        transforms = [part.build(whitenings) for part in parts]
        return lambda arrays: KernelSum(
            tuple(transform(arrays) for transform in transforms), weights
        )

    return _joined("mean", "+".join(map(_term, parts)), parts, build)


def _joined(
    word: str, name: str, parts: list[Recipe], build: Callable[[Whitenings], Transform]
) -> Recipe:
    features = dict.fromkeys(feature for part in parts for feature in part.features)
    gradients = tuple(gradient for part in parts for gradient in part.gradients)
    learns = any(part.learns for part in parts)
    tree = (word, *(part.tree for part in parts))
    found = Recipe(name, tuple(features), build, gradients, learns=learns, tree=tree)
    return replace(found, parts=tuple(parts))


def _term(part: Recipe) -> str:
    if not part.features:
        return spell(part.weight)
    return part.name if part.weight == 1 else f"{spell(part.weight)}*{part.name}"


def _constant(arrays: Arrays) -> Array:
    return np.ones((len(next(iter(arrays.values()))), 1), dtype=np.float32)


ONE = Recipe("1", (), lambda whitenings: _constant, tree=("one",))  # compares all images as 1

"""Features: what their names mean, and how they are made of factors.

Comes in: a name such as `x7`, `x6;x7`, `dW7` or `dW:classifier.4`. Goes out: a `Feature`, which
lists the factors to compute. A factor is one array per image:

`x7`      output of layer 7 after its non-linearity, which is the input of layer 8
`y8`      output of layer 8 before the non-linearity
`x8`      output of the last layer after the SoftMax: the probabilities
`delta7`  dE/dy_7
`x:PATH`, `in:PATH`, `delta:PATH`  output, input and dE/dy of the module called PATH

Layers count from the top, so the classifier is always layer 8. Where a layer has several
positions (a convolution, tokens), a factor is pooled over them: x averaged, delta summed. `@exact`
behind a gradient's name, `dW7@exact`, keeps the positions, and the trace kernel sums over all
pairs of them. `dW7@64x32` projects the whole gradient from both sides to a 64 x 32 matrix, a vector
whose dot product approximates the trace kernel: small to store, whatever the number of positions.

`low` is the output below the lowest numbered layer: `x5` of AlexNet and VGG. `dlogp8` is the
gradient of every class's log-posterior with respect to W_8, all of them side by side.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from deepfishing.errors import FeatureError, did_you_mean
from deepfishing.rank_one import Array, RankOne, l2_normalize

TOP = 8  # the classifier's number, in the paper and here
EXACT = "@exact"
LOWEST = "low"
LOG_POSTERIORS = f"dlogp{TOP}"

# A name is also that of a factor, so a number has one spelling: not 07, no other script's digits.
_NUMBER = "0|[1-9][0-9]?"
_SIZE = "@[1-9][0-9]{0,4}x[1-9][0-9]{0,4}"


@dataclass(frozen=True)
class Feature:
    """A named representation: forward factors side by side, or the two factors of a gradient.

    Examples
    --------
    >>> parse_feature("dW7", {7: "fc7", 8: "fc8"})
    Feature(name='dW7', factors=('x6', 'delta7'), gradient=True)
    """

    name: str
    factors: tuple[str, ...]
    gradient: bool


def table_features(layers: Mapping[int, str]) -> tuple[str, ...]:
    """The rows of the paper's Table 1 that exist for these layers, in the paper's order.

    Examples
    --------
    >>> table_features({7: "_conv_head", 8: "_fc"})
    ('x6', 'x7', 'y8', 'x8', 'x6;x7', 'dW7', 'x7;y8', 'dW8')
    """
    if TOP not in layers:
        return ()  # an embedding without a classifier has no rows in the table
    below = sorted(k for k in layers if k != TOP)
    names = [f"x{k - 1}" for k in (*below, TOP)] + [f"y{TOP}", f"x{TOP}"]
    for k in below:
        names += [f"x{k - 1};x{k}", f"dW{k}"]
    return (*names, f"x{TOP - 1};y{TOP}", f"dW{TOP}")


def parse_features(text: str | Iterable[str], layers: Mapping[int, str]) -> tuple[Feature, ...]:
    """Read a comma-separated list of feature names; `all` stands for the paper's rows.

    Examples
    --------
    >>> [f.name for f in parse_features("x7, dW8", {8: "fc"})]
    ['x7', 'dW8']
    """
    features = [parse_feature(name, layers) for name in expand_names(text, layers)]
    return tuple({feature.name: feature for feature in features}.values())


def expand_names(text: str | Iterable[str], layers: Mapping[int, str]) -> list[str]:
    """Cut a list at the commas outside parentheses, and put the paper's rows in place of `all`.

    Examples
    --------
    >>> expand_names("x7, pow(dW8,0.5)", {8: "fc"})
    ['x7', 'pow(dW8,0.5)']
    """
    listed = re.split(r",(?![^(]*\))", text) if isinstance(text, str) else list(text)
    names: list[str] = []
    for name in filter(None, map(str.strip, listed)):
        rows = table_features(layers) if name == "all" else (name,)
        if not rows:
            raise FeatureError(
                "`all` needs a network with a classifier, got one without; name the features, "
                "x:PATH or dW:PATH with a module's path"
            )
        names += rows
    if not names:
        raise FeatureError("features must name at least one feature, got none; try --features all")
    return names


def parse_feature(name: str, layers: Mapping[int, str]) -> Feature:
    """Read one feature name against a network's layers, k -> module path.

    A module path that is one of the numbered layers is the same feature as its short name.

    Examples
    --------
    >>> layers = {6: "classifier.1", 7: "classifier.4", 8: "classifier.6"}
    >>> parse_feature("x5;x6", layers).factors
    ('x5', 'x6')
    >>> parse_feature("dW:classifier.4", layers).name
    'dW7'
    >>> parse_feature("dW:features.10", layers).factors
    ('in:features.10', 'delta:features.10')
    """
    name = name.strip()
    if name == LOWEST and layers:
        name = f"x{min(layers) - 1}"
    if name == LOG_POSTERIORS and TOP in layers:
        return Feature(name, (f"x{TOP - 1}", f"x{TOP}"), gradient=True)
    match = re.fullmatch(rf"dW(?:({_NUMBER})|:([^@]+))(@exact|{_SIZE})?", name)
    if match:
        number, path, suffix = match.groups(default="")
        k = int(number) if number else _number_of(path, layers)
        if number and k not in layers:
            raise _unknown(name, layers)
        short = f"dW:{path}" if k is None else f"dW{k}"
        if suffix and suffix != EXACT:
            return Feature(short + suffix, (short + suffix,), gradient=False)
        x, delta = (f"in:{path}", f"delta:{path}") if k is None else (f"x{k - 1}", f"delta{k}")
        return Feature(short + suffix, (x + suffix, delta + suffix), gradient=True)
    parts = tuple(_forward_factor(name, part, layers) for part in name.split(";"))
    return Feature(";".join(parts), parts, gradient=False)


class MadeOfFactors(Protocol):
    """A feature, or a recipe of several."""

    @property
    def factors(self) -> tuple[str, ...]:
        """The factors it needs."""


def needed_factors(features: Iterable[MadeOfFactors]) -> tuple[str, ...]:
    """The factors that these features are made of, each once."""
    return tuple(dict.fromkeys(factor for feature in features for factor in feature.factors))


def is_projected(factor: str) -> bool:
    """Whether a factor is a whole gradient, projected from both sides.

    Examples
    --------
    >>> is_projected("dW7@64x32"), is_projected("delta7@exact")
    (True, False)
    """
    return re.search(rf"{_SIZE}$", factor) is not None


def assemble(feature: Feature, arrays: Mapping[str, Array]) -> Array | RankOne:
    """Make a normalised feature out of its factors' arrays."""
    values = [arrays[factor] for factor in feature.factors]
    if feature.name == LOG_POSTERIORS:
        return RankOne(values[0], log_posterior_deltas(values[1])).normalize()
    if feature.gradient:
        return RankOne(*values).normalize()
    return l2_normalize(values[0]) if len(values) == 1 else concatenate(values)


def log_posterior_deltas(probabilities: Array) -> Array:
    """The backward factor of the gradients of all P log-posteriors (eq:fisherizing), as one vector.

    d log sigma(y)_j / dy = e_j - sigma. Side by side for all j they are a P x P matrix, and two of
    them have the dot product sum_j <e_j - sigma, e_j - sigma'> = P <sigma, sigma'> + P - 2, which
    is that of (sqrt(P) sigma, sqrt(P - 2)): P + 1 numbers instead of P^2.

    Examples
    --------
    >>> p = np.array([[0.5, 0.3, 0.2], [0.1, 0.1, 0.8]])
    >>> each = np.eye(3) - p[:, None, :]
    >>> np.allclose(log_posterior_deltas(p) @ log_posterior_deltas(p).T,
    ...             np.einsum("njk,mjk->nm", each, each))
    True
    """
    n, P = probabilities.shape
    rest = np.full((n, 1), max(P - 2, 0) ** 0.5, dtype=probabilities.dtype)
    return np.concatenate([P**0.5 * probabilities, rest], axis=1)


def concatenate(parts: list[Array]) -> Array:
    """Join features side by side, each l2-normalised first, and normalise the whole.

    Examples
    --------
    >>> concatenate([np.array([[2.0]]), np.array([[0.0, 5.0]])]).round(3)
    array([[0.707, 0.   , 0.707]])
    """
    return l2_normalize(np.concatenate([l2_normalize(part) for part in parts], axis=1))


def _forward_factor(name: str, part: str, layers: Mapping[int, str]) -> str:
    match = re.fullmatch(rf"x({_NUMBER})|y({_NUMBER})|x:([^@;]+)", part)
    if match is None:
        raise _unknown(name, layers)
    x, y, path = match.groups()
    if path or (x and (int(x) == TOP or int(x) + 1 in layers)) or (y and int(y) in layers):
        return part
    raise _unknown(name, layers)


def _number_of(path: str, layers: Mapping[int, str]) -> int | None:
    return next((k for k, other in layers.items() if other == path), None)


def _unknown(name: str, layers: Mapping[int, str]) -> FeatureError:
    known = table_features(layers)
    some = f"one of {', '.join(known)}, or " if known else ""
    return FeatureError(
        f"feature must be {some}x:PATH or dW:PATH with a module's path, "
        f"got {name!r}{did_you_mean(name, known)}"
    )

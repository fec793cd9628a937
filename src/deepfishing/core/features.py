"""Features: the meaning of their names, and the factors they are made of.

A name such as `x7`, `x6;x7`, `dW7` or `dW:classifier.4` is read as a `Feature`, which lists the
`Factor` values to compute. A factor is one array per image:

`x7`      output of layer 7 after its non-linearity, which is the input of layer 8
`y8`      output of layer 8 before the non-linearity
`x8`      output of the last layer after the SoftMax: the probabilities
`delta7`  dE/dy_7
`x:PATH`, `in:PATH`, `delta:PATH`  output, input and dE/dy of the module called PATH

Layers count from the top, so the classifier is always layer 8; `low` is the output below the lowest
numbered one. A network without a classifier has forward features only, and x7 is its output, the
embedding. Where a layer has several positions (a convolution, tokens), a factor is pooled over
them: x averaged, delta summed. `dW7@exact` keeps the positions, `dW7@64x32` projects the whole
gradient from both sides to a 64 x 32 matrix. `x:PATH@class` is the class token of a transformer's
module alone, `x:PATH@patches` the mean of its patch tokens; `x:PATH` is the mean of all tokens.
Names are read here and nowhere else.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from typing import TYPE_CHECKING, Literal

import numpy as np

from deepfishing.core.rank_one import Array, RankOne, l2_normalize
from deepfishing.errors import FeatureError, did_you_mean

if TYPE_CHECKING:
    from deepfishing.core.recipes import Recipe

TOP = 8  # the classifier's number, in the paper and here
NO_CLASSIFIER = "-"  # in place of its path, where a network ends with an embedding

Kind = Literal["input", "output", "delta", "probabilities", "projected"]
Positions = Literal["pooled", "exact", "class", "patches"] | tuple[int, int]
TOKENS = ("class", "patches")  # which tokens of a transformer's module are taken

MAX_CACHED_NAMES = 256  # names are read again for every batch and every shard

# A name begins with a letter before a layer's number, or with a word before a module's path.
_LETTERS: dict[Kind, str] = {
    "input": "x",
    "output": "y",
    "delta": "delta",
    "projected": "dW",
}
_WORDS: dict[Kind, str] = {
    "input": "in",
    "output": "x",
    "delta": "delta",
    "projected": "dW",
}
_KINDS_BY_LETTER = {letter: kind for kind, letter in _LETTERS.items()}
_KINDS_BY_WORD = {word: kind for kind, word in _WORDS.items()}
_BACKWARD = ("delta", "projected")

# A factor has one name, so a number has one spelling: not 07, no digits of other scripts.
_SIZE = "[1-9][0-9]{0,4}"
_PATTERN = re.compile(
    rf"(?:(?P<letter>{'|'.join(_LETTERS.values())})(?P<number>0|[1-9][0-9]?)"
    rf"|(?P<word>{'|'.join(_WORDS.values())}):(?P<path>[^@;]+))"
    rf"(?:@(?P<note>exact|class|patches|{_SIZE}x{_SIZE}))?"
)


@dataclass(frozen=True)
class Factor:
    """One array per image: a value of a layer, and how its positions are aggregated.

    >>> Factor("input", 8).name, Factor("delta", "head.fc", "exact").name
    ('x7', 'delta:head.fc@exact')
    """

    # "delta" is dE/dy, "projected" the gradient dE/dW projected from both sides
    kind: Kind
    layer: int | str  # a number, or the path of a module
    # pooled (averaged; delta: summed), all kept, only some tokens, or projected to m1 x m2
    positions: Positions = "pooled"

    @cached_property  # every batch asks for it
    def name(self) -> str:
        """The name, also that of a folder and a column of a store."""
        letter, layer = self.symbol
        if isinstance(self.layer, str):
            letter = f"{_WORDS[self.kind]}:"
        if not self.note:
            return letter + layer
        return f"{letter}{layer}@{self.note}"

    @property
    def symbol(self) -> tuple[str, str]:
        """The paper's letter and its subscript: ('x', '7') is the input of layer 8."""
        if isinstance(self.layer, int):
            number = self.layer
            if self.kind == "input":
                number -= 1
            return _LETTERS.get(self.kind, "x"), str(number)
        letter = _WORDS[self.kind]
        if self.kind == "input":
            letter = "x"
        return letter, self.layer

    @property
    def note(self) -> str:
        """Aggregation of positions, as written after `@`; empty if they are pooled."""
        if isinstance(self.positions, tuple):
            m1, m2 = self.positions
            return f"{m1}x{m2}"
        if self.positions == "pooled":
            return ""
        return self.positions

    @property
    def needs_backward(self) -> bool:
        """Whether it needs the backward pass, for itself or to fit its delta."""
        is_input_of_module = self.kind == "input" and isinstance(self.layer, str)
        is_gradient = self.kind in _BACKWARD
        return is_gradient or is_input_of_module or self.positions == "exact"

    def path(self, layers: Mapping[int, str]) -> str:
        """Return the path of the module that it is read from."""
        if isinstance(self.layer, str):
            return self.layer
        return layers[self.layer]


@dataclass(frozen=True)
class Feature:
    """A representation: forward factors side by side, a gradient's two factors, or its projection.

    >>> feature = parse_feature("dW7", {7: "fc7", 8: "fc8"})
    >>> feature.name, feature.is_gradient, [factor.name for factor in feature.factors]
    ('dW7', True, ['x6', 'delta7'])
    """

    factors: tuple[Factor, ...]

    @property
    def name(self) -> str:
        """The name, in one spelling."""
        return ";".join(factor.name for factor in self._named_factors)

    @property
    def is_gradient(self) -> bool:
        """Whether it is the gradient of a layer's weights, whole or projected."""
        return self._named_factors[0].kind == "projected"

    @property
    def is_projected(self) -> bool:
        """Whether it is a gradient that is stored as a projection."""
        return self.factors[0].kind == "projected"

    @property
    def symbols(self) -> tuple[tuple[str, str, str], ...]:
        """Letter, subscript and note of each part of the name, to typeset it.

        >>> parse_feature("dW:head@exact").symbols, parse_feature("x6;x7").symbols
        ((('dW', 'head', 'exact'),), (('x', '6', ''), ('x', '7', '')))
        """
        return tuple((*factor.symbol, factor.note) for factor in self._named_factors)

    @property
    def around(self) -> int | None:
        """The layer whose gradient, or whose input and output it is, as in Table 1; or None.

        >>> [parse_feature(name).around for name in ("dW7@exact", "x6;x7", "x7;y8", "x7")]
        [7, 7, 8, None]
        """
        first, last = self._named_factors[0], self._named_factors[-1]
        k = first.layer
        if isinstance(k, str):
            return None
        if self.is_gradient:
            return k
        outputs = (
            Factor("input", k + 1),
            Factor("output", k),
            Factor("probabilities", k),
        )
        if len(self.factors) == 2 and first.kind == "input" and last in outputs:
            return k
        return None

    @property
    def _named_factors(self) -> tuple[Factor, ...]:
        """The factors in the name: the two of a gradient are named as one."""
        last = self.factors[-1]
        if last.kind == "delta":
            return (replace(last, kind="projected"),)
        return self.factors


def has_classifier(layers: Mapping[int, str]) -> bool:
    """Whether layer 8 exists; without it x7 is the output of the network.

    >>> has_classifier({8: "fc"}), has_classifier({8: NO_CLASSIFIER})
    (True, False)
    """
    return layers.get(TOP, NO_CLASSIFIER) != NO_CLASSIFIER


def table_features(layers: Mapping[int, str]) -> tuple[str, ...]:
    """The rows of the paper's Table 1 that exist for these layers, in the paper's order.

    >>> table_features({7: "projection", 8: NO_CLASSIFIER})
    ('x6', 'x7', 'x6;x7')
    """
    if TOP not in layers:
        return ()
    below = sorted(k for k in layers if k != TOP)
    if not has_classifier(layers):
        forward = [f"x{k - 1}" for k in (*below, TOP)]
        return (*forward, *(f"x{k - 1};x{k}" for k in below))
    names = [f"x{k - 1}" for k in (*below, TOP)] + [f"y{TOP}", f"x{TOP}"]
    for k in below:
        names += [f"x{k - 1};x{k}", f"dW{k}"]
    return (*names, f"x{TOP - 1};y{TOP}", f"dW{TOP}")


def parse_features(
    text: str | Iterable[str], layers: Mapping[int, str]
) -> tuple[Feature, ...]:
    """Read a comma-separated list of feature names; `all` means the rows of the paper."""
    names = expand_names(text, layers)
    return tuple(dict.fromkeys(parse_feature(name, layers) for name in names))


def expand_names(text: str | Iterable[str], layers: Mapping[int, str]) -> list[str]:
    """Split a list at the commas outside parentheses, and replace `all` by the paper's rows."""
    if isinstance(text, str):
        text = split_names(text)
    names: list[str] = []
    for name in map(str.strip, text):
        if name == "all":
            rows = table_features(layers)
            if not rows:
                raise FeatureError(
                    "`all` needs a network with a classifier, got one without; name the features, "
                    "x:PATH or dW:PATH with a module's path"
                )
            names += rows
        elif name:
            names.append(name)
    if not names:
        raise FeatureError(
            "features must name at least one feature, got none; try --features all"
        )
    return names


def split_names(text: str) -> list[str]:
    """Return the names of a list, split at the commas outside parentheses."""
    return [name.strip() for name in re.split(r",(?![^(]*\))", text) if name.strip()]


@lru_cache(maxsize=MAX_CACHED_NAMES)
def parse_factor(name: str) -> Factor:
    """Read the name of a factor, such as a column of a store."""
    factor = _read(name)
    is_factor = False
    if factor is not None:
        has_size = isinstance(factor.positions, tuple)
        is_factor = has_size == (factor.kind == "projected")
    if factor is None or not is_factor:
        raise FeatureError(
            f"factor must be x, y, in or delta of a layer, such as x7 or delta8, got {name!r}"
        )
    return factor


def parse_feature(name: str, layers: Mapping[int, str] | None = None) -> Feature:
    """Read one feature name against a network's layers, k -> module path.

    A module path that is one of the numbered layers is the same feature as its short name. Without
    layers any number will do: for names that were checked when they were written.

    >>> parse_feature("dW:classifier.4", {7: "classifier.4", 8: "classifier.6"}).name
    'dW7'
    >>> [factor.name for factor in parse_feature("dW:features.10").factors]
    ['in:features.10', 'delta:features.10']
    """
    name = name.strip()
    if name == "low" and layers:
        name = f"x{min(layers) - 1}"
    factors = []
    for part in map(_read, name.split(";")):
        if part and layers and TOP in layers and not has_classifier(layers):
            _check_forward(part, name)
        numbered = part and isinstance(part.layer, int) and part.kind != "probabilities"
        if part is None or (
            numbered and layers is not None and part.layer not in layers
        ):
            raise _unknown(name, layers)  # a path is looked up when it is read
        factors.append(part)
    first = factors[0]
    if len(factors) == 1 and first.kind == "projected":
        if isinstance(first.layer, str):
            numbers = {path: k for k, path in (layers or {}).items()}
            first = replace(first, layer=numbers.get(first.layer, first.layer))
        if isinstance(first.positions, tuple):
            return Feature((first,))
        return Feature((replace(first, kind="input"), replace(first, kind="delta")))
    # a path of `in:` belongs to its delta, which has no feature of its own
    if not all(_is_forward(part) for part in factors):
        raise _unknown(name, layers)
    return Feature(tuple(factors))


def _is_forward(factor: Factor) -> bool:
    """Whether a factor alone is a feature: pooled, or some tokens of a module's output."""
    of_module = factor.kind == "output" and isinstance(factor.layer, str)
    some_tokens = factor.positions in TOKENS and of_module
    return not factor.needs_backward and (factor.positions == "pooled" or some_tokens)


def is_forward_vector(name: str) -> bool:
    """Whether a column of a store has the input or the output of a layer, one vector per image.

    >>> is_forward_vector("x7"), is_forward_vector("delta8")
    (True, False)
    """
    factor = _read(name)
    if factor is None:
        return False
    return factor.kind in ("input", "output") and not factor.needs_backward


def _check_forward(factor: Factor, name: str) -> None:
    """Refuse a feature that only a classifier has."""
    of_classifier = factor.layer == TOP and factor.kind != "input"
    if factor.needs_backward or factor.kind == "projected" or of_classifier:
        raise FeatureError(
            f"{name} needs a classifier, which this network lacks; take x7, its embedding, or "
            "own(x7), gradients of a head made of your photos"
        )


def needed_factors(features: Iterable[Feature | Recipe]) -> tuple[Factor, ...]:
    """Return the factors that these features or recipes are made of, each once."""
    factors: dict[Factor, None] = {}
    for feature in features:
        factors.update(dict.fromkeys(feature.factors))
    return tuple(factors)


def features_of(names: Iterable[str]) -> list[Feature]:
    """Return the features of columns with these names, gradients last; ignore other columns."""
    factors = [factor for factor in map(_read, sorted(names)) if factor]
    forward, projected, gradients = [], [], []
    for factor in factors:
        x = replace(factor, kind="input")
        if factor.kind == "projected":
            if isinstance(factor.positions, tuple):
                projected.append(Feature((factor,)))
        elif factor.kind == "delta" and x in factors:
            gradients.append(Feature((x, factor)))
        elif _is_forward(factor):
            forward.append(Feature((factor,)))
    return [*forward, *projected, *gradients]


@lru_cache(maxsize=MAX_CACHED_NAMES)
def is_projected(name: str) -> bool:
    """Whether a column is a whole gradient, projected from both sides: `dW7@64x32`."""
    factor = _read(name)
    return factor is not None and isinstance(factor.positions, tuple)


def assemble(feature: Feature, arrays: Mapping[str, Array]) -> Array | RankOne:
    """Return a feature, normalised, of the arrays of its factors by their names."""
    values = [arrays[factor.name] for factor in feature.factors]
    if feature.is_gradient and not feature.is_projected:
        return RankOne(*values).normalize()
    units = [l2_normalize(value) for value in values]
    if len(units) == 1:
        return units[0]
    return l2_normalize(np.concatenate(units, axis=1))


def _read(name: str) -> Factor | None:
    """Return a factor by its name; None if it is not the name of one.

    A gradient is returned as one factor of the kind "projected".
    """
    match = _PATTERN.fullmatch(name)
    if match is None:
        return None
    positions = _parse_positions(match["note"])
    if match["path"]:
        kind = _KINDS_BY_WORD[match["word"]]
        return Factor(kind, match["path"], positions)
    kind = _KINDS_BY_LETTER[match["letter"]]
    k = int(match["number"])
    if kind != "input":
        return Factor(kind, k, positions)
    if k == TOP:
        return Factor("probabilities", TOP, positions)
    # x7 is the output of layer 7, and so the input of layer 8
    return Factor("input", k + 1, positions)


def _parse_positions(note: str | None) -> Positions:
    """Read what follows `@` in a name: nothing, `exact`, some tokens, or a size such as `64x32`."""
    if note is None:
        return "pooled"
    if note == "exact":
        return "exact"
    if note == "class":
        return "class"
    if note == "patches":
        return "patches"
    rows, columns = note.split("x")
    return int(rows), int(columns)


def _unknown(name: str, layers: Mapping[int, str] | None) -> FeatureError:
    features = table_features(layers or {})
    choices = "x:PATH or dW:PATH with a module's path"
    reason = did_you_mean(name, features)
    if features:
        choices = f"one of {', '.join(features)}, or {choices}"
    elif layers is not None:
        reason += ": no layer was found that makes scores, to be layer 8"
    return FeatureError(f"feature must be {choices}, got {name!r}{reason}")

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

# What a name begins with: the letter of a numbered layer, and the word before a module's path.
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
_BACKWARD = ("delta", "projected")

# A name is also that of a factor, so a number has one spelling: not 07, no other script's digits.
_SIZE = "[1-9][0-9]{0,4}"
_PATTERN = re.compile(
    rf"(?:(?P<letter>{'|'.join(_LETTERS.values())})(?P<number>0|[1-9][0-9]?)"
    rf"|(?P<word>{'|'.join(_WORDS.values())}):(?P<path>[^@;]+))"
    rf"(?:@(?P<note>exact|class|patches|{_SIZE}x{_SIZE}))?"
)


@dataclass(frozen=True)
class Factor:
    """One array per image: what of a layer is taken, and what becomes of its positions.

    >>> Factor("input", 8).name, Factor("delta", "head.fc", "exact").name
    ('x7', 'delta:head.fc@exact')
    """

    # "delta" is dE/dy, "projected" the gradient dE/dW projected from both sides
    kind: Kind
    layer: int | str  # a number, or the path of a module
    # averaged (delta: summed), kept, only some tokens, or projected to m1 x m2
    positions: Positions = "pooled"

    @property
    def name(self) -> str:
        """Its name: the column of a store."""
        letter, layer = self.symbol
        start = letter if isinstance(self.layer, int) else f"{_WORDS[self.kind]}:"
        return f"{start}{layer}@{self.note}" if self.note else start + layer

    @property
    def symbol(self) -> tuple[str, str]:
        """The paper's letter and what stands below it: ('x', '7') is the input of layer 8."""
        if isinstance(self.layer, str):
            return ("x" if self.kind == "input" else _WORDS[self.kind]), self.layer
        return _LETTERS.get(self.kind, "x"), str(self.layer - (self.kind == "input"))

    @property
    def note(self) -> str:
        """What becomes of positions, as a name has it behind `@`; nothing if they are pooled."""
        if isinstance(self.positions, tuple):
            return "{}x{}".format(*self.positions)
        return "" if self.positions == "pooled" else self.positions

    @property
    def needs_backward(self) -> bool:
        """Whether it needs the backward pass, for itself or to belong to its delta."""
        of_module = self.kind == "input" and isinstance(self.layer, str)
        return self.kind in _BACKWARD or of_module or self.positions == "exact"

    def path(self, layers: Mapping[int, str]) -> str:
        """The module that it is read from."""
        return self.layer if isinstance(self.layer, str) else layers[self.layer]


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
        """Its name in one spelling."""
        return ";".join(factor.name for factor in self._shown)

    @property
    def is_gradient(self) -> bool:
        """Whether it is the gradient of a layer's weights, whole or projected."""
        return self._shown[0].kind == "projected"

    @property
    def is_projected(self) -> bool:
        """Whether it is a gradient of which there is only a projection."""
        return self.factors[0].kind == "projected"

    @property
    def symbols(self) -> tuple[tuple[str, str, str], ...]:
        """How it is typeset: letter, what stands below it, and a note, for each of its parts.

        >>> parse_feature("dW:head@exact").symbols, parse_feature("x6;x7").symbols
        ((('dW', 'head', 'exact'),), (('x', '6', ''), ('x', '7', '')))
        """
        return tuple((*factor.symbol, factor.note) for factor in self._shown)

    @property
    def around(self) -> int | None:
        """The layer whose gradient it is, or whose input and output it has, as in Table 1.

        >>> [parse_feature(name).around for name in ("dW7@exact", "x6;x7", "x7;y8", "x7")]
        [7, 7, 8, None]
        """
        first, last = self._shown[0], self._shown[-1]
        k = first.layer
        if isinstance(k, str):
            return None
        outputs = (
            Factor("input", k + 1),
            Factor("output", k),
            Factor("probabilities", k),
        )
        joined = len(self.factors) == 2 and first.kind == "input" and last in outputs
        return k if self.is_gradient or joined else None

    @property
    def _shown(self) -> tuple[Factor, ...]:
        """The parts of its name: the two factors of a gradient are one."""
        last = self.factors[-1]
        return (
            (replace(last, kind="projected"),) if last.kind == "delta" else self.factors
        )


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
    """Read a comma-separated list of feature names; `all` stands for the paper's rows."""
    return tuple(
        dict.fromkeys(parse_feature(n, layers) for n in expand_names(text, layers))
    )


def expand_names(text: str | Iterable[str], layers: Mapping[int, str]) -> list[str]:
    """Cut a list at the commas outside parentheses, and put the paper's rows in place of `all`."""
    names: list[str] = []
    for name in (
        split_names(text)
        if isinstance(text, str)
        else filter(None, map(str.strip, text))
    ):
        rows = table_features(layers) if name == "all" else (name,)
        if not rows:
            raise FeatureError(
                "`all` needs a network with a classifier, got one without; name the features, "
                "x:PATH or dW:PATH with a module's path"
            )
        names += rows
    if not names:
        raise FeatureError(
            "features must name at least one feature, got none; try --features all"
        )
    return names


def split_names(text: str) -> list[str]:
    """The names of a list, cut at the commas outside parentheses."""
    return [name.strip() for name in re.split(r",(?![^(]*\))", text) if name.strip()]


def parse_factor(name: str) -> Factor:
    """Read the name of a factor, such as a column of a store."""
    factor = _read(name)
    if factor is None or (factor.kind == "projected") != isinstance(
        factor.positions, tuple
    ):
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
            raise _unknown(name, layers)  # a path is looked for when it is read
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
    """The factors that these features or recipes are made of, each once."""
    return tuple(
        dict.fromkeys(factor for feature in features for factor in feature.factors)
    )


def features_of(names: Iterable[str]) -> list[Feature]:
    """The features that columns with these names make, gradients last; others are passed over."""
    factors = [factor for factor in map(_read, sorted(names)) if factor]
    forward = [f for f in factors if _is_forward(f) and f.kind != "projected"]
    whole = [
        f for f in factors if f.kind == "delta" and replace(f, kind="input") in factors
    ]
    projected = [
        f for f in factors if f.kind == "projected" and isinstance(f.positions, tuple)
    ]
    return [
        *(Feature((factor,)) for factor in (*forward, *projected)),
        *(Feature((replace(factor, kind="input"), factor)) for factor in whole),
    ]


def is_projected(name: str) -> bool:
    """Whether a column is a whole gradient, projected from both sides: `dW7@64x32`."""
    factor = _read(name)
    return factor is not None and isinstance(factor.positions, tuple)


def assemble(feature: Feature, arrays: Mapping[str, Array]) -> Array | RankOne:
    """Make a normalised feature out of its factors' arrays, which have their names."""
    values = [arrays[factor.name] for factor in feature.factors]
    if feature.is_gradient and not feature.is_projected:
        return RankOne(*values).normalize()
    units = [l2_normalize(value) for value in values]
    return units[0] if len(units) == 1 else l2_normalize(np.concatenate(units, axis=1))


def _read(name: str) -> Factor | None:
    """A factor by its name, or a gradient as one factor of the kind "projected"; None if unread."""
    match = _PATTERN.fullmatch(name)
    if match is None:
        return None
    note = match["note"] or "pooled"
    m1, _, m2 = note.partition("x")
    positions: Positions = (int(m1), int(m2)) if m1.isdigit() else note  # type: ignore[assignment]
    if match["path"]:
        kinds = {word: kind for kind, word in _WORDS.items()}
        return Factor(kinds[match["word"]], match["path"], positions)
    kind = {letter: kind for kind, letter in _LETTERS.items()}[match["letter"]]
    k = int(match["number"])
    if kind == "input":
        return Factor("probabilities" if k == TOP else kind, k + (k != TOP), positions)
    return Factor(kind, k, positions)


def _unknown(name: str, layers: Mapping[int, str] | None) -> FeatureError:
    if name == "dlogp8":
        return FeatureError(
            "dlogp8 is no feature any more: it gained nothing over x7; take x7, or dW8 for the "
            "gradient of the last layer"
        )
    known = table_features(layers or {})
    some = f"one of {', '.join(known)}, or " if known else ""
    why = (
        ""
        if known or layers is None
        else ": no layer was found that makes scores, to be layer 8"
    )
    return FeatureError(
        f"feature must be {some}x:PATH or dW:PATH with a module's path, "
        f"got {name!r}{did_you_mean(name, known)}{why}"
    )

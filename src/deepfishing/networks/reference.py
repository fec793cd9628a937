"""References to networks: values from which a network is identified and loaded again.

A `NetworkRef` has everything about a network that determines a feature, and its source: the
files by path and checksum. `load.load_reference` makes the `Network` of it. `find_preprocess` says
how a network that is only a file wants its pixels. Torch is not imported here, so that stores,
models and searches can carry it.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import Any

from deepfishing.errors import (
    OptionError,
    StoreError,
    WeightsError,
    did_you_mean,
    one_line,
)
from deepfishing.images.geometry import FITS, RESAMPLES, ROUNDINGS
from deepfishing.images.preprocess import Preprocess
from deepfishing.networks.zoo import IMAGENET, RECORDS, find_weights
from deepfishing.util.files import check_regular, file_sha256

PUBLISHED, RANDOM, FILES, PYTHON = KINDS = ("published", "random", "files", "python")
WEIGHTS, PROTOTXT, MEAN = ROLES = ("weights", "prototxt", "mean")
# of `Preprocess`, which older stores do not have
FIT_FIELDS = ("fit", "rounding", "fill")
MAX_PREFIX_TOKENS = 64
MAX_SIDE = 8192  # pixels of a network's input: 0.8 GB in float32
# the head of a network whose output is an embedding, not class scores
EMBEDDING = "none"
UNIDENTIFIED = "?"  # a head or a choice of scores that cannot be identified
# How networks are known to want their pixels.
KNOWN_PIXELS: Mapping[str, Preprocess] = {
    "imagenet": IMAGENET,
    **{name: record.preprocess for name, record in RECORDS.items()},
}


@dataclass(frozen=True, kw_only=True)
class NetworkFile:
    """A file that a network is made of; `sha256` is empty where an older version kept none."""

    path: str
    sha256: str = ""

    @classmethod
    def of(cls, path: str | Path) -> NetworkFile:
        """The file at a path, hashed."""
        return cls(path=str(Path(path).resolve()), sha256=sha256_of(path))

    def find(self, role: str, weights: str | Path | None = None) -> Path:
        """Return the path of the file: given by `weights`, beside these, or as stored."""
        path = Path(self.path)
        option = "pass --weights FILE"
        if role != WEIGHTS:
            option += " with it in that folder"
        if weights is not None and role == WEIGHTS:
            path = Path(weights)
        elif weights is not None:
            beside = Path(weights).parent / path.name
            if beside.is_file():
                path = beside
        needed = f"{role} file {path}"
        if self.sha256:
            needed += f" with the sha256 {self.sha256}"
        if not path.is_file():
            raise WeightsError(
                f"the network needs its {needed}, which does not exist; put it back, or {option}"
            )
        if self.sha256:
            sha256 = sha256_of(path)
            if sha256 != self.sha256:
                raise WeightsError(
                    f"the network needs its {needed}, got a file with {sha256}; put the right one "
                    f"there, or {option}"
                )
        return path


@dataclass(frozen=True, kw_only=True)
class Source:
    """Source that a network is loaded from: its name, random weights, files, or Python only."""

    kind: str = PYTHON
    files: Mapping[str, NetworkFile] = field(default_factory=dict)  # by their role
    classes: tuple[str, ...] = ()  # names of the classes, where its library has them
    reads_texts: bool = False  # whether its library has a text tower that belongs to it
    # weights of a classifier made of texts, see `networks.text_head`
    text_head: str = ""
    # the tensor of an .onnx file that is x7, empty where there is a classifier
    embedding: str = ""

    def as_dict(self) -> dict[str, Any]:
        """Return JSON values; classes and texts only where there are some."""
        facts: dict[str, Any] = {
            "kind": self.kind,
            "files": {role: asdict(file) for role, file in self.files.items()},
        }
        if self.classes:
            facts["classes"] = list(self.classes)
        if self.reads_texts:
            facts["reads_texts"] = True
        if self.text_head:
            facts["text_head"] = self.text_head
        if self.embedding:
            facts["embedding"] = self.embedding
        return facts


@dataclass(frozen=True, kw_only=True)
class NetworkRef:
    """Everything about a network that determines a feature, and its source."""

    # as in the zoo, `timm:NAME`, `torchvision:NAME`, or that of a file or a module
    name: str
    weights_sha256: str  # which weights these are, and which prototxt if there is one
    layers: Mapping[int, str]  # k -> path of the module that holds W_k
    preprocess: Preprocess
    dtype: str = "float32"  # in which it computes
    # meaning of its scores, `EMBEDDING` if it has none, or the identity of a user's own error
    head: str = "softmax"
    # which part of its output the scores are; empty where they are all of it
    scores: str = ""
    # tokens before those of the patches, the first is the class token
    prefix_tokens: int = 0
    source: Source = field(default_factory=Source, compare=False)  # decides nothing

    def is_unchanged(self, weights: str | Path | None = None) -> bool:
        """Whether its files are still the same, without loading it; False if unknown."""
        kind, files = self.source.kind, self.source.files
        if str(weights) == RANDOM:
            return kind == RANDOM
        if kind == PUBLISHED and self.name in RECORDS:
            path = find_weights(RECORDS[self.name], weights)
            return sha256_of(path) == self.weights_sha256
        if kind != FILES:
            return weights is None and kind != PYTHON
        needed = {role: files[role] for role in (WEIGHTS, PROTOTXT) if role in files}
        for role, file in needed.items():
            file.find(role, weights)
        return all(file.sha256 for file in needed.values())

    def as_dict(self) -> dict[str, Any]:
        """Return JSON values, with the keys of a store's manifest."""
        facts: dict[str, Any] = {
            "network": self.name,
            "weights_sha256": self.weights_sha256,
            "layers": {str(k): path for k, path in self.layers.items()},
            "preprocess": preprocess_dict(self.preprocess),
            "compute_dtype": self.dtype,
            "head": self.head,
            "scores": self.scores,
        }
        if self.prefix_tokens:
            facts["prefix_tokens"] = self.prefix_tokens
        facts["source"] = self.source.as_dict()
        return facts

    @classmethod
    def from_dict(cls, facts: Mapping[str, Any]) -> NetworkRef:
        """Read what `as_dict` wrote; other keys are ignored."""
        for key in ("network", "weights_sha256", "compute_dtype", "head", "scores"):
            if not isinstance(facts.get(key), str):
                raise _unusable(key, facts.get(key), "text")
        prefix_tokens = facts.get("prefix_tokens", 0)
        is_number = type(prefix_tokens) is int
        if not is_number or not 0 <= prefix_tokens <= MAX_PREFIX_TOKENS:
            raise _unusable("prefix_tokens", prefix_tokens, "a small number")
        return cls(
            name=facts["network"],
            weights_sha256=facts["weights_sha256"],
            layers=layers_of(facts),
            preprocess=read_preprocess(facts.get("preprocess")),
            dtype=facts["compute_dtype"],
            head=facts["head"],
            scores=facts["scores"],
            prefix_tokens=prefix_tokens,
            source=_source(facts),
        )


def layers_of(facts: Mapping[str, Any]) -> dict[int, str]:
    """Return a network's layers from the settings of a store or a model; refuse damaged ones."""
    layers = facts.get("layers")
    error = _unusable("layers", layers, "numbers with the paths of modules")
    if not isinstance(layers, dict):
        raise error
    numbered = {}
    for number, path in layers.items():
        if not re.fullmatch("[0-9]{1,2}", number) or not isinstance(path, str):
            raise error
        numbered[int(number)] = path
    return numbered


def sha256_of(path: str | Path) -> str:
    """Hash a file, 64 hex digits."""
    with weights_errors(path):
        check_regular(Path(path), links=True)
        return file_sha256(Path(path))


@contextmanager
def weights_errors(path: str | Path) -> Iterator[None]:
    """Re-raise errors of the disk as a WeightsError of one line."""
    try:
        yield
    except FileNotFoundError:
        raise WeightsError(
            f"weights file not found: {path}; check the path given with --weights"
        ) from None
    except OSError as error:
        reason = error.strerror or one_line(error)
        raise WeightsError(f"weights cannot be read: {path} ({reason})") from None


def _source(settings: Mapping[str, Any]) -> Source:
    """Return the source of a network from the settings of a store or a model."""
    facts: Any = settings.get("source")
    if not isinstance(facts, dict):
        facts = {}
    files = facts.get("files")
    if not isinstance(files, dict) or facts.get("kind") not in KINDS:
        raise _unusable(
            "source", settings.get("source"), f"kind ({', '.join(KINDS)}) and files"
        )
    network_files = {}
    for role, file in files.items():
        is_file = isinstance(file, dict) and set(file) == {"path", "sha256"}
        if role not in ROLES or not is_file or not _are_texts(file.values()):
            raise _unusable("source", facts, "a path and a sha256 for each file")
        network_files[role] = NetworkFile(**file)
    classes = facts.get("classes", ())
    if not isinstance(classes, list | tuple) or not _are_texts(classes):
        raise _unusable("source", facts, "names of classes as text")
    return Source(
        kind=facts["kind"],
        files=network_files,
        classes=tuple(classes),
        reads_texts=facts.get("reads_texts") is True,
        text_head=str(facts.get("text_head", "")),
        embedding=str(facts.get("embedding", "")),
    )


def _are_texts(values: Iterable[object]) -> bool:
    return all(isinstance(value, str) for value in values)


def preprocess_dict(preprocess: Preprocess) -> dict[str, Any]:
    """Return JSON values; fields of `FIT_FIELDS` only where they differ from the defaults."""
    facts: dict[str, Any] = {}
    for field_ in fields(Preprocess):
        value = getattr(preprocess, field_.name)
        if field_.name in FIT_FIELDS and value == field_.default:
            continue
        if isinstance(value, tuple):
            value = list(value)
        facts[field_.name] = value
    return facts


def read_preprocess(facts: Any) -> Preprocess:
    """Return the preprocessing of JSON values; refuse damaged ones."""
    error = _unusable(
        "preprocess", facts, f"size and short_side up to {MAX_SIDE:,}, mean, std..."
    )
    try:
        values: dict[str, Any] = {}
        for name, value in facts.items():
            if isinstance(value, list):
                value = tuple(value)
            values[name] = value
        preprocess = Preprocess(**values)
        is_usable = _is_usable(preprocess)
    except (AttributeError, TypeError):
        raise error from None
    if not is_usable:
        raise error
    return preprocess


def _is_usable(preprocess: Preprocess) -> bool:
    """Whether each field has a value of its kind and in its range."""
    sizes = (preprocess.size, preprocess.short_side)
    others = (preprocess.oversampling, preprocess.scale)
    numbers = (*sizes, *others, *preprocess.mean, *preprocess.std)
    if len(numbers) != 10 or not all(isinstance(n, int | float) for n in numbers):
        return False
    for number in preprocess.fill:
        if type(number) is not int or not 0 <= number <= 255:
            return False
    return (
        len(preprocess.fill) == 3
        and preprocess.order in ("RGB", "BGR")
        and preprocess.resample in RESAMPLES
        and preprocess.fit in FITS
        and preprocess.rounding in ROUNDINGS
        and all(1 <= size <= MAX_SIDE for size in sizes)
    )


def _unusable(key: str, value: Any, expected: str) -> StoreError:
    return StoreError(
        f"{key} must be {expected}, got {str(value)[:60]!r}; make the store or the model again"
    )


def find_preprocess(given: str | Path | Preprocess, size: int | None) -> Preprocess:
    """Return the preprocessing of a network that takes `size` pixels, None for any number.

    `given` is `imagenet`, a name of `deepfish models` whose network has the same preprocessing, a
    .json file, or JSON itself: mean and std, and other fields of `Preprocess` that are not usual.
    """
    text = str(given)
    if isinstance(given, Preprocess):
        preprocess = given
    elif text in KNOWN_PIXELS:
        preprocess = KNOWN_PIXELS[text]
        if size:
            margin = preprocess.short_side / preprocess.size
            short_side = round(margin * size)
            preprocess = replace(preprocess, size=size, short_side=short_side)
    elif text.startswith("{") or Path(text[:200]).suffix == ".json":
        preprocess = _preprocess_of_json(text, size)
    else:
        raise OptionError(
            "preprocess must be imagenet, a name of `deepfish models` or a .json file, got "
            f"{text[:60]!r}{did_you_mean(text, KNOWN_PIXELS)}"
        )
    is_other_size = size is not None and preprocess.size != size
    if is_other_size or not 1 <= preprocess.size <= preprocess.short_side:
        raise OptionError(
            f"preprocess must have the network's size, {size or 'any'}, and a short_side not below "
            f"it, got {preprocess.size} and {preprocess.short_side}"
        )
    return preprocess


def _preprocess_of_json(text: str, size: int | None) -> Preprocess:
    """Read preprocessing from JSON, or from a .json file."""
    try:
        content = text
        if not text.startswith("{"):
            content = Path(text[:200]).read_text("utf-8")
        facts = json.loads(content)
        side = facts.get("size", size)
        usual = {
            "order": "RGB",
            "resample": "bilinear",
            "scale": 1.0,
            "oversampling": 4,
            "size": side,
            "short_side": side,
        }
        preprocess = read_preprocess(usual | facts)
        numbers = (*preprocess.mean, *preprocess.std, preprocess.scale)
        if not all(map(math.isfinite, numbers)) or 0 in preprocess.std:
            raise ValueError
    except (OSError, ValueError, AttributeError, StoreError):
        raise OptionError(
            f"preprocess must be JSON with mean and std of three numbers each, got {text[:80]}"
        ) from None
    return preprocess


def network_settings() -> tuple[str, ...]:
    """Return the names of all settings of a network that decide a number.

    >>> network_settings()
    ('network', 'weights_sha256', 'layers', 'preprocess', 'compute_dtype', 'head', 'scores',
     'prefix_tokens')
    """
    pixels = Preprocess(size=1, short_side=1, mean=(0.0,) * 3, std=(1.0,) * 3)
    # with tokens, since networks without do not name them
    every = NetworkRef(
        name="", weights_sha256="", layers={}, preprocess=pixels, prefix_tokens=1
    ).as_dict()
    return tuple(name for name in every if name != "source")

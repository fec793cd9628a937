"""References to networks: values from which a network is identified and loaded again.

A `NetworkRef` says all of a network that decides a feature, and from where it is loaded again: the
files by path and checksum. `load.load_reference` makes the `Network` of it. `find_preprocess` says
how a network that is only a file wants its pixels. Torch is not imported here, so that stores,
models and searches can carry it.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections.abc import Iterator, Mapping
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
from deepfishing.util.files import check_regular

PUBLISHED, RANDOM, FILES, PYTHON = KINDS = ("published", "random", "files", "python")
WEIGHTS, PROTOTXT, MEAN = ROLES = ("weights", "prototxt", "mean")
OVERSAMPLING_0_1 = 2  # of `Preprocess`, which version 0.1 did not write down
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
        """Where the file is: beside the weights that the user gave, or where it was."""
        path = Path(self.path)
        if weights is not None:
            beside = Path(weights).parent / path.name
            path = (
                Path(weights)
                if role == WEIGHTS
                else beside
                if beside.is_file()
                else path
            )
        needed = f" with the sha256 {self.sha256}" if self.sha256 else ""
        elsewhere = "pass --weights FILE" + (
            "" if role == WEIGHTS else " with it in that folder"
        )
        problem = ""
        if not path.is_file():
            problem = "which does not exist; put it back"
        elif self.sha256 and (found := sha256_of(path)) != self.sha256:
            problem = f"got a file with {found}; put the right one there"
        if problem:
            raise WeightsError(
                f"the network needs its {role} file {path}{needed}, {problem}, or {elsewhere}"
            )
        return path


@dataclass(frozen=True, kw_only=True)
class Source:
    """From where a network is loaded again: by name, random, from files, or from Python only."""

    kind: str = PYTHON
    files: Mapping[str, NetworkFile] = field(default_factory=dict)  # by their role
    classes: tuple[str, ...] = ()  # names of the classes, where its library has them
    reads_texts: bool = False  # whether its library has a text tower that belongs to it
    # weights of a classifier made of texts, see `networks.text_head`
    text_head: str = ""
    # the tensor of an .onnx file that is x7, empty where there is a classifier
    embedding: str = ""

    def as_dict(self) -> dict[str, Any]:
        """JSON values; of classes and texts only where there are some."""
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
    """All of a network that decides a feature, and where it comes from."""

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
        """Whether its files are still the same, without loading it; False if that is not known."""
        kind, files = self.source.kind, self.source.files
        if str(weights) == RANDOM:
            return kind == RANDOM
        if kind == PUBLISHED and self.name in RECORDS:
            return (
                sha256_of(find_weights(RECORDS[self.name], weights))
                == self.weights_sha256
            )
        if kind != FILES:
            return weights is None and kind != PYTHON
        needed = {role: files[role] for role in (WEIGHTS, PROTOTXT) if role in files}
        for role, file in needed.items():
            file.find(role, weights)
        return all(file.sha256 for file in needed.values())

    def as_dict(self) -> dict[str, Any]:
        """JSON values, with the keys of a store's manifest."""
        tokens = {"prefix_tokens": self.prefix_tokens} if self.prefix_tokens else {}
        return {
            "network": self.name,
            "weights_sha256": self.weights_sha256,
            "layers": {str(k): path for k, path in self.layers.items()},
            "preprocess": preprocess_dict(self.preprocess),
            "compute_dtype": self.dtype,
            "head": self.head,
            "scores": self.scores,
            **tokens,
            "source": self.source.as_dict(),
        }

    @classmethod
    def from_dict(cls, facts: Mapping[str, Any]) -> NetworkRef:
        """Read what `as_dict` wrote; other keys are ignored."""
        for key in ("network", "weights_sha256", "compute_dtype", "head", "scores"):
            if not isinstance(facts.get(key), str):
                raise _unusable(key, facts.get(key), "text")
        prefix_tokens = facts.get("prefix_tokens", 0)
        if (
            type(prefix_tokens) is not int
            or not 0 <= prefix_tokens <= MAX_PREFIX_TOKENS
        ):
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
    """A network's layers, from the settings of a store or a model, which may be damaged."""
    layers = facts.get("layers")
    pairs = layers.items() if isinstance(layers, dict) else [("", layers)]
    if not all(
        re.fullmatch("[0-9]{1,2}", k) and isinstance(path, str) for k, path in pairs
    ):
        raise _unusable("layers", layers, "numbers with the paths of modules")
    return {int(k): str(path) for k, path in pairs}


def sha256_of(path: str | Path) -> str:
    """Hash a file, 64 hex digits."""
    with weights_errors(path):
        check_regular(Path(path), links=True)
        with Path(path).open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()


@contextmanager
def weights_errors(path: str | Path) -> Iterator[None]:
    """Turn what the disk refuses into one line."""
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
    facts: Any = settings.get("source")
    files = facts.get("files") if isinstance(facts, dict) else None
    if not isinstance(files, dict) or facts.get("kind") not in KINDS:
        raise _unusable("source", facts, f"kind ({', '.join(KINDS)}) and files")
    for role, file in files.items():
        is_text = isinstance(file, dict) and all(
            isinstance(text, str) for text in file.values()
        )
        if role not in ROLES or not is_text or set(file) != {"path", "sha256"}:
            raise _unusable("source", facts, "a path and a sha256 for each file")
    classes = facts.get("classes", ())
    if not isinstance(classes, list | tuple) or not all(
        isinstance(c, str) for c in classes
    ):
        raise _unusable("source", facts, "names of classes as text")
    found = {role: NetworkFile(**file) for role, file in files.items()}
    return Source(
        kind=facts["kind"],
        files=found,
        classes=tuple(classes),
        reads_texts=facts.get("reads_texts") is True,
        text_head=str(facts.get("text_head", "")),
        embedding=str(facts.get("embedding", "")),
    )


def preprocess_dict(preprocess: Preprocess) -> dict[str, Any]:
    """JSON values; how the square is cut only where that is not as in the paper."""
    facts: dict[str, Any] = {}
    for one in fields(Preprocess):
        value = getattr(preprocess, one.name)
        if one.name not in FIT_FIELDS or value != one.default:
            facts[one.name] = list(value) if isinstance(value, tuple) else value
    return facts


def read_preprocess(facts: Any) -> Preprocess:
    """How a network wants its pixels, from JSON values, which may be damaged."""
    try:
        given = {k: tuple(v) if isinstance(v, list) else v for k, v in facts.items()}
        made = Preprocess(**{"oversampling": OVERSAMPLING_0_1, **given})  # type: ignore[arg-type]
        numbers = (
            made.size,
            made.short_side,
            made.oversampling,
            made.scale,
            *made.mean,
            *made.std,
        )
        if not all(isinstance(n, int | float) for n in numbers) or len(numbers) != 10:
            raise TypeError
        if made.order not in ("RGB", "BGR") or made.resample not in RESAMPLES:
            raise TypeError
        if made.fit not in FITS or made.rounding not in ROUNDINGS:
            raise TypeError
        if len(made.fill) != 3 or not all(
            type(n) is int and 0 <= n <= 255 for n in made.fill
        ):
            raise TypeError
        if not (1 <= made.size <= MAX_SIDE and 1 <= made.short_side <= MAX_SIDE):
            raise TypeError
        return made
    except (AttributeError, TypeError):
        raise _unusable(
            "preprocess", facts, f"size and short_side up to {MAX_SIDE:,}, mean, std..."
        ) from None


def _unusable(key: str, value: Any, expected: str) -> StoreError:
    return StoreError(
        f"{key} must be {expected}, got {str(value)[:60]!r}; make the store or the model again"
    )


def find_preprocess(given: str | Path | Preprocess, size: int | None) -> Preprocess:
    """The preprocessing of a network that sees `size` pixels, None if any number will do.

    `given` is `imagenet`, a name of `deepfish models` whose network takes its pixels alike, a .json
    file, or JSON itself: mean and std, and what else of `Preprocess` is not as usual.
    """
    text, path = str(given), Path(str(given)[:200])
    if isinstance(given, Preprocess):
        known = given
    elif text in KNOWN_PIXELS:
        known = KNOWN_PIXELS[text]
        margin = known.short_side / known.size
        known = (
            replace(known, size=size, short_side=round(margin * size))
            if size
            else known
        )
    elif text.startswith("{") or path.suffix == ".json":
        try:
            facts = json.loads(
                text if text.startswith("{") else path.read_text("utf-8")
            )
            side = facts.get("size", size)
            usual = {
                "order": "RGB",
                "resample": "bilinear",
                "scale": 1.0,
                "oversampling": 4,
            }
            known = read_preprocess(
                {**usual, "size": side, "short_side": side, **facts}
            )
            numbers = (*known.mean, *known.std, known.scale)
            if not all(map(math.isfinite, numbers)) or 0 in known.std:
                raise ValueError
        except (OSError, ValueError, AttributeError, StoreError):
            raise OptionError(
                f"preprocess must be JSON with mean and std of three numbers each, got {text[:80]}"
            ) from None
    else:
        raise OptionError(
            "preprocess must be imagenet, a name of `deepfish models` or a .json file, got "
            f"{text[:60]!r}{did_you_mean(text, KNOWN_PIXELS)}"
        )
    if not 1 <= known.size <= known.short_side or (size and known.size != size):
        raise OptionError(
            f"preprocess must have the network's size, {size or 'any'}, and a short_side not below "
            f"it, got {known.size} and {known.short_side}"
        )
    return known


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

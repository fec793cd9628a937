"""Stage 2, networks: how a network that is only a file wants its pixels.

Comes in: what a user gave, or what the file says of itself. Goes out: a `Preprocess`; nothing is
guessed.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from deepfishing.errors import OptionError, StoreError, did_you_mean
from deepfishing.images.preprocess import Preprocess
from deepfishing.networks.reference import read_preprocess
from deepfishing.networks.zoo import IMAGENET, RECORDS

NAMES: Mapping[str, Preprocess] = {
    "imagenet": IMAGENET,
    **{name: record.preprocess for name, record in RECORDS.items()},
}


def find_preprocess(given: str | Path | Preprocess, size: int | None) -> Preprocess:
    """The preprocessing of a network that sees `size` pixels, None if any number will do.

    `given` is `imagenet`, a name of `deepfish models` whose network takes its pixels alike, a .json
    file, or JSON itself: mean and std, and what else of `Preprocess` is not as usual.
    """
    text, path = str(given), Path(str(given)[:200])
    if isinstance(given, Preprocess):
        known = given
    elif text in NAMES:
        known = NAMES[text]
        margin = known.short_side / known.size
        known = replace(known, size=size, short_side=round(margin * size)) if size else known
    elif text.startswith("{") or path.suffix == ".json":
        try:
            facts = json.loads(text if text.startswith("{") else path.read_text())
            side = facts.get("size", size)
            usual = {"order": "RGB", "resample": "bilinear", "scale": 1.0, "oversampling": 4}
            known = read_preprocess({**usual, "size": side, "short_side": side, **facts})
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
            f"{text[:60]!r}{did_you_mean(text, NAMES)}"
        )
    if not 1 <= known.size <= known.short_side or (size and known.size != size):
        raise OptionError(
            f"preprocess must have the network's size, {size or 'any'}, and a short_side not below "
            f"it, got {known.size} and {known.short_side}"
        )
    return known

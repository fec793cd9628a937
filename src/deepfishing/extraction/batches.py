"""Batches of factors, and the aggregation of several views of an image."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from deepfishing.core.features import Factor, parse_factor
from deepfishing.core.projections import two_sided
from deepfishing.core.rank_one import Array, RankOne
from deepfishing.errors import FeatureError, ImageError


@dataclass(frozen=True, eq=False)
class Batch:
    """Factors of the images at `indices` by name, and the images that could not be read."""

    indices: list[int]
    factors: dict[str, Array]
    failures: dict[int, str]


def gather(batches: Iterable[Batch]) -> dict[str, Array]:
    """Return the factors of all batches together; refuse images that cannot be used."""
    parts: dict[str, list[Array]] = {}
    for batch in batches:
        if batch.failures:
            raise ImageError(next(iter(batch.failures.values())))
        for name, values in batch.factors.items():
            if not np.isfinite(values).all():
                raise FeatureError(
                    f"{name} must be finite, got NaN or infinity; look for NaN in the network's "
                    "weights, or take dtype float32"
                )
            parts.setdefault(name, []).append(values)
    return {name: np.concatenate(values) for name, values in parts.items()}


def drop_unusable(
    batch: Batch, name: Callable[[int], str] = "image {}".format
) -> Batch:
    """Return a batch with the images whose factors are not finite among its failures.

    `name` gives the name of an image in the reason by its index.
    """
    n = len(batch.indices)
    finite = np.ones(n, dtype=bool)
    for factor, values in batch.factors.items():
        if len(values) != n:
            raise FeatureError(
                f"{factor} must have a row per image, got {len(values)} rows for {n} images; "
                "nothing of this batch is stored"
            )
        finite &= np.isfinite(values.reshape(n, -1)).all(axis=1)
    if finite.all():
        return batch
    indices = []
    failures = dict(batch.failures)
    for index, is_finite in zip(batch.indices, finite, strict=True):
        if is_finite:
            indices.append(index)
        else:
            failures[index] = f"features are not finite: {name(index)}"
    factors = {factor: values[finite] for factor, values in batch.factors.items()}
    return Batch(indices, factors, failures)


def leave_out(batches: Iterable[Batch], failures: dict[int, str]) -> Iterator[Batch]:
    """Yield batches of usable images alone; the others go into `failures` with the reason."""
    for batch in map(drop_unusable, batches):
        failures.update(batch.failures)
        yield replace(batch, failures={})


def zero_gradients(factors: Mapping[str, Array]) -> Array:
    """Return which images have a gradient that is zero everywhere, (n,).

    >>> zero_gradients({"x7": np.ones((2, 3)), "delta8": np.array([[0.0, 0.0], [1e-30, 0.0]])})
    array([ True, False])
    """
    n = max(map(len, factors.values()), default=0)
    zero = np.zeros(n, dtype=bool)
    for name, values in factors.items():
        factor = parse_factor(name)
        if factor.kind == "delta":
            zero[_is_zero(values)] = True
            x = replace(factor, kind="input").name  # the gradient is x delta^T
            if x in factors:
                zero[_is_zero(factors[x])] = True
        elif factor.kind == "projected":
            zero[_is_zero(values)] = True
    return zero


def zero_gradient_note(images: Sequence[object]) -> str:
    """Return a line about images whose gradient is zero."""
    words = "image has" if len(images) == 1 else "images have"
    return (
        f"{len(images)} {words} a zero gradient, such as {images[0]}: gradients cannot tell them "
        "apart; take forward features, or another tau"
    )


def _is_zero(values: Array) -> Array:
    """Return which rows are zero everywhere, (n,)."""
    return np.asarray(
        np.abs(values.reshape(len(values), -1)).max(axis=1, initial=0.0) == 0
    )


def finish(factor: Factor, parts: Sequence[Array]) -> Array:
    """Return a factor of its parts: the one part, or a gradient projected from both sides."""
    if not isinstance(factor.positions, tuple):
        return parts[0]
    gradient: Array | RankOne = parts[0]
    if len(parts) > 1:
        x, delta = parts
        gradient = RankOne(x, delta)
    return two_sided(gradient, *factor.positions)


def aggregate(factor: Factor, values: Array, V: int) -> Array:
    """Return one value per image from those of its V views, which are consecutive.

    Values (n * V, d) or (n * V, P, d) become (n, d), or (n, V * P, d) with `@exact`. Forward
    factors and the factors of a gradient are averaged. Mean x times mean delta is of rank 1; it
    approximates the mean of the V gradients, which is not, and is exact if x or delta is the same
    in all views. The mean of projected gradients is exact since a projection is linear. So are
    gradients with `@exact`: the positions of all views are concatenated and delta is divided by V,
    which makes the sum over all positions the mean of the V gradients.
    """
    if V == 1:
        return values
    if factor.positions == "exact":
        positions = values.reshape(len(values) // V, -1, values.shape[-1])
        return positions / V if factor.kind == "delta" else positions
    means: Array = values.reshape(-1, V, *values.shape[1:]).mean(axis=1)
    return means

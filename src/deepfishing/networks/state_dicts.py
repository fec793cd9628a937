"""Fitting the weights of a file to a network whose code names or ends them differently.

Files of weights come from other versions of a library, from code that was copied, or without a
classifier. What is done about it is reported in a note; what remains different is refused by
`weights.load_into`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from torch import Tensor, nn

COUNTER = "num_batches_tracked"  # of batch normalisation, which files may lack

Tensors = Mapping[str, Tensor]


def remove_prefix(module: nn.Module, tensors: Tensors) -> tuple[Tensors, str]:
    """Take the tensors of a module out of a larger one, such as those below `backbone.`.

    One prefix must lead to half of the module's names and to more than any other; otherwise, and
    where names agree as they are, the tensors are returned as they are.

    Returns
    -------
    tensors : mapping from str to Tensor
    note : str
        What was done; empty where nothing was.
    """
    own = _without_counters(module.state_dict())
    if any(name in own for name in tensors):
        return tensors, ""
    counts: Counter[str] = Counter()
    for name in tensors:
        parts = name.split(".")
        for number in range(1, len(parts)):
            if ".".join(parts[number:]) in own:
                counts[".".join(parts[:number]) + "."] += 1
    likely = counts.most_common(2)
    if not likely or (len(likely) == 2 and likely[0][1] == likely[1][1]):
        return tensors, ""
    prefix, count = likely[0]
    if count < len(own) / 2:
        return tensors, ""
    below = {}
    for name, tensor in tensors.items():
        if name.startswith(prefix):
            below[name.removeprefix(prefix)] = tensor
    note = f"weights are those below {prefix}"
    if len(below) < len(tensors):
        note += f", {len(tensors) - len(below)} other tensors are left out"
    return below, note


def match_by_order(module: nn.Module, tensors: Tensors) -> tuple[Tensors, str]:
    """Rename tensors whose names a module does not know, where order and shapes fit one by one.

    All tensors must agree with those of the module in order, shape and the last part of their
    name (`weight`, `running_mean`, ...); the module may have more of them at its end. Otherwise
    the tensors are returned as they are.

    Returns
    -------
    tensors : mapping from str to Tensor
    note : str
        What was done; empty where nothing was.
    """
    own = _without_counters(module.state_dict())
    given = _without_counters(tensors)
    if set(given) <= set(own) or len(given) > len(own):
        return tensors, ""
    pairs = list(zip(given, own, strict=False))
    if not all(_is_like(old, given[old], new, own[new]) for old, new in pairs):
        return tensors, ""
    renamed = {new: given[old] for old, new in pairs}
    old, new = next((old, new) for old, new in pairs if old != new)
    return renamed, f"weights matched by order and shape, such as {old} to {new}"


def missing_layers(module: nn.Module, tensors: Tensors) -> set[str]:
    """Return the paths of the modules of which no tensor is given."""
    paths: dict[str, list[bool]] = {}
    for name in _without_counters(module.state_dict()):
        paths.setdefault(name.rpartition(".")[0], []).append(name in tensors)
    return {path for path, given in paths.items() if not any(given)}


def remove_layers(module: nn.Module, paths: set[str]) -> None:
    """Replace layers by the identity."""
    for path in paths:
        module.set_submodule(path, nn.Identity())


def _without_counters(tensors: Tensors) -> dict[str, Tensor]:
    return {
        name: tensor for name, tensor in tensors.items() if not name.endswith(COUNTER)
    }


def _is_like(name: str, tensor: Tensor, other_name: str, other: Tensor) -> bool:
    same_kind = name.rpartition(".")[2] == other_name.rpartition(".")[2]
    return same_kind and tensor.shape == other.shape

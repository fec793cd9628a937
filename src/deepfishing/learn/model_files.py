"""Stage 6, models: a model as a folder of two files.

`model.json`         what people read: recipe, network, weights' hash, classes, costs, training
`model.safetensors`  numbers: factors of the support vectors, dual coefficients, bias, calibration,
                     and the state of the recipe

Comes in and goes out: a `Model`. `model.json` has the hash of the other file and one of itself, so
that a file that is cut short, changed or of another model is found out before any of its numbers is
used. New numbers are first written beside the old ones; with `model.json` they take their place, so
that a crash leaves the old model or the new one.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import re
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import load as read_tensors
from safetensors.numpy import save as tensor_bytes

from deepfishing import __version__
from deepfishing.core.projections import SCHEME
from deepfishing.core.rank_one import Array
from deepfishing.core.recipes import parse_recipe
from deepfishing.errors import DeepFishingError, OptionError, WeightsError, explained, one_line
from deepfishing.extraction.settings import Settings
from deepfishing.learn.model import VECTORS, Model, Vectors, on_vectors
from deepfishing.learn.svm import KernelSVM
from deepfishing.networks.reference import FILES, PUBLISHED, RANDOM, ROLES, WEIGHTS
from deepfishing.store.manifest import SOURCE
from deepfishing.util.files import (
    is_intact,
    read_regular,
    remove_file,
    rename_file,
    replacing,
    sealed,
)
from deepfishing.util.locks import hold_lock

FORMAT = "deepfishing-model-1"
FACTS = "model.json"
TENSORS = "model.safetensors"
LOCK = ".lock"
MAX_FACTS_BYTES = 64 * 2**20
MAX_TENSORS_BYTES = 64 * 2**30
_SHA256 = re.compile(r"[0-9a-f]{64}")
_LEFTOVER = re.compile(rf"\.+({re.escape(TENSORS)}|{re.escape(FACTS)})")


def save(model: Model, folder: Path) -> None:
    """Write the two files; a model that exists is replaced by this one, or stays as it is."""
    svm = model.svm
    if svm.calibration is None:
        raise OptionError("a model must have probabilities, got none; make it with train_model")
    tensors = {f"factor/{name}": values for name, values in model.support.items()}
    tensors |= {f"state/{name}": values for name, values in model.fitted.state.items()}
    tensors |= {"dual": svm.dual, "bias": svm.bias, "calibration": svm.calibration}
    if not model.support:  # classifiers on vectors
        tensors["machines"] = np.asarray(svm.features)
    content = tensor_bytes({n: np.ascontiguousarray(t) for n, t in tensors.items()})
    sha256 = hashlib.sha256(content).hexdigest()
    facts = {
        "format": FORMAT,
        "version": __version__,
        "created": datetime.now(UTC).isoformat(timespec="seconds"),
        "recipe": model.recipe,
        "classes": list(model.classes),
        "trained": svm.trained.tolist(),
        "cost": svm.cost.tolist(),
        "ap": [None if np.isnan(value) else value for value in svm.ap],
        "training": dict(model.training),
        "settings": model.settings.as_dict(),
        "projection": SCHEME,
        "sha256": {TENSORS: sha256},
    }
    text = json.dumps(sealed(facts), indent=1) + "\n"
    do = "; choose another folder"
    with explained(WeightsError, f"model cannot be written: {folder}", do, OSError):
        folder.mkdir(parents=True, exist_ok=True)
        with hold_lock(folder / LOCK):
            _clear_up(folder)
            new = _waiting(folder, sha256)
            with replacing(new) as partial:
                partial.write_bytes(content)
            try:
                with replacing(folder / FACTS) as partial:
                    partial.write_text(text, encoding="utf-8")
            except OSError:
                new.unlink(missing_ok=True)
                raise
            rename_file(new, folder / TENSORS)


def _waiting(folder: Path, sha256: str) -> Path:
    """Where numbers are until the facts are in place that name them."""
    return folder / f".{TENSORS}-{sha256[:16]}"


def _clear_up(folder: Path) -> None:
    """Finish what a killed writer has begun, and delete what it has left."""
    with contextlib.suppress(WeightsError, FileNotFoundError):
        waiting = _waiting(folder, _expected(_facts(folder / FACTS)))
        rename_file(waiting, folder / TENSORS)
    for left in folder.iterdir():
        if _LEFTOVER.match(left.name):
            remove_file(left)


def load(folder: Path) -> Model:
    """Read both files and check that they make one whole model."""
    facts = _facts(folder / FACTS)
    tensors = _tensors(folder, facts)
    try:
        model = _model(facts, tensors)
    except (LookupError, TypeError, ValueError, ArithmeticError, AttributeError) as error:
        reason = str(error) if isinstance(error, DeepFishingError) else repr(error)
        raise _damaged(folder / FACTS, reason) from None
    projected = any(factor.kind == "projected" for factor in model.factors)
    if projected and facts.get("projection") != SCHEME:
        raise WeightsError(
            f"{folder} was trained on features that an earlier version projected, with matrices "
            "that are no longer drawn; train it again with `deepfish train`"
        )
    return model


def _model(facts: dict[str, Any], tensors: dict[str, Array]) -> Model:
    settings, classes = _settings(facts), tuple(map(str, facts["classes"]))
    recipe = parse_recipe(facts["recipe"], settings.network.layers)
    support, state = _part("factor/", tensors), _part("state/", tensors)
    linear = "machines" in tensors and not support
    if not linear and set(support) != set(recipe.columns):
        raise ValueError(f"recipe {recipe.name} must have {recipe.columns}, got {list(support)}")
    support = {name: support[name] for name in support and recipe.columns}
    if len({len(values) for values in support.values()}) > 1:
        raise ValueError("factors must be of the same images")
    n = len(tensors["machines"]) if linear else len(support[recipe.columns[0]])
    C = len(classes)
    for name, shape in {"dual": (n, C), "bias": (C,), "calibration": (2, C)}.items():
        if tensors[name].shape != shape:
            raise ValueError(f"{name} must be of shape {shape}, got {tensors[name].shape}")
    if not all(np.isfinite(values).all() for values in tensors.values()):
        raise ValueError("numbers must be finite, got NaN or infinity")
    kinds = {"trained": bool, "cost": float, "ap": float}
    told = {name: np.array(facts[name], dtype=kind) for name, kind in kinds.items()}
    if not classes or any(values.shape != (C,) for values in told.values()):
        raise ValueError(f"{', '.join(kinds)} must have {C} entries, one per class")
    fitted = recipe.load({n: t for n, t in state.items() if not n.startswith(VECTORS)})
    if linear:
        fitted = on_vectors(fitted, Vectors.restore(_part(VECTORS, state)))
    svm = KernelSVM(
        features=tensors["machines"] if linear else fitted(support),
        dual=tensors["dual"],
        bias=tensors["bias"],
        calibration=tensors["calibration"],
        **told,  # type: ignore[arg-type]  # by name
    )
    training = dict(facts["training"])
    return Model(recipe.name, settings, classes, support, fitted, svm, training)


def _settings(facts: dict[str, Any]) -> Settings:
    """Those of a model; version 0.1 kept where the network's files were beside them."""
    settings, places = facts["settings"], facts.get("source")
    if places is None or SOURCE in settings:
        return Settings.from_dict(settings)
    for name in (*ROLES, "network"):
        value = places.get(name)
        if not isinstance(value, str) and (value is not None or name == "network"):
            raise ValueError(f"source must have a usable {name}, got {str(value)[:60]!r}")
    paths = {role: places[role] for role in ROLES if places.get(role) not in (None, RANDOM)}
    if places["network"].endswith(".caffemodel"):
        paths[WEIGHTS] = places["network"]
    files = {role: {"path": path, "sha256": ""} for role, path in paths.items()}
    kind = FILES if WEIGHTS in files else RANDOM if places.get(WEIGHTS) == RANDOM else PUBLISHED
    return Settings.from_dict({**settings, SOURCE: {"kind": kind, "files": files}})


def _part(prefix: str, tensors: dict[str, Array]) -> dict[str, Array]:
    found = ((name, values) for name, values in tensors.items() if name.startswith(prefix))
    return {name.removeprefix(prefix): values for name, values in found}


def _facts(path: Path) -> dict[str, Any]:
    try:
        facts = json.loads(read_regular(path, MAX_FACTS_BYTES))
    except FileNotFoundError:
        raise WeightsError(
            f"a model must hold {FACTS}, got none in {path.parent}; make one with `deepfish train`"
        ) from None
    except OSError as error:
        raise WeightsError(f"model cannot be read: {path} ({error.strerror})") from None
    except (ValueError, RecursionError) as error:
        raise _damaged(path, f"no JSON: {error}") from None
    if not isinstance(facts, dict) or facts.get("format") != FORMAT:
        found = facts.get("format") if isinstance(facts, dict) else None
        raise WeightsError(
            f"format of a model must be {FORMAT!r}, got {found!r} in {path}; "
            "train it again with this version"
        )
    if not is_intact(facts):
        raise _damaged(path, "it is not as it was written")
    return facts


def _expected(facts: dict[str, Any]) -> str:
    """The hash of the numbers; part of a file's name, so nothing else is taken for one."""
    hashes = facts.get("sha256")
    found = str(hashes.get(TENSORS)) if isinstance(hashes, dict) else ""
    return found if _SHA256.fullmatch(found) else ""


def _tensors(folder: Path, facts: dict[str, Any]) -> dict[str, Array]:
    path, expected = folder / TENSORS, _expected(facts)
    waiting = _waiting(folder, expected)  # left there by a writer killed at its last step
    do = "; copy the whole folder"
    with explained(WeightsError, f"model cannot be read: {path}", do, OSError):
        content = read_regular(waiting if waiting.is_file() else path, MAX_TENSORS_BYTES)
    found = hashlib.sha256(content).hexdigest()
    if found != expected:
        raise _damaged(path, f"sha256 must be {expected or None}, got {found}")
    try:
        return dict(read_tensors(content))
    except (SafetensorError, KeyError, ValueError) as error:
        raise _damaged(path, str(error)) from None


def _damaged(path: Path, reason: str) -> WeightsError:
    return WeightsError(
        f"model is damaged: {path} ({one_line(reason)}); copy it again or train it again"
    )

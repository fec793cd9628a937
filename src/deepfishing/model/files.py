"""Stage 6, models: a model as a folder of two files.

`model.json`         what people read: recipe, network, weights' hash, classes, costs, training
`model.safetensors`  numbers: factors of the support vectors, dual coefficients, bias, calibration,
                     and the state of the recipe

Comes in and goes out: a `Model`. `model.json` has the hash of the other file, so a file that is cut
short, changed or of another model is found out before any of its numbers is used.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import load as read_tensors
from safetensors.numpy import save as tensor_bytes

from deepfishing import __version__
from deepfishing.classify import KernelSVM
from deepfishing.errors import DeepFishingError, OptionError, WeightsError
from deepfishing.files import replacing
from deepfishing.model.model import Model, Source, layers_of
from deepfishing.rank_one import Array
from deepfishing.recipes import parse_recipe

FORMAT = "deepfishing-model-1"
FACTS = "model.json"
TENSORS = "model.safetensors"
SETTINGS = (
    *("network", "weights_sha256", "layers", "preprocess", "compute_dtype"),
    *("tau", "label", "views"),
)


def save(model: Model, folder: Path) -> None:
    """Write the two files, the numbers first."""
    svm = model.svm
    if svm.calibration is None:
        raise OptionError("a model must have probabilities, got none; make it with train_model")
    tensors = {f"factor/{name}": values for name, values in model.support.items()}
    tensors |= {f"state/{name}": values for name, values in model.fitted.state.items()}
    tensors |= {"dual": svm.dual, "bias": svm.bias, "calibration": svm.calibration}
    content = tensor_bytes({n: np.ascontiguousarray(t) for n, t in tensors.items()})
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
        "source": asdict(model.source),
        "settings": dict(model.settings),
        "sha256": {TENSORS: hashlib.sha256(content).hexdigest()},
    }
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with replacing(folder / TENSORS) as partial:
            partial.write_bytes(content)
        with replacing(folder / FACTS) as partial:
            partial.write_text(json.dumps(facts, indent=1) + "\n")
    except OSError as error:
        raise WeightsError(
            f"model cannot be written: {folder} ({error.strerror}); choose another folder"
        ) from None


def load(folder: Path) -> Model:
    """Read both files and check that they make one whole model."""
    facts = _facts(folder / FACTS)
    tensors = _tensors(folder / TENSORS, facts)
    try:
        return _model(facts, tensors)
    except (KeyError, TypeError, ValueError, IndexError, AttributeError) as error:
        reason = str(error) if isinstance(error, DeepFishingError) else repr(error)
        raise _damaged(folder / FACTS, reason) from None


def _model(facts: dict[str, Any], tensors: dict[str, Array]) -> Model:
    settings, classes = facts["settings"], tuple(map(str, facts["classes"]))
    absent = [name for name in SETTINGS if name not in settings]
    if absent:
        raise ValueError(f"settings lack {', '.join(absent)}")
    recipe = parse_recipe(facts["recipe"], layers_of(settings))
    support, state = _part("factor/", tensors), _part("state/", tensors)
    if set(support) != set(recipe.factors):
        raise ValueError(f"recipe {recipe.name} must have {recipe.factors}, got {list(support)}")
    support = {name: support[name] for name in recipe.factors}
    if len({len(values) for values in support.values()}) > 1:
        raise ValueError("factors must be of the same images")
    n, shapes = len(support[recipe.factors[0]]), {name: t.shape for name, t in tensors.items()}
    expected = {
        "dual": (n, len(classes)),
        "bias": (len(classes),),
        "calibration": (2, len(classes)),
    }
    for name, shape in expected.items():
        if shapes[name] != shape:
            raise ValueError(f"{name} must be of shape {shape}, got {shapes[name]}")
    if not all(np.isfinite(values).all() for values in tensors.values()):
        raise ValueError("numbers must be finite, got NaN or infinity")
    trained = np.array(facts["trained"], dtype=bool)
    cost, ap = np.array(facts["cost"], dtype=float), np.array(facts["ap"], dtype=float)
    if not trained.shape == cost.shape == ap.shape == (len(classes),) or not classes:
        raise ValueError(f"trained, cost and ap must have {len(classes)} entries, one per class")
    fitted = recipe.load(state)
    svm = KernelSVM(
        features=fitted(support),
        dual=tensors["dual"],
        bias=tensors["bias"],
        trained=trained,
        cost=cost,
        calibration=tensors["calibration"],
        ap=ap,
    )
    return Model(
        recipe=recipe.name,
        settings=settings,
        source=Source(**facts["source"]),
        classes=classes,
        support=support,
        fitted=fitted,
        svm=svm,
        training=dict(facts["training"]),
    )


def _part(prefix: str, tensors: dict[str, Array]) -> dict[str, Array]:
    found = ((name, values) for name, values in tensors.items() if name.startswith(prefix))
    return {name.removeprefix(prefix): values for name, values in found}


def _facts(path: Path) -> dict[str, Any]:
    try:
        facts = json.loads(path.read_bytes())
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
    return facts


def _tensors(path: Path, facts: dict[str, Any]) -> dict[str, Array]:
    try:
        content = path.read_bytes()
    except OSError as error:
        raise WeightsError(
            f"model cannot be read: {path} ({error.strerror}); copy the whole folder"
        ) from None
    hashes = facts.get("sha256")
    expected = hashes.get(TENSORS) if isinstance(hashes, dict) else None
    found = hashlib.sha256(content).hexdigest()
    if found != expected:
        raise _damaged(path, f"sha256 must be {expected}, got {found}")
    try:
        return dict(read_tensors(content))
    except (SafetensorError, KeyError, ValueError) as error:
        raise _damaged(path, str(error)) from None


def _damaged(path: Path, reason: str) -> WeightsError:
    line = " ".join(reason.split())[:300]
    return WeightsError(f"model is damaged: {path} ({line}); copy it again or train it again")

"""`deepfish train`: a classifier of images, in a folder that `deepfish predict` needs alone."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from deepfishing.cli.help import MORE, NETWORK, WORK
from deepfishing.cli.parameters import Fields, Strict
from deepfishing.cli.progress import progress_bar
from deepfishing.cli.say import (
    images_text,
    say,
    say_json,
    say_left_out,
    say_next,
    say_note,
    say_passed_over,
)
from deepfishing.options import Options, Resources

if TYPE_CHECKING:
    from deepfishing.model import Model


def train(
    data: Annotated[
        str,
        "A folder with one folder per class, a VOC tree, a table with a column label, any images "
        "together with --labels, or a store of `deepfish extract`.",
    ],
    model: Annotated[Path, "Folder for the model; made if absent."],
    *,
    labels: Annotated[
        Path | None, "Labels: a .csv with the columns path and label, or a VOC tree."
    ] = None,
    split: Annotated[str, "Split of a VOC tree to train on.", MORE] = "trainval",
    features: Annotated[
        str,
        "auto, which tries some thirty recipes on the training images; best; or one, such as x7 or "
        "pow(dW7,0.5)+x7.",
    ] = "auto",
    cost: Annotated[
        str | None,
        "Cost of the SVMs: a number, auto, cv, cv-shared or vissl; by default auto with --features "
        "auto, else 1.",
    ] = None,
    class_weight: Annotated[str | None, "Weight of positives: balanced, or a number.", MORE] = None,
    difficult: Annotated[
        str, "Difficult examples of a VOC tree: ignore or negative.", MORE
    ] = "ignore",
    options: Annotated[Options, Fields(NETWORK)],
    store: Annotated[
        Path | None, "Folder for the features; MODEL/features by default.", MORE
    ] = None,
    resources: Annotated[Resources, Fields(WORK, without=("memory", "engine"))],
    seed: Annotated[int, "Of the folds of the cross-validation.", MORE] = 0,
    strict: Strict = False,
    as_json: Annotated[bool, "Print the summary as JSON."] = False,
) -> None:
    """Train one support vector machine per class, with probabilities.

    Example: deepfish train photos model --features "pow(dW8,0.5)+x7" --cost cv

    By default features and cost are those that suit the training images, by cross-validation; what
    was tried is printed. The model is model.json and model.safetensors. Features stay on disk, so
    another cost or recipe only computes what is missing. Unusable images are listed and left out.
    The network's options say how features are computed; a store has them computed already. Above
    20,000 images linear classifiers on projected features take the place of the kernel matrix.
    """
    from deepfishing.classify import check_options
    from deepfishing.images.sources import find_images, passed_over_in
    from deepfishing.model.labelled import is_voc, read_labels
    from deepfishing.model.training import train_on_images, train_on_store
    from deepfishing.store import Store
    from deepfishing.store.manifest import MANIFEST, find_store

    C = _number(cost or ("auto" if features.strip() == "auto" else "1"))
    weight = None if class_weight is None else _number(class_weight)
    check_options(C, difficult, weight)
    opened = Store.open(data) if (find_store(Path(data)) / MANIFEST).is_file() else None
    images: list[Any] = list(opened.rows().values()) if opened else find_images(data)
    if opened is None and labels is None and is_voc(Path(data)):
        labels = Path(data)
    labelled = read_labels(images, labels, split)
    with progress_bar(quiet=as_json) as bar:
        how: dict[str, Any] = {"C": C, "class_weight": weight, "difficult": difficult, "seed": seed}
        how |= {"strict": strict, "progress": bar}
        if opened is not None:
            trained, left_out = train_on_store(opened, images, labelled, features, **how)
        else:
            how["extraction"] = {**vars(options), "resources": resources, "notice": say_note}
            place = store or model / "features"
            trained, left_out = train_on_images(images, labelled, place, features, **how)
    trained.save(model)
    if not as_json:
        say_passed_over(passed_over_in(data))
        if unused := labelled.unused(images):
            say_note(unused)
    _print_summary(model, trained, left_out, as_json)


def _number(text: str) -> float | str:
    try:
        return float(text)
    except ValueError:
        return text


def _print_choice(choice: Mapping[str, Any]) -> None:
    """What `auto` tried, the best first, and what it took."""
    if choice["tried"]:
        say("  mAP  features that were tried, by cross-validation on the training images")
    for tried in sorted(choice["tried"], key=lambda one: -one["map"]):
        same = all(tried[name] == choice[name] for name in ("recipe", "tau", "cost"))
        say(f"{'*' if same else ' '} {tried['map']:5.1f}  {_settled(tried)}")
    say(f"auto: {_settled(choice)}; {choice['why']}")


def _settled(one: Mapping[str, Any]) -> str:
    from deepfishing.recipes import parse_recipe

    tau = "" if one["tau"] is None else f", tau {one['tau']:g}"
    return f"{parse_recipe(one['recipe']).title}{tau}, cost {one['cost']:g}"


def _print_summary(folder: Path, model: Model, left_out: dict[str, str], as_json: bool) -> None:
    from deepfishing.recipes import parse_recipe

    svm, n = model.svm, model.training["images"]
    ap = [None if math.isnan(value) else round(float(value), 2) for value in svm.ap]
    known = [value for value in ap if value is not None]
    if as_json:
        summary = {
            "model": str(folder),
            "recipe": model.recipe,
            "images": n,
            "support": len(svm.dual),
            "cross_validated_map": round(sum(known) / len(known), 2) if known else None,
            "classes": {
                name: {"trained": bool(ok), "cost": float(cost), "cross_validated_ap": value}
                for name, ok, cost, value in zip(
                    model.classes, svm.trained, svm.cost, ap, strict=True
                )
            },
            "failures": left_out,
        }
        say_json(summary)
        return
    say_left_out(left_out.values())
    if choice := model.training.get("auto"):
        _print_choice(choice)
    width = max(len(name) for name in ("class", *model.classes))
    say(f"{'class':<{width}}  cost  cross-validated AP")
    for name, ok, cost, value in zip(model.classes, svm.trained, svm.cost, ap, strict=True):
        if not ok:
            say(f"{name:<{width}}  not trained: it needs images with it and without it")
        else:
            say(f"{name:<{width}}  {cost:<4g}  {'-' if value is None else f'{value:.1f}'}")
    mean = f", mAP {sum(known) / len(known):.1f}" if known else ""
    title = parse_recipe(model.recipe).title
    if title != model.recipe:
        say(f"{title} = {model.recipe}")
    kept = f"{len(svm.dual)} support vectors"
    if numbers := model.training.get("vectors"):
        kept = f"linear classifiers on vectors of {numbers:,} numbers, since images are many"
    say(f"{folder}: {title}, {images_text(n)}, {kept}{mean}")
    say_next(("deepfish", "predict", folder, "PHOTO.jpg"))

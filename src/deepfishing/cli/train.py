"""`deepfish train`: classifiers from labelled images."""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING, Any

from deepfishing.cli.arguments.train import (
    Train,
)
from deepfishing.cli.printing import (
    images_text,
    print_json,
    print_line,
    print_next,
    print_note,
)
from deepfishing.cli.progress import progress_bar
from deepfishing.cli.summaries import (
    print_ignored_files,
    print_left_out,
)
from deepfishing.core.recipes import CHOSEN, parse_recipe
from deepfishing.errors import OptionError
from deepfishing.evaluation.report.tables import choice_text
from deepfishing.images.sources import find_images, passed_over_in
from deepfishing.learn.folds import NOT_MEASURABLE
from deepfishing.learn.labelled import is_voc, read_labels
from deepfishing.learn.model import ZERO_SHOT, Model
from deepfishing.learn.svm import CostSearch, check_options
from deepfishing.learn.training import train_on_images, train_on_store
from deepfishing.learn.zero_shot import zero_shot_model
from deepfishing.store import Store
from deepfishing.store.manifest import MANIFEST, find_store

if TYPE_CHECKING:
    from deepfishing.learn.model import Model
    from deepfishing.store import Store


def run_train(args: Train) -> None:
    """Run `deepfish train`."""
    C = _number(args.cost or ("auto" if args.features.strip() in CHOSEN else "1"))
    check_options(C)
    opened = (
        Store.open(args.data)
        if (find_store(Path(args.data)) / MANIFEST).is_file()
        else None
    )
    if args.classes is not None:
        _train_on_words(
            opened,
            args.data,
            args.model,
            args.classes,
            as_json=args.as_json,
        )
        return
    labels = args.labels
    images: list[Any] = (
        find_images(args.data) if opened is None else opened.labelled_rows()
    )
    if opened is None and labels is None and is_voc(Path(args.data)):
        labels = Path(args.data)
    labelled = read_labels(images, labels)
    with progress_bar(quiet=args.as_json) as bar:
        how: dict[str, Any] = {"C": C, "progress": bar}
        if opened is not None:
            trained, left_out = train_on_store(
                opened, images, labelled, args.features, **how
            )
        else:
            how["extraction"] = {**args.options, "notice": print_note}
            folder = args.model / "features"
            trained, left_out = train_on_images(
                images, labelled, folder, args.features, **how
            )
    trained.save(args.model)
    if not args.as_json:
        print_ignored_files(passed_over_in(args.data))
        pool = trained.training.get("pool", 0)
        if pool:
            print_note(
                f"neighbours and prototypes are of {pool:,} images, labelled or not"
            )
        elif unused := labelled.unused(images):
            print_note(unused)
    _print_summary(args.model, trained, left_out, args.as_json)


def _train_on_words(
    store: Store | None,
    data: str,
    folder: Path,
    classes: Path,
    *,
    as_json: bool,
) -> None:
    """Make a classifier of the names of classes."""

    if store is None:
        raise OptionError(
            f"--classes needs a store, got {data}; make one with `deepfish extract {data} STORE "
            "--network hf:ORG/NAME`"
        )
    made = zero_shot_model(store, classes)
    made.save(folder)
    if as_json:
        print_json(
            {"model": str(folder), "recipe": made.recipe, "classes": list(made.classes)}
        )
        return
    prompt = made.training[ZERO_SHOT]["prompt"]
    print_line(
        f"{folder}: {len(made.classes)} classes by their names, {prompt!r}; no photo was used"
    )
    print_next(("deepfish", "predict", folder, "PHOTO.jpg"))


def _number(text: str) -> float | str:
    try:
        return float(text)
    except ValueError:
        return text


def _accuracy_text(accuracy: dict[str, Any]) -> str:
    low, high = accuracy["interval"]
    return (
        f"cross-validated accuracy {accuracy['accuracy']:.1f} % ({low:.1f} to {high:.1f}); "
        f"always the commonest class: {accuracy['commonest']:.1f} %"
    )


def _print_summary(
    folder: Path, model: Model, left_out: dict[str, str], as_json: bool
) -> None:

    svm, n = model.svm, model.training["images"]
    ap = [None if math.isnan(value) else round(float(value), 2) for value in svm.ap]
    validation = model.training.get("validation", {})
    reasons = validation.get("not_measurable", {})
    known = [value for value in ap if value is not None]
    mean = sum(known) / len(known) if known else None
    classes = list(zip(model.classes, svm.trained, svm.cost, ap, strict=True))
    if as_json:
        summary = {
            "model": str(folder),
            "recipe": model.recipe,
            "images": n,
            "support": len(svm.dual),
            "cross_validated_map": None if mean is None else round(mean, 2),
            "cross_validated_accuracy": model.training.get("accuracy") or None,
            "validation": validation,
            "classes": {
                name: {
                    "trained": bool(ok),
                    "cost": float(cost),
                    "cross_validated_ap": value,
                }
                for name, ok, cost, value in classes
            },
            "failures": left_out,
        }
        print_json(summary)
        return
    print_left_out(left_out.values())
    if choice := model.training.get("auto"):
        # what was tried, the best first, and what it took
        if choice["tried"]:
            print_line(
                "  mAP  features that were compared on held-out training images; the best of "
                "many looks too good here"
            )
        for tried in sorted(choice["tried"], key=lambda one: -one["map"]):
            same = all(
                tried[name] == choice[name] for name in ("recipe", "tau", "cost")
            )
            print_line(
                f"{'*' if same else ' '} {tried['map']:5.1f}  {choice_text(tried)}"
            )
        print_line(f"auto: {choice_text(choice)}; {choice['why']}")
    width = max(len(name) for name in ("class", *model.classes))
    print_line(f"{'class':<{width}}  cost  cross-validated AP")
    for name, ok, cost, value in classes:
        if not ok:
            print_line(
                f"{name:<{width}}  not trained: it needs images with it and without it"
            )
        else:
            figure = reasons.get(name, "-") if value is None else f"{value:.1f}"
            print_line(f"{name:<{width}}  {cost:<4g}  {figure}")
    if validation.get("groups", n) < n:
        print_line(
            f"{images_text(n)} are {validation['groups']:,} groups of copies and similar "
            "scenes, which the folds never split"
        )
    if accuracy := model.training.get("accuracy"):
        print_line(_accuracy_text(accuracy))
    title = parse_recipe(model.recipe).title
    if title != model.recipe:
        print_line(f"{title} = {model.recipe}")
    kept = f"{len(svm.dual)} support vectors"
    if numbers := model.training.get("vectors"):
        kept = f"linear classifiers on vectors of {numbers:,} numbers, since images are many"
    scored = f", cross-validated mAP {NOT_MEASURABLE}"
    if mean is not None:
        scored = f", cross-validated mAP {mean:.1f}"
        if choice or len(CostSearch.from_option(model.training["C"]).costs) > 1:
            scored += " on images that the choice did not see"
    print_line(f"{folder}: {title}, {images_text(n)}, {kept}{scored}")
    print_next(("deepfish", "predict", folder, "PHOTO.jpg"))

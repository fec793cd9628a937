"""`deepfish train`: classifiers from labelled images."""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING, Any

from deepfishing.cli.arguments.train import (
    Train,
)
from deepfishing.cli.printing import (
    count_text,
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
from deepfishing.util.files import check_folder

if TYPE_CHECKING:
    from deepfishing.learn.model import Model
    from deepfishing.store import Store


def run_train(args: Train) -> None:
    """Run `deepfish train`."""
    check_folder(args.model, "MODEL")
    C: float | str = 1.0
    if args.cost:
        C = _number(args.cost)
    elif args.features.strip() in CHOSEN:
        C = "auto"
    check_options(C)
    store = None
    if (find_store(Path(args.data)) / MANIFEST).is_file():
        store = Store.open(args.data)
    if args.classes is not None:
        _train_on_words(
            store,
            args.data,
            args.model,
            args.classes,
            as_json=args.as_json,
        )
        return
    labels = args.labels
    if store is None and labels is None and is_voc(Path(args.data)):
        labels = Path(args.data)
    images = _images(store, args.data)
    labelled = read_labels(images, labels)
    with progress_bar(quiet=args.as_json) as bar:
        how: dict[str, Any] = {"C": C, "progress": bar}
        if store is not None:
            trained, left_out = train_on_store(
                store, images, labelled, args.features, **how
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
        elif labelled.unused(images):
            print_note(labelled.unused(images))
    _print_summary(args.model, trained, left_out, args.as_json)


def _images(store: Store | None, data: str) -> list[Any]:
    """Return the rows of a store, or the images of a folder or a table."""
    if store is None:
        return list(find_images(data))
    return store.labelled_rows()


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
    model = zero_shot_model(store, classes)
    model.save(folder)
    if as_json:
        print_json(
            {
                "model": str(folder),
                "recipe": model.recipe,
                "classes": list(model.classes),
            }
        )
        return
    prompt = model.training[ZERO_SHOT]["prompt"]
    print_line(
        f"{folder}: {len(model.classes)} classes by their names, {prompt!r}; no photo was used"
    )
    print_next(("deepfish", "predict", folder, "PHOTO.jpg"))


def _number(text: str) -> float | str:
    try:
        return float(text)
    except ValueError:
        return text


def _accuracy_text(accuracy: dict[str, Any], classes: int) -> str:
    low, high = accuracy["interval"]
    known = accuracy["classes"]
    among = "" if known == classes else f" among the {known} measurable classes"
    return (
        f"cross-validated accuracy{among} {accuracy['accuracy']:.1f} % "
        f"({low:.1f} to {high:.1f}); always the commonest class: "
        f"{accuracy['commonest']:.1f} %"
    )


def _print_summary(
    folder: Path, model: Model, left_out: dict[str, str], as_json: bool
) -> None:
    """Print the classes of a model with their cross-validated AP."""
    measured = [round(float(ap), 2) for ap in model.svm.ap if not math.isnan(ap)]
    mean_ap = None
    if measured:
        mean_ap = sum(measured) / len(measured)
    if as_json:
        _print_json_summary(folder, model, left_out, mean_ap)
        return
    print_left_out(left_out.values())
    choice = model.training.get("auto")
    if choice:
        _print_choice(choice)
    _print_classes(model)
    n = model.training["images"]
    groups = model.training.get("validation", {}).get("groups", n)
    if groups < n:
        print_line(
            f"{images_text(n)} are {count_text(groups, 'group')} of copies and similar scenes, "
            "which the folds never split"
        )
    accuracy = model.training.get("accuracy")
    if accuracy:
        print_line(_accuracy_text(accuracy, len(model.classes)))
    title = parse_recipe(model.recipe).title
    if title != model.recipe:
        print_line(f"{title} = {model.recipe}")
    size = f"{len(model.svm.dual)} support vectors"
    numbers = model.training.get("vectors")
    if numbers:
        size = f"linear classifiers on vectors of {numbers:,} numbers, since images are many"
    figure = f"cross-validated mAP {NOT_MEASURABLE}"
    if mean_ap is not None:
        figure = f"cross-validated mAP {mean_ap:.1f}"
        if choice or len(CostSearch.from_option(model.training["C"]).costs) > 1:
            figure += " on images that the choice did not see"
    print_line(f"{folder}: {title}, {images_text(n)}, {size}, {figure}")
    print_next(("deepfish", "predict", folder, "PHOTO.jpg"))


def _print_json_summary(
    folder: Path, model: Model, left_out: dict[str, str], mean_ap: float | None
) -> None:
    svm = model.svm
    if mean_ap is not None:
        mean_ap = round(mean_ap, 2)
    classes = {}
    for name, is_trained, cost, ap in zip(
        model.classes, svm.trained, svm.cost, svm.ap, strict=True
    ):
        rounded = None
        if not math.isnan(ap):
            rounded = round(float(ap), 2)
        classes[name] = {
            "trained": bool(is_trained),
            "cost": float(cost),
            "cross_validated_ap": rounded,
        }
    summary = {
        "model": str(folder),
        "recipe": model.recipe,
        "images": model.training["images"],
        "support": len(svm.dual),
        "cross_validated_map": mean_ap,
        "cross_validated_accuracy": model.training.get("accuracy") or None,
        "validation": model.training.get("validation", {}),
        "classes": classes,
        "failures": left_out,
    }
    print_json(summary)


def _print_choice(choice: dict[str, Any]) -> None:
    """Print what `auto` has tried, the best first, and its choice."""
    if choice["tried"]:
        print_line(
            "  mAP  features that were compared on held-out training images; the best of "
            "many looks too good here"
        )
    for candidate in sorted(choice["tried"], key=lambda tried: -tried["map"]):
        mark = "*"
        for key in ("recipe", "tau", "cost"):
            if candidate[key] != choice[key]:
                mark = " "
        print_line(f"{mark} {candidate['map']:5.1f}  {choice_text(candidate)}")
    print_line(f"auto: {choice_text(choice)}; {choice['why']}")


def _print_classes(model: Model) -> None:
    """Print cost and cross-validated AP of each class."""
    svm = model.svm
    reasons = model.training.get("validation", {}).get("not_measurable", {})
    width = max(len(name) for name in ("class", *model.classes))
    print_line(f"{'class':<{width}}  cost  cross-validated AP")
    for name, is_trained, cost, ap in zip(
        model.classes, svm.trained, svm.cost, svm.ap, strict=True
    ):
        if not is_trained:
            text = "not trained: it needs images with it and without it"
        elif math.isnan(ap):
            text = f"{cost:<4g}  {reasons.get(name, '-')}"
        else:
            text = f"{cost:<4g}  {round(float(ap), 2):.1f}"
        print_line(f"{name:<{width}}  {text}")

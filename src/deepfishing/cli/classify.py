"""Classifiers of images: `deepfish train` makes a folder that `predict` and `export-model` take."""

from __future__ import annotations

import math
import sys
from collections import Counter
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from deepfishing.cli import say
from deepfishing.cli.command import (
    MORE,
    NETWORK,
    WORK,
    Fields,
    Json,
    ModelFolder,
    MovedWeights,
    Strict,
)
from deepfishing.errors import OptionError
from deepfishing.extraction.options import OPTIONS, Resources
from deepfishing.networks.prompts import PROMPT
from deepfishing.util.files import check_out, write_records

if TYPE_CHECKING:
    from deepfishing.learn.model import Model
    from deepfishing.store import Store


def train(
    data: Annotated[
        str,
        "A folder with one folder per class, a VOC tree, a table with a column label, any images "
        "together with --labels, or a store of `deepfish extract`.",
    ],
    model: Annotated[Path, "Folder for the model; made if absent."],
    *,
    labels: Annotated[
        Path | None, "A .csv with the columns path and label, or a VOC tree."
    ] = None,
    classes: Annotated[
        Path | None,
        "Names of classes, a line each: a classifier by words, without labels, of a store whose "
        "network reads texts.",
    ] = None,
    prompt: Annotated[
        str, "What is said of a class, its name in place of {}.", MORE
    ] = PROMPT,
    split: Annotated[str, "Split of a VOC tree to train on.", MORE] = "trainval",
    features: Annotated[
        str,
        "auto, which tries some forty recipes on the training images; auto-forward, which tries "
        "forward features alone; best; or one, such as x7 or pow(dW7,0.5)+x7.",
    ] = "auto",
    cost: Annotated[
        str | None,
        "Cost of the SVMs: a number, auto, cv, cv-shared or vissl; by default auto with --features "
        "auto, else 1.",
    ] = None,
    class_weight: Annotated[
        str | None, "Weight of positives: balanced, or a number.", MORE
    ] = None,
    difficult: Annotated[
        str, "Difficult labels of a VOC tree: ignore or negative.", MORE
    ] = "ignore",
    options: Annotated[
        dict[str, Any], Fields(NETWORK, only=("network", "weights"), records=OPTIONS)
    ],
    resources: Annotated[Resources, Fields(WORK, only=("batch_size", "device"))],
    seed: Annotated[int, "Seed of the folds of the cross-validation.", MORE] = 0,
    labelled_only: Annotated[
        bool, "Do not use images without labels, for neighbours and prototypes.", MORE
    ] = False,
    strict: Strict = False,
    as_json: Json = False,
) -> None:
    """Train one support vector machine per class, with probabilities.

    Example: deepfish train photos model --features "pow(dW8,0.5)+x7" --cost cv

    By default features and cost are those that suit the training images, by cross-validation; what
    was tried is printed. With few labels images without labels help, too, so their features are
    computed unless --labelled-only is given. The model is model.json and model.safetensors.
    Features stay on disk, so another cost or recipe only computes what is missing. Unusable images
    are listed and left out. For other options of the features run `deepfish extract` first and
    train on its store. Above 20,000 images linear classifiers on projected features take the place
    of the kernel matrix.
    """
    # loaded when the command runs, so that help and completion are quick
    from deepfishing.core.recipes import CHOSEN
    from deepfishing.images.sources import find_images, passed_over_in
    from deepfishing.learn.labelled import is_voc, read_labels
    from deepfishing.learn.svm import check_options
    from deepfishing.learn.training import train_on_images, train_on_store
    from deepfishing.store import Store
    from deepfishing.store.manifest import MANIFEST, find_store

    C = _number(cost or ("auto" if features.strip() in CHOSEN else "1"))
    weight = None if class_weight is None else _number(class_weight)
    check_options(C, difficult, weight)
    opened = Store.open(data) if (find_store(Path(data)) / MANIFEST).is_file() else None
    if classes is not None:
        _train_on_words(opened, data, model, classes, prompt, as_json=as_json)
        return
    images: list[Any] = find_images(data) if opened is None else opened.labelled_rows()
    if opened is None and labels is None and is_voc(Path(data)):
        labels = Path(data)
    labelled = read_labels(images, labels, split)
    with say.progress_bar(quiet=as_json) as bar:
        how: dict[str, Any] = {
            "C": C,
            "class_weight": weight,
            "difficult": difficult,
            "seed": seed,
        }
        how |= {"strict": strict, "progress": bar}
        if opened is not None:
            images = [
                row for row in images if row.id in labelled.rows or not labelled_only
            ]
            trained, left_out = train_on_store(
                opened, images, labelled, features, **how
            )
        else:
            how["extraction"] = {**options, "resources": resources, "notice": say.note}
            folder = model / "features"
            how["labelled_only"] = labelled_only
            trained, left_out = train_on_images(
                images, labelled, folder, features, **how
            )
    trained.save(model)
    if not as_json:
        say.passed_over(passed_over_in(data))
        pool = trained.training.get("pool", 0)
        if pool:
            say.note(
                f"neighbours and prototypes are of {pool:,} images, labelled or not"
            )
        elif unused := labelled.unused(images):
            say.note(unused)
    _print_summary(model, trained, left_out, as_json)


def _train_on_words(
    store: Store | None,
    data: str,
    folder: Path,
    classes: Path,
    prompt: str,
    *,
    as_json: bool,
) -> None:
    """Make a classifier of the names of classes."""
    # loaded when the command runs, so that help and completion are quick
    from deepfishing.learn.zero_shot import zero_shot_model

    if store is None:
        raise OptionError(
            f"--classes needs a store, got {data}; make one with `deepfish extract {data} STORE "
            "--network hf:ORG/NAME`"
        )
    made = zero_shot_model(store, classes, prompt)
    made.save(folder)
    if as_json:
        say.json(
            {"model": str(folder), "recipe": made.recipe, "classes": list(made.classes)}
        )
        return
    say.line(
        f"{folder}: {len(made.classes)} classes by their names, {prompt!r}; no photo was used"
    )
    say.what_next(("deepfish", "predict", folder, "PHOTO.jpg"))


def _number(text: str) -> float | str:
    try:
        return float(text)
    except ValueError:
        return text


def _print_summary(
    folder: Path, model: Model, left_out: dict[str, str], as_json: bool
) -> None:
    # loaded when the command runs, so that help and completion are quick
    from deepfishing.core.recipes import parse_recipe
    from deepfishing.evaluation.report.rows import choice_text
    from deepfishing.learn.folds import NOT_MEASURABLE

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
        say.json(summary)
        return
    say.left_out(left_out.values())
    if choice := model.training.get("auto"):
        # what was tried, the best first, and what it took
        if choice["tried"]:
            say.line(
                "  mAP  features that were tried, on training images that were held out"
            )
        for tried in sorted(choice["tried"], key=lambda one: -one["map"]):
            same = all(
                tried[name] == choice[name] for name in ("recipe", "tau", "cost")
            )
            say.line(
                f"{'*' if same else ' '} {tried['map']:5.1f}  {choice_text(tried)}"
            )
        say.line(f"auto: {choice_text(choice)}; {choice['why']}")
    width = max(len(name) for name in ("class", *model.classes))
    say.line(f"{'class':<{width}}  cost  cross-validated AP")
    for name, ok, cost, value in classes:
        if not ok:
            say.line(
                f"{name:<{width}}  not trained: it needs images with it and without it"
            )
        else:
            figure = reasons.get(name, "-") if value is None else f"{value:.1f}"
            say.line(f"{name:<{width}}  {cost:<4g}  {figure}")
    if validation.get("groups", n) < n:
        say.line(
            f"{say.images_text(n)} are {validation['groups']:,} groups of copies and similar "
            "scenes, which the folds never split"
        )
    title = parse_recipe(model.recipe).title
    if title != model.recipe:
        say.line(f"{title} = {model.recipe}")
    kept = f"{len(svm.dual)} support vectors"
    if numbers := model.training.get("vectors"):
        kept = f"linear classifiers on vectors of {numbers:,} numbers, since images are many"
    scored = f", cross-validated mAP {NOT_MEASURABLE}"
    if mean is not None:
        scored = f", cross-validated mAP {mean:.1f}"
    say.line(f"{folder}: {title}, {say.images_text(n)}, {kept}{scored}")
    say.what_next(("deepfish", "predict", folder, "PHOTO.jpg"))


def predict(
    model: ModelFolder,
    images: Annotated[
        list[str],
        "Folders, images, quoted patterns, .txt lists, tables, .tar files, or - for a list on "
        "standard input.",
    ],
    *,
    top: Annotated[int, "How many classes to show per image."] = 3,
    copy_into: Annotated[
        Path | None, "Also copy the images into a folder per class below this one."
    ] = None,
    out: Annotated[
        Path | None, "Also write a table, .csv or .json, into this file."
    ] = None,
    weights: MovedWeights = None,
    resources: Annotated[Resources, Fields(WORK, only=("batch_size", "device"))],
    strict: Strict = False,
    as_json: Annotated[
        bool, "Print one JSON object per image, with all classes."
    ] = False,
) -> None:
    """Classify images: the most probable classes of each, with their probabilities.

    Example: deepfish predict model photos --out predictions.csv

    Classes are judged one by one, so the probabilities of an image need not sum to 1. Unusable
    images are listed and left out. The network must be the one of the training; its weights are
    checked. --copy-into sorts copies into a folder per class, and `unsure` where no class reaches
    the threshold that was chosen for it; originals are never moved. --out lists the same. On a pipe
    there are tabs between image, class, probability, class, probability...
    """
    if top < 1:
        raise OptionError(f"--top must be at least 1, got {top}")

    import numpy as np

    # loaded when the command runs, so that help and completion are quick
    from deepfishing.images.preprocess import refuse_unreadable, unreadable
    from deepfishing.images.sources import find_all_images, passed_over_in
    from deepfishing.learn.model import Model
    from deepfishing.learn.predict import predict as run
    from deepfishing.learn.sorting import (
        Sorted,
        check_target,
        copy_photos,
        folder_names,
        sort_photo,
    )

    check_out(out)
    if copy_into is not None:
        for source in images:
            check_target(copy_into, Path(source))
    loaded = Model.load(model)
    names_of_folders = folder_names(loaded.classes)
    places: list[Sorted] = []
    sources: list[int] = []
    items = find_all_images(images)

    if strict:
        with say.progress_bar(quiet=as_json) as bar:
            refuse_unreadable(unreadable(items, bar), len(items))

    width = max(len(item.id) for item in items)
    failed = 0
    is_terminal = sys.stdout.isatty()
    with say.progress_bar(quiet=is_terminal) as bar:
        # there, the lines themselves show it
        bar("images", 0, len(items))
        notice = None if as_json else say.note
        found_ones = run(
            loaded, items, weights=weights, resources=resources, notice=notice
        )
        for done, found in enumerate(found_ones, start=1):
            item = items[found.index]
            best = np.argsort(-found.probabilities, kind="stable")
            names = [loaded.classes[c] for c in best]
            if not found.error:
                chances = found.probabilities
                into = sort_photo(loaded, str(item), item.id, chances, names_of_folders)
                places += into
                sources += [found.index] * len(into)
            if as_json:
                facts = {"image": item.id, "path": str(item)}
                if found.error:
                    say.json({**facts, "error": found.error})
                else:
                    of_class, scores = (
                        dict(zip(names, values[best].tolist(), strict=True))
                        for values in (found.probabilities, found.scores)
                    )
                    into_names = [one.folder for one in into]
                    found_facts = {"probabilities": of_class, "scores": scores}
                    say.json({**facts, **found_facts, "folders": into_names})
            elif found.error:
                say.note(f"left out: {found.error}")
            elif is_terminal:
                shown = (
                    f"{loaded.classes[c]} {found.probabilities[c]:.3f}"
                    for c in best[:top]
                )
                say.line(f"{item.id:<{width}}  {'  '.join(shown)}")
            else:
                pairs = (
                    (loaded.classes[c], f"{found.probabilities[c]:.6f}")
                    for c in best[:top]
                )
                say.cells((item.id, *chain.from_iterable(pairs)))
            failed += found.error is not None
            bar("images", done, len(items))
    write_records(
        out,
        [vars(one) for one in places],
        ["path", "id", "folder", "label", "probability"],
    )
    if copy_into is not None:
        with say.progress_bar(quiet=as_json) as bar:
            read = [items[index].open for index in sources]
            done_ones = copy_photos(
                copy_into, list(zip(places, read, strict=True)), bar
            )
        there = (
            f", {done_ones.existing:,} were there already" if done_ones.existing else ""
        )
        say.note(f"{copy_into}: {say.counted(done_ones.copied, 'file')} copied{there}")
    if not as_json:
        say.passed_over(sum(map(passed_over_in, images), Counter()))
    if failed == len(items):
        say.line(f"deepfish: none of {say.images_text(failed)} can be used", err=True)
        raise typer.Exit(1)


def export_model(
    model: ModelFolder,
    file: Annotated[Path, "The .onnx file to write."],
    weights: MovedWeights = None,
) -> None:
    """Write a model as one .onnx file: pixels in, probabilities out, without Python.

    Example: deepfish export-model model model.onnx

    Pixels are uint8 RGB after resizing and cropping; mean and deviation are in the graph. The file
    is compared with the model before it is written.
    """
    # loaded when the command runs, so that help and completion are quick
    from deepfishing.learn.model import Model
    from deepfishing.learn.to_onnx import export_model as run

    loaded = Model.load(model)
    difference = run(
        loaded, file, network=loaded.settings.load_network(weights=weights)
    )
    size, C = loaded.settings.network.preprocess.size, len(loaded.classes)
    say.line(
        f"{file}: {say.size_text(file.stat().st_size)}, as `predict` within {difference:.1e}"
    )
    say.line(
        f"pixels (n, {size}, {size}, 3) uint8 RGB to probabilities and scores (n, {C})"
    )

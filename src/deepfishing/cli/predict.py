"""`deepfish predict`: the most probable classes of images."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from deepfishing.cli.arguments.predict import (
    Predict,
)
from deepfishing.cli.printing import (
    count_text,
    images_text,
    print_cells,
    print_json,
    print_line,
    print_note,
)
from deepfishing.cli.progress import progress_bar
from deepfishing.cli.summaries import (
    print_ignored_files,
)
from deepfishing.errors import OptionError
from deepfishing.extraction.batches import zero_gradient_note
from deepfishing.images.sources import find_all_images, passed_over_in
from deepfishing.learn.model import Model
from deepfishing.learn.predict import predict
from deepfishing.learn.sorting import (
    Sorted,
    check_target,
    copy_photos,
    folder_names,
    sort_photo,
)
from deepfishing.util.files import check_folder, check_out, write_records

if TYPE_CHECKING:
    from deepfishing.images.item import Item
    from deepfishing.learn.model import Model
    from deepfishing.learn.predict import Prediction


@dataclass
class _Summary:
    """Results that are reported after all images are classified."""

    copies: list[Sorted] = field(default_factory=list)
    sources: list[Item] = field(default_factory=list)  # the image of each copy
    failures: int = 0
    zero_gradients: list[str] = field(default_factory=list)


def run_predict(args: Predict) -> None:
    """Run `deepfish predict`."""
    if args.top < 1:
        raise OptionError(f"--top must be at least 1, got {args.top}")
    check_out(args.out)
    check_folder(args.copy_into, "--copy-into")
    if args.copy_into is not None:
        for source in args.images:
            check_target(args.copy_into, Path(source))
    model = Model.load(args.model)
    items = find_all_images(args.images)

    summary = _classify(args, model, items)
    if summary.zero_gradients:
        print_note(zero_gradient_note(summary.zero_gradients))
    rows = [vars(copy) for copy in summary.copies]
    write_records(args.out, rows, ["path", "id", "folder", "label", "probability"])
    if args.copy_into is not None:
        _copy_into(args.copy_into, summary, quiet=args.as_json)
    if not args.as_json:
        print_ignored_files(sum(map(passed_over_in, args.images), Counter()))
    if summary.failures == len(items):
        print_note(f"deepfish: none of {images_text(len(items))} can be used")
        sys.exit(1)


def _classify(args: Predict, model: Model, items: Sequence[Item]) -> _Summary:
    """Classify images and print each of them as soon as it is known."""
    summary = _Summary()
    folders = folder_names(model.classes)
    width = max(len(item.id) for item in items)
    notice = None
    if not args.as_json:
        notice = print_note
    is_terminal = sys.stdout.isatty()  # there the lines show the progress
    with progress_bar(quiet=is_terminal) as bar:
        bar("images", 0, len(items))
        predictions = predict(model, items, weights=args.weights, notice=notice)
        for done, prediction in enumerate(predictions, start=1):
            item = items[prediction.index]
            copies: list[Sorted] = []
            if not prediction.error:
                copies = sort_photo(
                    model, str(item), item.id, prediction.probabilities, folders
                )
            if args.as_json:
                _print_json(model, item, prediction, copies)
            elif prediction.error:
                print_note(f"left out: {prediction.error}")
            elif is_terminal:
                best = _best(model, prediction, args.top)
                texts = [f"{name} {value:.3f}" for name, value in best]
                print_line(f"{item.id:<{width}}  {'  '.join(texts)}")
            else:
                cells = [item.id]
                for name, value in _best(model, prediction, args.top):
                    cells += [name, f"{value:.6f}"]
                print_cells(cells)
            summary.copies += copies
            summary.sources += [item] * len(copies)
            if prediction.error is not None:
                summary.failures += 1
            if prediction.has_zero_gradient:
                summary.zero_gradients.append(item.id)
            bar("images", done, len(items))
    return summary


def _best(model: Model, prediction: Prediction, top: int) -> list[tuple[str, float]]:
    """Return the most probable classes with their probabilities."""
    probabilities = prediction.probabilities
    order = np.argsort(-probabilities, kind="stable")
    return [(model.classes[c], float(probabilities[c])) for c in order[:top]]


def _print_json(
    model: Model, item: Item, prediction: Prediction, copies: Sequence[Sorted]
) -> None:
    """Print all classes of an image, the most probable first, or its error."""
    document: dict[str, Any] = {"image": item.id, "path": str(item)}
    if prediction.error:
        document["error"] = prediction.error
    else:
        best = _best(model, prediction, len(model.classes))
        scores = dict(zip(model.classes, prediction.scores.tolist(), strict=True))
        document["probabilities"] = dict(best)
        document["scores"] = {name: scores[name] for name, _ in best}
        document["folders"] = [copy.folder for copy in copies]
    print_json(document)


def _copy_into(folder: Path, summary: _Summary, *, quiet: bool) -> None:
    """Copy images into a folder per class, and print how many."""
    openers = [item.open for item in summary.sources]
    with progress_bar(quiet=quiet) as bar:
        copied = copy_photos(
            folder, list(zip(summary.copies, openers, strict=True)), bar
        )
    text = f"{folder}: {count_text(copied.copied, 'file')} copied"
    if copied.existing:
        text += f", {copied.existing:,} were there already"
    print_note(text)

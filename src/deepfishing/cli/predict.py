"""`deepfish predict`: the classes of images, by a model of `deepfish train`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from deepfishing.cli.help import NETWORK, WORK
from deepfishing.cli.parameters import Fields, Strict
from deepfishing.cli.progress import progress_bar
from deepfishing.cli.say import images_text, say, say_json, say_note, say_passed_over
from deepfishing.errors import OptionError
from deepfishing.options import Resources


def predict(
    model: Annotated[Path, "Folder that `deepfish train` wrote."],
    images: Annotated[
        str,
        "A folder, an image, a quoted pattern, a .txt list, a table, a .tar, or - for a list on "
        "standard input.",
    ],
    *,
    top: Annotated[int, "How many classes to show per image."] = 3,
    weights: Annotated[
        Path | None, "The network's weight file, if it is elsewhere now.", NETWORK
    ] = None,
    resources: Annotated[Resources, Fields(WORK, without=("memory", "engine"))],
    strict: Strict = False,
    as_json: Annotated[bool, "Print one JSON object per image, with all classes."] = False,
) -> None:
    """Classify images: the most probable classes of each, with their probabilities.

    Example: deepfish predict model photos --top 2

    Classes are judged one by one, so the probabilities of an image need not sum to 1. Unusable
    images are listed and left out. The network must be the one of the training; its weights are
    checked.
    """
    if top < 1:
        raise OptionError(f"--top must be at least 1, got {top}")

    import numpy as np

    from deepfishing.images.preprocess import refuse_unreadable, unreadable
    from deepfishing.images.sources import find_images, passed_over_in
    from deepfishing.model import Model
    from deepfishing.model.predict import predict as run

    loaded = Model.load(model)
    items = find_images(images)

    if strict:
        with progress_bar(quiet=as_json) as bar:
            refuse_unreadable(unreadable(items, bar), len(items))

    width = max(len(item.id) for item in items)
    failed = 0
    with progress_bar(quiet=sys.stdout.isatty()) as bar:  # there, the lines themselves show it
        found_ones = run(loaded, items, weights=weights, resources=resources)
        for done, found in enumerate(found_ones, start=1):
            item = items[found.index]
            best = np.argsort(-found.probabilities, kind="stable")
            names = [loaded.classes[c] for c in best]
            if as_json:
                facts = {"image": item.id, "path": str(item)}
                if found.error:
                    say_json({**facts, "error": found.error})
                else:
                    chances, scores = (
                        dict(zip(names, values[best].tolist(), strict=True))
                        for values in (found.probabilities, found.scores)
                    )
                    say_json({**facts, "probabilities": chances, "scores": scores})
            elif found.error:
                say_note(f"left out: {found.error}")
            else:
                shown = (f"{loaded.classes[c]} {found.probabilities[c]:.3f}" for c in best[:top])
                say(f"{item.id:<{width}}  {'  '.join(shown)}")
            failed += found.error is not None
            bar("images", done, len(items))
    if not as_json:
        say_passed_over(passed_over_in(images))
    if failed == len(items):
        say(f"deepfish: none of {images_text(failed)} can be used", err=True)
        raise typer.Exit(1)

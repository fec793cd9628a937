"""`deepfish predict`: the most probable classes of images."""

from __future__ import annotations

import sys
from collections import Counter
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING

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
from deepfishing.learn.predict import predict as run
from deepfishing.learn.sorting import (
    Sorted,
    check_target,
    copy_photos,
    folder_names,
    sort_photo,
)
from deepfishing.util.files import check_out, write_records

if TYPE_CHECKING:
    from deepfishing.learn.model import Model


def run_predict(args: Predict) -> None:
    """Run `deepfish predict`."""
    if args.top < 1:
        raise OptionError(f"--top must be at least 1, got {args.top}")

    check_out(args.out)
    if args.copy_into is not None:
        for source in args.images:
            check_target(args.copy_into, Path(source))
    loaded = Model.load(args.model)
    names_of_folders = folder_names(loaded.classes)
    places: list[Sorted] = []
    sources: list[int] = []
    items = find_all_images(args.images)

    width = max(len(item.id) for item in items)
    failed = 0
    zero: list[str] = []
    is_terminal = sys.stdout.isatty()
    with progress_bar(quiet=is_terminal) as bar:
        # there, the lines themselves show it
        bar("images", 0, len(items))
        notice = None if args.as_json else print_note
        found_ones = run(loaded, items, weights=args.weights, notice=notice)
        for done, found in enumerate(found_ones, start=1):
            item = items[found.index]
            best = np.argsort(-found.probabilities, kind="stable")
            names = [loaded.classes[c] for c in best]
            if not found.error:
                chances = found.probabilities
                into = sort_photo(loaded, str(item), item.id, chances, names_of_folders)
                places += into
                sources += [found.index] * len(into)
            if args.as_json:
                facts = {"image": item.id, "path": str(item)}
                if found.error:
                    print_json({**facts, "error": found.error})
                else:
                    of_class, scores = (
                        dict(zip(names, values[best].tolist(), strict=True))
                        for values in (found.probabilities, found.scores)
                    )
                    into_names = [one.folder for one in into]
                    found_facts = {"probabilities": of_class, "scores": scores}
                    print_json({**facts, **found_facts, "folders": into_names})
            elif found.error:
                print_note(f"left out: {found.error}")
            elif is_terminal:
                shown = (
                    f"{loaded.classes[c]} {found.probabilities[c]:.3f}"
                    for c in best[: args.top]
                )
                print_line(f"{item.id:<{width}}  {'  '.join(shown)}")
            else:
                pairs = (
                    (loaded.classes[c], f"{found.probabilities[c]:.6f}")
                    for c in best[: args.top]
                )
                print_cells((item.id, *chain.from_iterable(pairs)))
            failed += found.error is not None
            if found.has_zero_gradient:
                zero.append(item.id)
            bar("images", done, len(items))
    if zero:
        print_note(zero_gradient_note(zero))
    write_records(
        args.out,
        [vars(one) for one in places],
        ["path", "id", "folder", "label", "probability"],
    )
    if args.copy_into is not None:
        with progress_bar(quiet=args.as_json) as bar:
            read = [items[index].open for index in sources]
            done_ones = copy_photos(
                args.copy_into, list(zip(places, read, strict=True)), bar
            )
        there = (
            f", {done_ones.existing:,} were there already" if done_ones.existing else ""
        )
        print_note(
            f"{args.copy_into}: {count_text(done_ones.copied, 'file')} copied{there}"
        )
    if not args.as_json:
        print_ignored_files(sum(map(passed_over_in, args.images), Counter()))
    if failed == len(items):
        print_line(f"deepfish: none of {images_text(failed)} can be used", err=True)
        sys.exit(1)

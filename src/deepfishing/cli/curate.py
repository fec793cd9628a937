"""`deepfish curate`: put a collection in order, from what a store holds already."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from deepfishing.cli.curate_options import AsJson, Features, Out, Sheet, draw_sheet
from deepfishing.cli.help import MORE
from deepfishing.cli.odd import map_, odd
from deepfishing.cli.say import images_text, say
from deepfishing.cli.store import StoreFolder
from deepfishing.cli.twins import twins
from deepfishing.errors import OptionError

if TYPE_CHECKING:
    from deepfishing.curate.labels import Doubt

curate_app = typer.Typer(no_args_is_help=True)


@curate_app.command()
def choose(
    store: StoreFolder,
    n: Annotated[int, typer.Option("-n", help="How many photos to choose.")] = 100,
    features: Features = None,
    labelled: Annotated[
        str | None,
        typer.Option(
            help="Photos that are labelled already: a .csv with the columns path and label, a "
            "text file with a path per line, or the word store for its own labels."
        ),
    ] = None,
    sheet: Sheet = None,
    out: Out = None,
    as_json: AsJson = False,
) -> None:
    """Choose the photos to label first: the few that stand best for all.

    Example: deepfish curate choose store -n 100 --out first.csv

    Prints their paths, the most useful first; stopped early, those that it has. Fill in the column
    labels of --out and pass the table as --labelled to choose the next ones.
    """
    from deepfishing.cli.progress import progress_bar
    from deepfishing.curate.photos import Pick, choose_photos, open_photos, read_labelled
    from deepfishing.curate.records import check_out, write_records

    check_out(out)
    photos = open_photos(store, features)
    known = {} if labelled is None else read_labelled(photos, labelled)
    picks: list[Pick] = []
    try:
        with progress_bar(quiet=as_json) as bar:
            for pick in choose_photos(photos, n, labelled=known, progress=bar):
                picks.append(pick)
    finally:
        if out is not None and picks:
            write_records(
                out,
                [{**asdict(pick), "labels": None} for pick in picks],
                ["path", "id", "labels", "gain"],
            )
        if as_json:
            document = {"store": str(store), "by": photos.recipe.name, "labelled": len(known)}
            say(json.dumps({**document, "photos": [asdict(pick) for pick in picks]}, indent=1))
        for pick in picks if not as_json else ():
            say(pick.path)
    if sheet is not None:
        draw_sheet(sheet, photos, [(pick.id, str(n)) for n, pick in enumerate(picks, start=1)])
    if not as_json:
        gain = 100 * sum(pick.gain for pick in picks)
        said = f"{len(picks)} of {images_text(len(photos.collection))} by {photos.recipe.title}"
        said += f"; they add {gain:.1f} % of coverage"
        if len(picks) < n:
            said += "; every other photo is labelled, or the same as one of them"
        say(said, err=True)


@curate_app.command()
def labels(
    store: StoreFolder,
    source: Annotated[
        Path | None,
        typer.Option(
            "--labels",
            help="Labels: a .csv with the columns path and label, or a VOC tree. [default: those "
            "of the store, or its folders]",
        ),
    ] = None,
    n: Annotated[int, typer.Option("-n", help="How many labels to show at most.")] = 50,
    features: Features = None,
    split: Annotated[
        str, typer.Option(help="Split of a VOC tree.", rich_help_panel=MORE)
    ] = "trainval",
    seed: Annotated[int, typer.Option(help="Of the folds.", rich_help_panel=MORE)] = 0,
    sheet: Sheet = None,
    out: Out = None,
    as_json: AsJson = False,
) -> None:
    """Find labels that are probably wrong, and say what they would be.

    Example: deepfish curate labels store --labels labels.csv --out doubtful.csv

    A machine that has not seen the photo and the photos nearest to it contradict its label. The
    more they do, the larger the doubt. Works with one label per photo and with several.
    """
    from deepfishing.cli.progress import progress_bar
    from deepfishing.curate.labels import doubtful_labels
    from deepfishing.curate.photos import open_photos
    from deepfishing.curate.records import check_out, write_records

    check_out(out)
    if n < 1:
        raise OptionError(f"-n must be at least 1 label, got {n}")
    photos = open_photos(store, features)
    with progress_bar(quiet=as_json) as bar:
        found, looked_at = doubtful_labels(photos, source, split=split, seed=seed, progress=bar)
    shown = found[:n]
    if out is not None:
        columns = ["path", "id", "given", "suggested", "doubt"]
        write_records(out, [asdict(one) for one in shown], columns)
    if sheet is not None:
        draw_sheet(sheet, photos, [(one.id, _change(one)) for one in shown])
    if as_json:
        document = {"store": str(store), "by": photos.recipe.name, "photos": looked_at}
        document |= {"doubtful": len(found), "labels": [asdict(one) for one in shown]}
        say(json.dumps(document, indent=1))
        return
    for one in shown:
        say(f"{one.doubt:5.2f}  {_change(one)}  {one.path}")
    said = f"{len(found):,} doubtful labels of {images_text(looked_at)} by {photos.recipe.title}"
    say(said + (f"; the first {n} are shown" if len(found) > n else ""), err=True)


def _change(doubt: Doubt) -> str:
    """What is doubted: the label given and the one suggested, or the one too much or missing."""
    given, to = set(doubt.given), set(doubt.suggested)
    if len(given) == len(to) == 1:
        return f"{doubt.given[0]} -> {doubt.suggested[0]}"
    return f"{'+' if to > given else '-'}{next(iter(to ^ given))}"


for command in (twins, odd):
    curate_app.command()(command)
curate_app.command("map")(map_)

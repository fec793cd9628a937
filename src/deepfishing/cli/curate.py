"""`deepfish curate`: put a collection in order, from what a store holds already."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from deepfishing.cli.curate_options import AsJson, Features, Out, Sheet
from deepfishing.cli.say import images_text, say
from deepfishing.cli.store import StoreFolder
from deepfishing.cli.twins import twins

if TYPE_CHECKING:
    from deepfishing.search import Searcher

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
    from deepfishing.curate.choose import Pick, choose_photos, open_photos, read_labelled
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


curate_app.command()(twins)


def draw_sheet(path: Path, photos: Searcher, captions: Iterable[tuple[str, str]]) -> None:
    """Draw photos of the store, given by id, each with a caption above its name."""
    from deepfishing.images.item import Held
    from deepfishing.search.sheet import save_tiles

    found = ((id_, caption, photos.photo(id_)) for id_, caption in captions)
    save_tiles(
        path,
        [
            (None if photo is None else Held(id_, photo), caption, Path(id_).name)
            for id_, caption, photo in found
        ],
    )

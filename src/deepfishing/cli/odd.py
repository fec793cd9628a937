"""`deepfish curate odd` and `deepfish curate map`: what does not belong, and what is in there."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from deepfishing.cli.curate_options import AsJson, Features, Out, Sheet, draw_sheet
from deepfishing.cli.say import images_text, say, say_next
from deepfishing.cli.store import StoreFolder


def odd(
    store: StoreFolder,
    n: Annotated[int, typer.Option("-n", help="How many photos to show.")] = 20,
    score: Annotated[
        str,
        typer.Option(
            help="knn: unlike their nearest photos. By the network's doubt: msp, energy, delta "
            "(its norm), gradnorm."
        ),
    ] = "knn",
    features: Features = None,
    k: Annotated[
        int | None,
        typer.Option(
            "-k",
            help="Of knn, which neighbour's distance counts; more than there are odd ones of a "
            "kind. [default: a twentieth of the photos, 10 to 50]",
        ),
    ] = None,
    sheet: Sheet = None,
    out: Out = None,
    as_json: AsJson = False,
) -> None:
    """Find photos unlike the rest, or photos that the network is not sure of.

    Example: deepfish curate odd store -n 20 --sheet odd.png

    Prints their paths, the oddest first. --out has the score of every photo.
    """
    from deepfishing.cli.progress import progress_bar
    from deepfishing.curate.neighbours import open_searcher
    from deepfishing.curate.odd import RECIPES, odd_photos
    from deepfishing.curate.records import check_out, write_records
    from deepfishing.store import Store

    check_out(out)
    with progress_bar(quiet=as_json) as bar:
        opened = Store.open(store)
        photos = open_searcher(opened, features, defaults=RECIPES, progress=bar)
        found = odd_photos(photos, score, k=k, progress=bar)
    if out is not None:
        write_records(out, [asdict(one) for one in found], ["path", "id", "score"])
    shown = found[: max(n, 0)]
    if sheet is not None and shown:
        draw_sheet(sheet, photos, [(one.id, f"{one.score:.3f}") for one in shown])
    if as_json:
        document = {"store": str(store), "score": score, "by": photos.recipe.name}
        say(json.dumps({**document, "photos": [asdict(one) for one in shown]}, indent=1))
        return
    for one in shown:
        say(one.path)
    by = f"{score} in {photos.recipe.title}" if score == "knn" else score
    say(f"the {len(shown)} oddest of {images_text(len(found))} by {by}", err=True)


def map_(
    store: StoreFolder,
    out: Annotated[Path, typer.Option(help="The page to write.")] = Path("map.html"),
    clusters: Annotated[
        int | None,
        typer.Option(help="How many groups. [default: by the number of photos, at most 24]"),
    ] = None,
    features: Features = None,
    points: Annotated[
        Path | None,
        typer.Option(help="Also write place and group of every photo, .csv or .json."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Draw a collection as a map: what is alike lies close, in groups with a name and a photo.

    Example: deepfish curate map store --out map.html

    A group is named by what the network sees there more often than elsewhere. The page is one file
    without scripts.
    """
    from deepfishing.cli.progress import progress_bar
    from deepfishing.curate.map_page import write_map
    from deepfishing.curate.maps import make_map
    from deepfishing.curate.neighbours import open_searcher
    from deepfishing.curate.records import check_out, write_records
    from deepfishing.store import Store

    check_out(out, (".html",))
    check_out(points)
    with progress_bar(quiet=as_json) as bar:
        photos = open_searcher(Store.open(store), features, progress=bar)
        found = make_map(photos, clusters, progress=bar)
    gone = write_map(out, found, photos)
    if points is not None:
        write_records(points, found.records(photos), ["path", "id", "x", "y", "group"])
    if as_json:
        document = {"store": str(store), "by": photos.recipe.name, "page": str(out)}
        say(json.dumps({**document, "groups": [asdict(one) for one in found.clusters]}, indent=1))
        return
    for number, one in enumerate(found.clusters, start=1):
        say(f"{number:3} {one.photos:7,}  {one.name}")
    if gone:
        say(f"left out: {gone} typical photos are not where they were, or have changed", err=True)
    say_next(("xdg-open", out))

"""`deepfish curate`: put a collection in order, from what a store holds already."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from deepfishing.cli.arguments.shared import (
    Json,
    Names,
    StoreFolder,
)

Features = Annotated[
    str | None, "A recipe, such as x7 or pow(dW8,0.5). [default: by the store]"
]
Out = Annotated[Path | None, "Also write a table, .csv or .json, into this file."]
Sheet = Annotated[Path | None, "Also draw the photos into this picture, .png or .jpg."]


@dataclass(frozen=True, kw_only=True)
class Choose:
    """Choose the photos to label first: those that represent the others best.

    Example: deepfish curate choose store -n 100 --out first.csv

    Prints their paths, the most useful first; stopped early, those that it has. Fill in the column
    labels of --out and pass the table as --labels to choose the next ones.
    """

    store: StoreFolder
    n: Annotated[int, "How many photos to choose."] = 100
    features: Features = None
    labels: Annotated[
        str | None,
        "Photos that are labelled already: a .csv with the columns path and label, a text file "
        "with a path per line, or the word store for its own labels.",
    ] = None
    sheet: Sheet = None
    out: Out = None
    as_json: Json = False


@dataclass(frozen=True, kw_only=True)
class Labels:
    """Find labels that are probably wrong, and suggest others.

    Example: deepfish curate labels store --labels labels.csv --out doubtful.csv

    A classifier that has not seen the photo and the photos nearest to it contradict its label. The
    more they do, the larger the doubt. Works with one label per photo and with several.
    """

    store: StoreFolder
    labels: Annotated[
        Path | None,
        "Labels: a .csv with the columns path and label, or a VOC tree. [default: those "
        "of the store, or its folders]",
    ] = None
    n: Annotated[int, "How many labels to show at most."] = 50
    features: Features = None
    sheet: Sheet = None
    out: Out = None
    as_json: Json = False


@dataclass(frozen=True, kw_only=True)
class Twins:
    """Find photos that are copies of one picture: re-encoded, smaller, cropped, mirrored.

    Example: deepfish curate twins store --out twice.txt

    Prints the paths of copies of the --kinds asked for: all but one of each picture, the one with
    the most real detail. Nothing is moved or deleted. Look at --sheet, then put the copies aside:
    mkdir twice; deepfish curate twins store -0 | xargs -0 -I{} mv -n -- {} twice/
    """

    store: StoreFolder
    against: Annotated[
        Path | None, "Another store: find photos of STORE that it has, too."
    ] = None
    kinds: Annotated[
        str,
        "Kinds of copies to list, comma-separated: identical file, identical pixels, re-encoded or "
        "resized, cropped, border added. A mirrored photo is never listed.",
    ] = "identical file,identical pixels,re-encoded or resized"
    out: Annotated[
        Path | None, "File for the paths, .txt, or for all groups, .csv or .json."
    ] = None
    print0: Annotated[
        bool,
        "End paths with a zero byte, for xargs -0.",
        Names(("--print0", "-0")),
    ] = False
    sheet: Sheet = None
    as_json: Json = False


@dataclass(frozen=True, kw_only=True)
class Bursts:
    """Find photos of one scene that are no copies, to choose one of each burst.

    Example: deepfish curate bursts store

    Prints the number of the burst and the path, separated by a tab, for every photo. All of them
    are different photos, so this is no list of what may go.
    """

    store: StoreFolder
    as_json: Json = False


@dataclass(frozen=True, kw_only=True)
class Odd:
    """Find photos unlike the rest, or photos that the network is not sure of.

    Example: deepfish curate odd store -n 20 --sheet odd.png

    Prints their paths, the oddest first. --out has the score of every photo.
    """

    store: StoreFolder
    n: Annotated[int, "How many photos to show."] = 20
    score: Annotated[
        str,
        "knn: unlike their nearest photos. By the network's doubt: msp, energy, delta (its norm), "
        "gradnorm.",
    ] = "knn"
    features: Features = None
    sheet: Sheet = None
    out: Out = None
    as_json: Json = False


@dataclass(frozen=True, kw_only=True)
class Map:
    """Draw a map of a collection: similar photos are close, in groups with a name.

    Example: deepfish curate map store --out map.html

    A group is named by what the network sees there more often than elsewhere. The page is one file
    without scripts. A table has the place and the group of each photo.
    """

    store: StoreFolder
    out: Annotated[Path, "The page to write, .html, or a table, .csv or .json."] = Path(
        "map.html"
    )
    clusters: Annotated[
        int | None, "How many groups. [default: by the photos, at most 24]"
    ] = None
    features: Features = None
    as_json: Json = False

"""`deepfish curate`: put a collection in order, from what a store holds already."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from deepfishing.cli import say
from deepfishing.cli.command import MORE, Json, StoreFolder
from deepfishing.errors import OptionError, check_choice
from deepfishing.util.files import KINDS, check_out, replacing, write_records

if TYPE_CHECKING:
    from deepfishing.curate.duplicates import Group, Photo
    from deepfishing.curate.label_errors import Doubt
    from deepfishing.search import Searcher

SHOWN = 10  # groups of twins that are told one by one
DRAWN = 40  # groups of twins on a sheet
LIST = ".txt"
TWINS = (
    "group",
    "keep",
    "path",
    "id",
    "store",
    "kind",
    "why",
    "width",
    "height",
    "bytes",
    "difference",
)

Features = Annotated[
    str | None, "A recipe, such as x7 or pow(dW8,0.5). [default: by the store]"
]
Out = Annotated[Path | None, "Also write a table, .csv or .json, into this file."]
Sheet = Annotated[Path | None, "Also draw the photos into this picture, .png or .jpg."]


def _check_out(out: Path | None, *kinds: str) -> None:
    """Refuse a file that cannot be made, or one whose labels would be lost, before any work."""
    # loaded when the command runs, so that help and completion are quick
    from deepfishing.images.tables import labels_in

    check_out(out, kinds or KINDS)
    if out is not None and (n := labels_in(out)):
        raise OptionError(
            f"{out} has {n:,} {'label' if n == 1 else 'labels'} filled in, which would be lost; "
            "give --out another name"
        )


def choose(
    store: StoreFolder,
    n: Annotated[int, "How many photos to choose."] = 100,
    features: Features = None,
    labelled: Annotated[
        str | None,
        "Photos that are labelled already: a .csv with the columns path and label, a text file "
        "with a path per line, or the word store for its own labels.",
    ] = None,
    sheet: Sheet = None,
    out: Out = None,
    as_json: Json = False,
) -> None:
    """Choose the photos to label first: the few that stand best for all.

    Example: deepfish curate choose store -n 100 --out first.csv

    Prints their paths, the most useful first; stopped early, those that it has. Fill in the column
    labels of --out and pass the table as --labelled to choose the next ones.
    """
    # loaded when the command runs, so that help and completion are quick
    from deepfishing.curate.selection import (
        Pick,
        choose_photos,
        open_photos,
        read_labelled,
    )

    _check_out(out)
    photos = open_photos(store, features)
    known = {} if labelled is None else read_labelled(photos, labelled)
    picks: list[Pick] = []
    try:
        with say.progress_bar(quiet=as_json) as bar:
            for pick in choose_photos(photos, n, labelled=known, progress=bar):
                picks.append(pick)
    finally:
        if picks:
            blank = [{**asdict(pick), "labels": None} for pick in picks]
            write_records(out, blank, ["path", "id", "labels", "gain"])
        if as_json:
            _say_document(store, photos, labelled=len(known), photos=picks)
        for pick in picks if not as_json else ():
            say.line(pick.path)
    _draw(
        sheet,
        photos,
        [(pick.id, str(number)) for number, pick in enumerate(picks, start=1)],
    )
    if not as_json:
        gain = 100 * sum(pick.gain for pick in picks)
        said = f"{len(picks)} of {say.images_text(len(photos.collection))} by {photos.recipe.title}"
        said += f"; they add {gain:.1f} % of coverage"
        if len(picks) < n:
            said += "; every other photo is labelled, or the same as one of them"
        say.note(said)


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
    n: Annotated[int, "How many labels to show at most."] = 50,
    features: Features = None,
    split: Annotated[str, "Split of a VOC tree.", MORE] = "trainval",
    seed: Annotated[int, "Seed of the folds.", MORE] = 0,
    sheet: Sheet = None,
    out: Out = None,
    as_json: Json = False,
) -> None:
    """Find labels that are probably wrong, and say what they would be.

    Example: deepfish curate labels store --labels labels.csv --out doubtful.csv

    A classifier that has not seen the photo and the photos nearest to it contradict its label. The
    more they do, the larger the doubt. Works with one label per photo and with several.
    """
    # loaded when the command runs, so that help and completion are quick
    from deepfishing.curate.label_errors import doubtful_labels
    from deepfishing.curate.selection import open_photos

    _check_out(out)
    if n < 1:
        raise OptionError(f"-n must be at least 1 label, got {n}")
    photos = open_photos(store, features)
    with say.progress_bar(quiet=as_json) as bar:
        found, looked_at = doubtful_labels(
            photos, source, split=split, seed=seed, progress=bar
        )
    shown = found[:n]
    columns = ["path", "id", "given", "suggested", "doubt"]
    write_records(out, [asdict(one) for one in shown], columns)
    _draw(sheet, photos, [(one.id, _change(one)) for one in shown])
    if as_json:
        _say_document(
            store, photos, photos=looked_at, doubtful=len(found), labels=shown
        )
        return
    for one in shown:
        say.line(f"{one.doubt:5.2f}  {_change(one)}  {one.path}")
    of = f"{say.images_text(looked_at)} by {photos.recipe.title}"
    more = f"; the first {n} are shown" if len(found) > n else ""
    say.note(f"{len(found):,} doubtful labels of {of}{more}")


def _change(doubt: Doubt) -> str:
    """What is doubted: the label given and the one suggested, or the one too much or missing."""
    given, to = set(doubt.given), set(doubt.suggested)
    if len(given) == len(to) == 1:
        return f"{doubt.given[0]} -> {doubt.suggested[0]}"
    return f"{'+' if to > given else '-'}{next(iter(to ^ given))}"


def twins(
    store: StoreFolder,
    against: Annotated[
        Path | None, "Another store: find photos of STORE that it has, too."
    ] = None,
    features: Features = None,
    kinds: Annotated[
        str,
        "Kinds of copies to list, comma-separated: identical file, identical pixels, re-encoded or "
        "resized, cropped, border added. A mirrored photo is never listed.",
    ] = "identical file,identical pixels,re-encoded or resized",
    out: Annotated[
        Path | None, "File for the paths, .txt, or for all groups, .csv or .json."
    ] = None,
    print0: Annotated[
        bool,
        typer.Option(
            "--print0", "-0", help="End paths with a zero byte, for xargs -0."
        ),
    ] = False,
    sheet: Sheet = None,
    as_json: Json = False,
) -> None:
    """Find photos that are copies of one picture: re-encoded, smaller, cropped, mirrored.

    Example: deepfish curate twins store --out twice.txt

    Prints the paths of copies of the --kinds asked for: all but one of each picture, the one with
    the most real detail. Nothing is moved or deleted. Look at --sheet, then put the copies aside:
    mkdir twice; deepfish curate twins store -0 | xargs -0 mv -t twice --
    """
    # loaded when the command runs, so that help and completion are quick
    from deepfishing.curate.duplicates import find_twins
    from deepfishing.curate.neighbours import open_searcher
    from deepfishing.images.same_picture import KINDS as COPIES
    from deepfishing.images.same_picture import MIRRORED

    wanted = [kind.strip() for kind in kinds.split(",")]
    if MIRRORED in wanted:
        raise OptionError(
            f"--kinds must be kinds that can be listed, got {MIRRORED!r}: pixels cannot tell which "
            "of two mirrored photos is the original; see --out all.csv or --sheet"
        )
    for kind in wanted:
        check_choice("--kinds", kind, COPIES)
    _check_out(out, *KINDS, LIST)
    as_list = out is not None and out.suffix.lower() == LIST
    with say.progress_bar(quiet=as_json) as bar:
        opened = [
            open_searcher(one, features, progress=bar, notice=say.note)
            for one in (store, against)
            if one is not None
        ]
        found = find_twins(*opened, progress=bar)
    removable = found.removable(wanted)
    end = "\0" if print0 else "\n"
    listed = [path for path in removable if print0 or "\n" not in path]
    text = "".join(path + end for path in listed)
    if out is not None and as_list:
        with replacing(out) as partial:
            partial.write_bytes(text.encode("utf-8", "surrogateescape"))
    else:
        groups = enumerate(found.groups, start=1)
        records = [
            _twin_record(p, g, number)
            for number, g in groups
            for p in (g.keep, *g.others)
        ]
        write_records(out, records, TWINS)
    if sheet is not None and found.groups:
        draw_groups(sheet, found.groups[:DRAWN])
    if as_json:
        _say_document(store, opened[0], gone=found.gone, groups=found.groups)
        return
    for group in found.groups[:SHOWN]:
        say.note(f"keep {group.keep.path} ({group.why})")
        for photo in group.others:
            stays = "" if photo.can_go and photo.kind in wanted else ", not listed"
            said = f"{photo.kind}, {photo.width} x {photo.height}{stays}"
            say.note(f"     {photo.path} ({said})")
    if len(found.groups) > SHOWN:
        say.note(f"and {len(found.groups) - SHOWN:,} more groups, see --out or --sheet")
    if not as_list:
        typer.echo(say.spelled(text) if sys.stdout.isatty() else text, nl=False)
    photos = say.images_text(len(opened[0].collection))
    say.note(
        f"{say.counted(len(found.groups), 'picture')} more than once among {photos}; "
        f"{say.counted(len(listed), 'photo')} listed"
    )
    if hidden := len(removable) - len(listed):
        say.note(
            f"left out: {say.images_text(hidden)} with a line break in the name; take -0"
        )
    if found.gone:
        say.note(
            f"left out: {say.images_text(len(found.gone))} not found as extracted, first "
            f"{found.gone[0]}; bring {store} up to date with `deepfish extract --prune`"
        )


def _twin_record(photo: Photo, group: Group, number: int) -> dict[str, object]:
    keep = photo is group.keep
    return {
        **asdict(photo),
        "group": number,
        "keep": keep,
        "why": group.why if keep else "",
    }


def draw_groups(path: Path, groups: Sequence[Group]) -> None:
    """Each group on rows of its own, the photo to keep first."""
    from PIL import Image

    # loaded when the command runs, so that help and completion are quick
    from deepfishing.search.hits import COLUMNS, PAPER, Tile, save_tiles

    tiles: list[Tile] = []
    blank = Image.new("RGB", (1, 1), PAPER)
    for group in groups:
        photos = [(group.keep, f"keep: {group.why}")]
        photos += [(photo, photo.kind) for photo in group.others]
        tiles += [(Path(p.path), text, Path(p.path).name) for p, text in photos]
        tiles += [(blank, "", "")] * (-len(tiles) % COLUMNS)
    save_tiles(path, tiles)


def bursts(
    store: StoreFolder, features: Features = None, as_json: Json = False
) -> None:
    """Find photos of one scene that are no copies, to choose one of each burst.

    Example: deepfish curate bursts store

    Prints the number of the burst and the path, separated by a tab, for every photo. All of them
    are different photos, so this is no list of what may go.
    """
    # loaded when the command runs, so that help and completion are quick
    from deepfishing.curate.duplicates import find_bursts
    from deepfishing.curate.neighbours import open_searcher

    with say.progress_bar(quiet=as_json) as bar:
        photos = open_searcher(store, features, progress=bar)
        found = find_bursts(photos, progress=bar)
    if as_json:
        _say_document(store, photos, bursts=found)
        return
    for number, burst in enumerate(found, start=1):
        for photo in burst.photos:
            say.line(f"{number}\t{photo.path}")
    of = say.images_text(len(photos.collection))
    say.note(f"{say.counted(len(found), 'scene')} in several photos among {of}")


def odd(
    store: StoreFolder,
    n: Annotated[int, "How many photos to show."] = 20,
    score: Annotated[
        str,
        "knn: unlike their nearest photos. By the network's doubt: msp, energy, delta (its norm), "
        "gradnorm.",
    ] = "knn",
    features: Features = None,
    k: Annotated[
        int | None,
        "Of knn, which neighbour's distance counts; more than there are odd ones of a kind. "
        "[default: a twentieth of the photos, 10 to 50]",
    ] = None,
    sheet: Sheet = None,
    out: Out = None,
    as_json: Json = False,
) -> None:
    """Find photos unlike the rest, or photos that the network is not sure of.

    Example: deepfish curate odd store -n 20 --sheet odd.png

    Prints their paths, the oddest first. --out has the score of every photo.
    """
    # loaded when the command runs, so that help and completion are quick
    from deepfishing.curate.neighbours import open_searcher
    from deepfishing.curate.outliers import RECIPES, odd_photos

    _check_out(out)
    with say.progress_bar(quiet=as_json) as bar:
        photos = open_searcher(store, features, defaults=RECIPES, progress=bar)
        found = odd_photos(photos, score, k=k, progress=bar)
    write_records(out, [asdict(one) for one in found], ["path", "id", "score"])
    shown = found[: max(n, 0)]
    if shown:
        _draw(sheet, photos, [(one.id, f"{one.score:.3f}") for one in shown])
    if as_json:
        _say_document(store, photos, score=score, photos=shown)
        return
    for one in shown:
        say.line(one.path)
    by = f"{score} in {photos.recipe.title}" if score == "knn" else score
    say.note(f"the {len(shown)} oddest of {say.images_text(len(found))} by {by}")


def map_(
    store: StoreFolder,
    out: Annotated[Path, "The page to write."] = Path("map.html"),
    clusters: Annotated[
        int | None, "How many groups. [default: by the photos, at most 24]"
    ] = None,
    features: Features = None,
    points: Annotated[
        Path | None, "Also write place and group of each photo, .csv or .json."
    ] = None,
    as_json: Json = False,
) -> None:
    """Draw a collection as a map: what is alike lies close, in groups with a name and a photo.

    Example: deepfish curate map store --out map.html

    A group is named by what the network sees there more often than elsewhere. The page is one file
    without scripts.
    """
    # loaded when the command runs, so that help and completion are quick
    from deepfishing.curate.map_page import make_map, write_map
    from deepfishing.curate.neighbours import open_searcher

    _check_out(out, ".html")
    _check_out(points)
    with say.progress_bar(quiet=as_json) as bar:
        photos = open_searcher(store, features, progress=bar)
        found = make_map(photos, clusters, progress=bar)
    gone = write_map(out, found, photos)
    write_records(points, found.records(photos), ["path", "id", "x", "y", "group"])
    if as_json:
        _say_document(store, photos, page=str(out), groups=found.clusters)
        return
    for number, one in enumerate(found.clusters, start=1):
        say.line(f"{number:3} {one.photos:7,}  {one.name}")
    if gone:
        say.note(
            f"left out: {gone} typical photos are not where they were, or have changed"
        )
    say.what_next(("xdg-open", out))


def _say_document(store: Path, searcher: Searcher, **facts: Any) -> None:
    """Print one JSON document; a sequence of dataclasses becomes a list of objects."""
    for name, value in facts.items():
        if isinstance(value, list | tuple):
            facts[name] = [
                one if isinstance(one, str) else asdict(one) for one in value
            ]
    say.json({"store": str(store), "by": searcher.recipe.name, **facts}, indent=1)


def _draw(
    sheet: Path | None, searcher: Searcher, captions: Iterable[tuple[str, str]]
) -> None:
    """Draw photos of the store, given by id, each with a caption above its name."""
    if sheet is None:
        return
    # loaded when the command runs, so that help and completion are quick
    from deepfishing.search.hits import save_tiles

    save_tiles(
        sheet, [(searcher.picture(id_), text, Path(id_).name) for id_, text in captions]
    )


curate = (choose, labels, twins, bursts, odd, map_)

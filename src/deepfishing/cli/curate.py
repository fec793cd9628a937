"""`deepfish curate`: put a collection in order, from what a store holds already."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from deepfishing.cli.arguments.curate import Bursts, Choose, Labels, Map, Odd, Twins
from deepfishing.cli.printing import (
    count_text,
    escape_controls,
    images_text,
    print_json,
    print_line,
    print_note,
)
from deepfishing.cli.progress import progress_bar
from deepfishing.curate.duplicates import find_bursts, find_twins
from deepfishing.curate.label_errors import doubtful_labels
from deepfishing.curate.map_page import make_map, write_map
from deepfishing.curate.neighbours import open_searcher
from deepfishing.curate.outliers import RECIPES, odd_photos
from deepfishing.curate.selection import (
    Pick,
    choose_photos,
    open_photos,
    read_labelled,
)
from deepfishing.errors import OptionError, check_choice
from deepfishing.images.same_picture import KINDS as COPIES
from deepfishing.images.same_picture import MIRRORED
from deepfishing.images.tables import labels_in
from deepfishing.search.hits import COLUMNS, PAPER, Tile, save_tiles
from deepfishing.util.files import TABLE_FORMATS, check_out, replacing, write_records

if TYPE_CHECKING:
    from deepfishing.curate.duplicates import Group, Photo
    from deepfishing.curate.label_errors import Doubt
    from deepfishing.search import Searcher

MAX_PRINTED_GROUPS = 10
MAX_DRAWN_GROUPS = 40
LIST, PAGE = ".txt", ".html"
COPIES_COLUMNS = (
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


def _check_out(out: Path | None, *kinds: str) -> None:
    """Refuse a file that cannot be made, or one whose labels would be lost, before any work."""

    check_out(out, kinds or TABLE_FORMATS)
    if out is not None and (n := labels_in(out)):
        raise OptionError(
            f"{out} has {n:,} {'label' if n == 1 else 'labels'} filled in, which would be lost; "
            "give --out another name"
        )


def run_choose(args: Choose) -> None:
    """Run `deepfish curate choose`."""
    _check_out(args.out)
    photos = open_photos(args.store, args.features)
    known = {} if args.labels is None else read_labelled(photos, args.labels)
    picks: list[Pick] = []
    try:
        with progress_bar(quiet=args.as_json) as bar:
            for pick in choose_photos(photos, args.n, labelled=known, progress=bar):
                picks.append(pick)
    finally:
        if picks:
            blank = [{**asdict(pick), "labels": None} for pick in picks]
            write_records(args.out, blank, ["path", "id", "labels", "gain"])
        if args.as_json:
            _say_document(args.store, photos, labelled=len(known), photos=picks)
        for pick in picks if not args.as_json else ():
            print_line(pick.path)
    _draw(
        args.sheet,
        photos,
        [(pick.id, str(number)) for number, pick in enumerate(picks, start=1)],
    )
    if not args.as_json:
        gain = 100 * sum(pick.gain for pick in picks)
        said = f"{len(picks)} of {images_text(len(photos.collection))} by {photos.recipe.title}"
        said += f"; they add {gain:.1f} % of coverage"
        if len(picks) < args.n:
            said += "; every other photo is labelled, or the same as one of them"
        print_note(said)


def run_labels(args: Labels) -> None:
    """Run `deepfish curate labels`."""
    _check_out(args.out)
    if args.n < 1:
        raise OptionError(f"-n must be at least 1 label, got {args.n}")
    photos = open_photos(args.store, args.features)
    with progress_bar(quiet=args.as_json) as bar:
        found, looked_at = doubtful_labels(photos, args.labels, progress=bar)
    shown = found[: args.n]
    columns = ["path", "id", "given", "suggested", "doubt"]
    write_records(args.out, [asdict(one) for one in shown], columns)
    _draw(args.sheet, photos, [(one.id, _change(one)) for one in shown])
    if args.as_json:
        _say_document(
            args.store, photos, photos=looked_at, doubtful=len(found), labels=shown
        )
        return
    for one in shown:
        print_line(f"{one.doubt:5.2f}  {_change(one)}  {one.path}")
    of = f"{images_text(looked_at)} by {photos.recipe.title}"
    more = f"; the first {args.n} are shown" if len(found) > args.n else ""
    print_note(f"{len(found):,} doubtful labels of {of}{more}")


def _change(doubt: Doubt) -> str:
    """Describe a doubt: given and suggested label, or the label to remove or to add."""
    given, to = set(doubt.given), set(doubt.suggested)
    if len(given) == len(to) == 1:
        return f"{doubt.given[0]} -> {doubt.suggested[0]}"
    return f"{'+' if to > given else '-'}{next(iter(to ^ given))}"


def run_twins(args: Twins) -> None:
    """Run `deepfish curate twins`."""
    wanted = [kind.strip() for kind in args.kinds.split(",")]
    if MIRRORED in wanted:
        raise OptionError(
            f"--kinds must be kinds that can be listed, got {MIRRORED!r}: pixels cannot tell which "
            "of two mirrored photos is the original; see --out all.csv or --sheet"
        )
    for kind in wanted:
        check_choice("--kinds", kind, COPIES)
    _check_out(args.out, *TABLE_FORMATS, LIST)
    as_list = args.out is not None and args.out.suffix.lower() == LIST
    with progress_bar(quiet=args.as_json) as bar:
        opened = [
            open_searcher(one, progress=bar, notice=print_note)
            for one in (args.store, args.against)
            if one is not None
        ]
        found = find_twins(*opened, progress=bar)
    removable = found.removable(wanted)
    end = "\0" if args.print0 else "\n"
    listed = [path for path in removable if args.print0 or "\n" not in path]
    text = "".join(path + end for path in listed)
    if args.out is not None and as_list:
        with replacing(args.out) as partial:
            partial.write_bytes(text.encode("utf-8", "surrogateescape"))
    else:
        groups = enumerate(found.groups, start=1)
        records = [
            _twin_record(p, g, number)
            for number, g in groups
            for p in (g.keep, *g.others)
        ]
        write_records(args.out, records, COPIES_COLUMNS)
    if args.sheet is not None and found.groups:
        draw_groups(args.sheet, found.groups[:MAX_DRAWN_GROUPS])
    if args.as_json:
        _say_document(args.store, opened[0], gone=found.gone, groups=found.groups)
        return
    for group in found.groups[:MAX_PRINTED_GROUPS]:
        print_note(f"keep {group.keep.path} ({group.why})")
        for photo in group.others:
            stays = "" if photo.can_go and photo.kind in wanted else ", not listed"
            said = f"{photo.kind}, {photo.width} x {photo.height}{stays}"
            print_note(f"     {photo.path} ({said})")
    if len(found.groups) > MAX_PRINTED_GROUPS:
        print_note(
            f"and {len(found.groups) - MAX_PRINTED_GROUPS:,} more groups, see --out or --sheet"
        )
    if not as_list:
        click.echo(escape_controls(text) if sys.stdout.isatty() else text, nl=False)
    photos = images_text(len(opened[0].collection))
    print_note(
        f"{count_text(len(found.groups), 'picture')} more than once among {photos}; "
        f"{count_text(len(listed), 'photo')} listed"
    )
    if hidden := len(removable) - len(listed):
        print_note(
            f"left out: {images_text(hidden)} with a line break in the name; take -0"
        )
    if found.gone:
        print_note(
            f"left out: {images_text(len(found.gone))} not found as extracted, first "
            f"{found.gone[0]}; bring {args.store} up to date with `deepfish extract --prune`"
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
    """Draw each group on its own rows, the photo to keep first."""
    from PIL import Image

    tiles: list[Tile] = []
    blank = Image.new("RGB", (1, 1), PAPER)
    for group in groups:
        photos = [(group.keep, f"keep: {group.why}")]
        photos += [(photo, photo.kind) for photo in group.others]
        tiles += [(Path(p.path), text, Path(p.path).name) for p, text in photos]
        tiles += [(blank, "", "")] * (-len(tiles) % COLUMNS)
    save_tiles(path, tiles)


def run_bursts(args: Bursts) -> None:
    """Run `deepfish curate bursts`."""
    with progress_bar(quiet=args.as_json) as bar:
        photos = open_searcher(args.store, progress=bar)
        found = find_bursts(photos, progress=bar)
    if args.as_json:
        _say_document(args.store, photos, bursts=found)
        return
    for number, burst in enumerate(found, start=1):
        for photo in burst.photos:
            print_line(f"{number}\t{photo.path}")
    of = images_text(len(photos.collection))
    print_note(f"{count_text(len(found), 'scene')} in several photos among {of}")


def run_odd(args: Odd) -> None:
    """Run `deepfish curate odd`."""
    _check_out(args.out)
    if args.n < 1:
        raise OptionError(f"-n must be at least 1 photo, got {args.n}")
    with progress_bar(quiet=args.as_json) as bar:
        photos = open_searcher(
            args.store, args.features, defaults=RECIPES, progress=bar
        )
        found = odd_photos(photos, args.score, progress=bar)
    write_records(args.out, [asdict(one) for one in found], ["path", "id", "score"])
    shown = found[: args.n]
    _draw(args.sheet, photos, [(one.id, f"{one.score:.3f}") for one in shown])
    if args.as_json:
        _say_document(args.store, photos, score=args.score, photos=shown)
        return
    for one in shown:
        print_line(one.path)
    by = f"{args.score} in {photos.recipe.title}" if args.score == "knn" else args.score
    print_note(f"the {len(shown)} oddest of {images_text(len(found))} by {by}")


def run_map(args: Map) -> None:
    """Run `deepfish curate map`."""
    _check_out(args.out, PAGE, *TABLE_FORMATS)
    with progress_bar(quiet=args.as_json) as bar:
        photos = open_searcher(args.store, args.features, progress=bar)
        found = make_map(photos, args.clusters, progress=bar)
    is_page = args.out.suffix.lower() == PAGE
    gone = 0
    if is_page:
        gone = write_map(args.out, found, photos)
    else:
        records = found.records(photos)
        write_records(args.out, records, ["path", "id", "x", "y", "group"])
    if args.as_json:
        _say_document(args.store, photos, out=str(args.out), groups=found.clusters)
        return
    for number, one in enumerate(found.clusters, start=1):
        print_line(f"{number:3} {one.photos:7,}  {one.name}")
    if gone:
        print_note(
            f"left out: {gone} typical photos are not where they were, or have changed"
        )
    if is_page:
        print_note(f"next: open {args.out} in a browser")


def _say_document(store: Path, searcher: Searcher, **facts: Any) -> None:
    """Print one JSON document; a sequence of dataclasses becomes a list of objects."""
    for name, value in facts.items():
        if isinstance(value, list | tuple):
            facts[name] = [
                one if isinstance(one, str) else asdict(one) for one in value
            ]
    print_json({"store": str(store), "by": searcher.recipe.name, **facts}, indent=1)


def _draw(
    sheet: Path | None, searcher: Searcher, captions: Iterable[tuple[str, str]]
) -> None:
    """Draw photos of the store, given by id, each with a caption above its name."""
    if sheet is None:
        return

    save_tiles(
        sheet, [(searcher.picture(id_), text, Path(id_).name) for id_, text in captions]
    )

"""`deepfish curate`: put a collection in order, from what a store holds already."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping, Sequence
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
    from deepfishing.curate.duplicates import Group
    from deepfishing.curate.label_errors import Doubt
    from deepfishing.search import Searcher

MAX_PRINTED_GROUPS = 10
MAX_DRAWN_GROUPS = 40
MANY_DOUBTS = 0.2  # share of labels, above which most doubts will be wrong
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
    if out is None:
        return
    n = labels_in(out)
    if n:
        raise OptionError(
            f"{out} has {count_text(n, 'label')} filled in, which would be lost; give --out "
            "another name"
        )


def run_choose(args: Choose) -> None:
    """Run `deepfish curate choose`."""
    _check_out(args.out)
    photos = open_photos(args.store, args.features)
    labelled: Mapping[str, Any] = {}
    if args.labels is not None:
        labelled = read_labelled(photos, args.labels)
    picks: list[Pick] = []
    try:
        with progress_bar(quiet=args.as_json) as bar:
            for pick in choose_photos(photos, args.n, labelled=labelled, progress=bar):
                picks.append(pick)
    finally:
        if picks:
            blank = [{**asdict(pick), "labels": None} for pick in picks]
            write_records(args.out, blank, ["path", "id", "labels", "gain"])
        if args.as_json:
            _print_document(args.store, photos, labelled=len(labelled), photos=picks)
        else:
            for pick in picks:
                print_line(pick.path)
    captions = [(pick.id, str(rank)) for rank, pick in enumerate(picks, start=1)]
    _draw(args.sheet, photos, captions)
    if not args.as_json:
        gain = 100 * sum(pick.gain for pick in picks)
        images = images_text(len(photos.collection))
        text = f"{len(picks)} of {images} by {photos.recipe.title}"
        text += f"; they add {gain:.1f} % of coverage"
        if len(picks) < args.n:
            text += "; every other photo is labelled, or the same as one of them"
        print_note(text)


def run_labels(args: Labels) -> None:
    """Run `deepfish curate labels`."""
    _check_out(args.out)
    if args.n < 1:
        raise OptionError(f"-n must be at least 1 label, got {args.n}")
    photos = open_photos(args.store, args.features)
    with progress_bar(quiet=args.as_json) as bar:
        doubts, checked = doubtful_labels(photos, args.labels, progress=bar)
    first = doubts[: args.n]
    columns = ["path", "id", "given", "suggested", "doubt"]
    write_records(args.out, [asdict(doubt) for doubt in first], columns)
    _draw(args.sheet, photos, [(doubt.id, _change(doubt)) for doubt in first])
    if args.as_json:
        _print_document(
            args.store, photos, photos=checked, doubtful=len(doubts), labels=first
        )
        return
    for doubt in first:
        print_line(f"{doubt.doubt:5.2f}  {_change(doubt)}  {doubt.path}")
    images = images_text(checked)
    text = f"{count_text(len(doubts), 'doubtful label')} of {images} by {photos.recipe.title}"
    if len(doubts) > args.n:
        text += f"; the first {args.n} are shown"
    print_note(text)
    if len(doubts) > MANY_DOUBTS * checked:
        print_note(
            "classifiers that are often wrong doubt often: look at each photo before you change "
            "its label"
        )


def _change(doubt: Doubt) -> str:
    """Describe a doubt: given and suggested label, or the label to remove or to add."""
    given, suggested = set(doubt.given), set(doubt.suggested)
    if len(given) == len(suggested) == 1:
        return f"{doubt.given[0]} -> {doubt.suggested[0]}"
    (label,) = list(suggested ^ given)[:1]
    if suggested > given:
        return f"+{label}"
    return f"-{label}"


def run_twins(args: Twins) -> None:
    """Run `deepfish curate twins`."""
    kinds = _parse_kinds(args.kinds)
    _check_out(args.out, *TABLE_FORMATS, LIST)
    stores = [args.store]
    if args.against is not None:
        stores.append(args.against)
    with progress_bar(quiet=args.as_json) as bar:
        searchers = [
            open_searcher(store, progress=bar, notice=print_note) for store in stores
        ]
        twins = find_twins(*searchers, progress=bar)
    removable = twins.removable(kinds)
    end, listed = "\0", removable
    if not args.print0:
        end = "\n"
        listed = [path for path in removable if "\n" not in path]
    paths = "".join(path + end for path in listed)
    is_list = args.out is not None and args.out.suffix.lower() == LIST
    if args.out is not None and is_list:
        with replacing(args.out) as partial:
            partial.write_bytes(paths.encode("utf-8", "surrogateescape"))
    else:
        write_records(args.out, _copies_records(twins.groups), COPIES_COLUMNS)
    if args.sheet is not None and twins.groups:
        draw_groups(args.sheet, twins.groups[:MAX_DRAWN_GROUPS])
    if args.as_json:
        facts = {"gone": twins.gone, "groups": twins.groups}
        _print_document(args.store, searchers[0], **facts)
        return
    _print_groups(twins.groups, kinds)
    if not is_list:
        if sys.stdout.isatty():
            paths = escape_controls(paths)
        click.echo(paths, nl=False)
    photos = images_text(len(searchers[0].collection))
    print_note(
        f"{count_text(len(twins.groups), 'picture')} more than once among {photos}; "
        f"{count_text(len(listed), 'photo')} listed"
    )
    left_out = len(removable) - len(listed)
    if left_out:
        print_note(
            f"left out: {images_text(left_out)} with a line break in the name; take -0"
        )
    if twins.gone:
        do = f"bring {args.store} up to date with `deepfish extract --prune`"
        if searchers[0].store.settings.get("weights_sha256") == "":  # imported
            do = "copies are compared by their files: `deepfish import --paths` names them"
        print_note(
            f"left out: {images_text(len(twins.gone))} not found as extracted, first "
            f"{twins.gone[0]}; {do}"
        )


def _parse_kinds(text: str) -> list[str]:
    """Read the kinds of copies to list; refuse mirrored ones and unknown ones."""
    kinds = [kind.strip() for kind in text.split(",")]
    if MIRRORED in kinds:
        raise OptionError(
            f"--kinds must be kinds that can be listed, got {MIRRORED!r}: pixels cannot tell which "
            "of two mirrored photos is the original; see --out all.csv or --sheet"
        )
    for kind in kinds:
        check_choice("--kinds", kind, COPIES)
    return kinds


def _print_groups(groups: Sequence[Group], kinds: Sequence[str]) -> None:
    """Print the first groups of copies, on stderr."""
    for group in groups[:MAX_PRINTED_GROUPS]:
        print_note(f"keep {group.keep.path} ({group.why})")
        for photo in group.others:
            facts = f"{photo.kind}, {photo.width} x {photo.height}"
            if not photo.can_go or photo.kind not in kinds:
                facts += ", not listed"
            print_note(f"     {photo.path} ({facts})")
    hidden = len(groups) - MAX_PRINTED_GROUPS
    if hidden > 0:
        print_note(f"and {hidden:,} more groups, see --out or --sheet")


def _copies_records(groups: Sequence[Group]) -> list[dict[str, object]]:
    """Return a record for each photo of each group, the photo to keep first."""
    records = []
    for number, group in enumerate(groups, start=1):
        about = {"group": number, "keep": True, "why": group.why}
        records.append({**asdict(group.keep), **about})
        for photo in group.others:
            records.append({**asdict(photo), "group": number, "keep": False, "why": ""})
    return records


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
        bursts = find_bursts(photos, progress=bar)
    if args.as_json:
        _print_document(args.store, photos, bursts=bursts)
        return
    for number, burst in enumerate(bursts, start=1):
        for photo in burst.photos:
            print_line(f"{number}\t{photo.path}")
    images = images_text(len(photos.collection))
    print_note(f"{count_text(len(bursts), 'scene')} in several photos among {images}")


def run_odd(args: Odd) -> None:
    """Run `deepfish curate odd`."""
    _check_out(args.out)
    if args.n < 1:
        raise OptionError(f"-n must be at least 1 photo, got {args.n}")
    with progress_bar(quiet=args.as_json) as bar:
        photos = open_searcher(
            args.store, args.features, defaults=RECIPES, progress=bar
        )
        ranking = odd_photos(photos, args.score, progress=bar)
    write_records(args.out, [asdict(odd) for odd in ranking], ["path", "id", "score"])
    oddest = ranking[: args.n]
    _draw(args.sheet, photos, [(odd.id, f"{odd.score:.3f}") for odd in oddest])
    if args.as_json:
        _print_document(args.store, photos, score=args.score, photos=oddest)
        return
    for odd in oddest:
        print_line(odd.path)
    score = args.score
    if score == "knn":
        score = f"knn in {photos.recipe.title}"
    print_note(f"the {len(oddest)} oddest of {images_text(len(ranking))} by {score}")


def run_map(args: Map) -> None:
    """Run `deepfish curate map`."""
    _check_out(args.out, PAGE, *TABLE_FORMATS)
    with progress_bar(quiet=args.as_json) as bar:
        photos = open_searcher(args.store, args.features, progress=bar)
        photo_map = make_map(photos, args.clusters, progress=bar)
    is_page = args.out.suffix.lower() == PAGE
    missing = 0
    if is_page:
        missing = write_map(args.out, photo_map, photos)
    else:
        records = photo_map.records(photos)
        write_records(args.out, records, ["path", "id", "x", "y", "group"])
    clusters = photo_map.clusters
    if args.as_json:
        _print_document(args.store, photos, out=str(args.out), groups=clusters)
        return
    for number, cluster in enumerate(clusters, start=1):
        print_line(f"{number:3} {cluster.photos:7,}  {cluster.name}")
    if missing:
        print_note(
            f"left out: {missing} typical photos are not where they were, or have changed"
        )
    if is_page:
        print_note(f"next: open {args.out} in a browser")


def _print_document(store: Path, searcher: Searcher, **facts: Any) -> None:
    """Print one JSON document; a sequence of dataclasses becomes a list of objects."""
    document: dict[str, Any] = {"store": str(store), "by": searcher.recipe.name}
    for name, value in facts.items():
        if isinstance(value, list | tuple):
            value = [_json_value(item) for item in value]
        document[name] = value
    print_json(document, indent=1)


def _json_value(item: Any) -> Any:
    if isinstance(item, str):
        return item
    return asdict(item)


def _draw(
    sheet: Path | None, searcher: Searcher, captions: Iterable[tuple[str, str]]
) -> None:
    """Draw photos of the store, given by id, each with a caption above its name."""
    if sheet is None:
        return
    tiles: list[Tile] = []
    for id_, text in captions:
        tiles.append((searcher.picture(id_), text, Path(id_).name))
    save_tiles(sheet, tiles)

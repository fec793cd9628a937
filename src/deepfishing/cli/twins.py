"""`deepfish curate twins`: photos that are one picture, and which of them to keep."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from deepfishing.cli.curate_options import AsJson, Features, Sheet
from deepfishing.cli.say import images_text, say, spelled
from deepfishing.cli.store import StoreFolder

if TYPE_CHECKING:
    from deepfishing.curate.twins import Group, Photo, Twins

SHOWN = 10  # groups that are told one by one
DRAWN = 40  # groups on a sheet
LIST = ".txt"


def twins(
    store: StoreFolder,
    against: Annotated[
        Path | None,
        typer.Option(help="Another store: find photos of STORE that are in this one, too."),
    ] = None,
    features: Features = None,
    least: Annotated[
        float, typer.Option(help="Agreement of pixels, up to 1, from which two are one picture.")
    ] = 0.75,
    out: Annotated[
        Path | None,
        typer.Option(help="Write the paths here, .txt, or all groups as a table, .csv or .json."),
    ] = None,
    print0: Annotated[
        bool, typer.Option("--print0", "-0", help="End paths with a zero byte, for xargs -0.")
    ] = False,
    sheet: Sheet = None,
    as_json: AsJson = False,
) -> None:
    """Find photos that are one picture: the same content, re-encoded, smaller, cropped, mirrored.

    Example: deepfish curate twins store --out twice.txt

    Prints the paths of those that may go: all but one of each picture, the one with the most
    pixels, then the largest file, then the oldest. Nothing is deleted. To do so yourself, look at
    --sheet first, then: deepfish curate twins store -0 | xargs -0 rm --
    """
    from deepfishing.cli.progress import progress_bar
    from deepfishing.curate.neighbours import open_searcher
    from deepfishing.curate.records import KINDS, check_out, write_records
    from deepfishing.curate.twins import find_twins
    from deepfishing.files import replacing
    from deepfishing.store import Store

    check_out(out, (*KINDS, LIST))
    as_list = out is not None and out.suffix.lower() == LIST
    with progress_bar(quiet=as_json) as bar:
        opened = [
            open_searcher(Store.open(one), features, progress=bar, notice=_notice)
            for one in (store, against)
            if one is not None
        ]
        found = find_twins(*opened, least=least, progress=bar)
    end = "\0" if print0 else "\n"
    listed = [path for path in found.removable() if print0 or "\n" not in path]
    text = "".join(path + end for path in listed)
    if out is not None and as_list:
        with replacing(out) as partial:
            partial.write_bytes(text.encode("utf-8", "surrogateescape"))
    elif out is not None:
        write_records(out, list(_records(found)), _COLUMNS)
    if sheet is not None and found.groups:
        draw_groups(sheet, found.groups[:DRAWN])
    if as_json:
        document = {"store": str(store), "by": opened[0].recipe.name, "gone": found.gone}
        say(json.dumps({**document, "groups": [asdict(group) for group in found.groups]}, indent=1))
        return
    for group in found.groups[:SHOWN]:
        say(f"keep {group.keep.path} ({group.why})", err=True)
        for photo in group.others:
            say(f"     {photo.path} ({_relation(photo)})", err=True)
    if len(found.groups) > SHOWN:
        say(f"and {len(found.groups) - SHOWN:,} more groups, see --out or --sheet", err=True)
    if not as_list:
        typer.echo(spelled(text) if sys.stdout.isatty() else text, nl=False)
    said = f"{len(found.groups):,} pictures more than once among "
    said += f"{images_text(len(opened[0].collection))}; {len(listed):,} photos may go"
    say(said, err=True)
    if hidden := len(found.removable()) - len(listed):
        say(f"left out: {images_text(hidden)} with a line break in the name; take -0", err=True)
    if found.gone:
        say(
            f"left out: {images_text(len(found.gone))} not found as extracted, first "
            f"{found.gone[0]}; bring {store} up to date with `deepfish extract --prune`",
            err=True,
        )


_COLUMNS = ("group", "keep", "path", "id", "store", "why", "width", "height", "bytes", "agreement")


def _records(found: Twins) -> list[dict[str, object]]:
    records: list[dict[str, object]] = []
    for number, group in enumerate(found.groups, start=1):
        for photo in (group.keep, *group.others):
            why = group.why if photo is group.keep else photo.relation
            facts = {"group": number, "keep": photo is group.keep, "why": why}
            records.append({**asdict(photo), **facts})
    return records


def _relation(photo: Photo) -> str:
    size = f"{photo.width} x {photo.height}"
    stays = "" if photo.can_go else ", stays"
    return f"{photo.relation}, {size}, agreement {photo.agreement:.2f}{stays}"


def draw_groups(path: Path, groups: tuple[Group, ...]) -> None:
    """Each group on rows of its own, the photo to keep first."""
    from PIL import Image

    from deepfishing.search.sheet import COLUMNS, PAPER, Tile, save_tiles

    tiles: list[Tile] = []
    blank = Image.new("RGB", (1, 1), PAPER)
    for group in groups:
        photos = [(group.keep, f"keep: {group.why}")]
        photos += [(photo, f"{photo.relation}, {photo.agreement:.2f}") for photo in group.others]
        tiles += [(Path(p.path), text, Path(p.path).name) for p, text in photos]
        tiles += [(blank, "", "")] * (-len(tiles) % COLUMNS)
    save_tiles(path, tiles)


def _notice(line: str) -> None:
    say(line, err=True)

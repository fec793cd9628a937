"""`deepfish store`: what a store holds, whether it is sound, and a smaller copy of it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from deepfishing.cli.parameters import Json, StoreFolder
from deepfishing.cli.progress import progress_bar
from deepfishing.cli.say import say, say_json, say_left_out, say_note, size_text

store_app = typer.Typer(no_args_is_help=True)


@store_app.command()
def info(store: StoreFolder, as_json: Json = False) -> None:
    """Show what is inside: settings, images, factors, sizes, failures.

    Example: deepfish store info store
    """
    from deepfishing.store import Store
    from deepfishing.store.check import info as facts_of

    facts = facts_of(Store.open(store))
    if as_json:
        say_json(facts, indent=1)
        return
    counts = f"{facts['ok']} ok, {facts['error']} unusable"
    counts += f", {facts['pending']} to do" if facts["pending"] else ""
    lines = {
        "store": facts["store"],
        "made": f"{facts['created']} by deepfishing {facts['version']}",
        "images": f"{facts['images']} ({counts}), {facts['contents']} different",
        "labels": facts["labels"] or "none",
        "size": f"{size_text(facts['bytes'])}, {size_text(facts['bytes_per_image'])} per image",
        **{name: _short(value) for name, value in facts["settings"].items() if value != ""},
    }
    for name, value in lines.items():
        say(f"{name:<15} {value}")
    say("\nfactor            shape  contents  per image")
    for name, factor in facts["factors"].items():
        shape = "x".join(map(str, factor["shape"]))
        size = size_text(factor["bytes_per_image"])
        say(f"{name:<14} {shape:>8} {factor['contents']:>9} {size:>10}")
    say_left_out(facts["failures"].values(), ", see --json", word="unusable", err=False)


@store_app.command()
def verify(store: StoreFolder, as_json: Json = False) -> None:
    """Check every file: checksum, columns, values, keys; exit with 1 and name the bad ones.

    Example: deepfish store verify store
    """
    from deepfishing.store import Store
    from deepfishing.store.check import verify as problems_of

    problems = problems_of(Store.open(store))
    if as_json:
        say_json({"store": str(store), "sound": not problems, "problems": problems})
    elif not problems:
        say(f"{store}: sound")
    for problem in problems if not as_json else ():
        say_note(f"deepfish: {problem}")
    if problems:
        raise typer.Exit(1)


@store_app.command()
def compress(
    store: StoreFolder,
    out: Annotated[Path, "Folder for the copy; made if absent."],
    precision: Annotated[str, "Numbers on disk: int8, int4, float16 or float32."] = "int8",
    as_json: Json = False,
) -> None:
    """Write a smaller copy of a store, which every command takes as it takes the store itself.

    Example: deepfish store compress store small --precision int4

    Run again, it takes what is new in the store.
    """
    from deepfishing.store import Store
    from deepfishing.store.check import info as facts_of
    from deepfishing.store.export import compress as copy_smaller

    source = Store.open(store)
    with progress_bar(quiet=as_json) as bar:
        copy = copy_smaller(source, out, precision, bar)
    before, after = facts_of(source), facts_of(copy)
    sizes = [facts["bytes_per_image"] for facts in (after, before)]
    if as_json:
        facts = {"store": str(out), "precision": copy.precision, "images": after["images"]}
        say_json({**facts, "bytes_per_image": sizes[0], "bytes_per_image_before": sizes[1]})
    else:
        small, large = map(size_text, sizes)
        say(f"{out}: {after['images']} images, {small} per image instead of {large}")


def _short(value: Any) -> str:
    text = value if isinstance(value, str) else json.dumps(value)
    return text if len(text) <= 62 else f"{text[:59]}..."

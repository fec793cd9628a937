"""`deepfish store`: what a store holds, and whether it is sound."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer

SHOWN = 20

store_app = typer.Typer(no_args_is_help=True, help="Look into a store of features, or check it.")

StoreFolder = Annotated[Path, typer.Argument(help="Folder that `deepfish extract` made.")]


@store_app.command()
def info(
    store: StoreFolder,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON, nothing else.")] = False,
) -> None:
    """Show what is inside: settings, images, factors, sizes, failures.

    Example: deepfish store info store
    """
    from deepfishing.store import Store
    from deepfishing.store.check import info as facts_of

    facts = facts_of(Store.open(store))
    if as_json:
        typer.echo(json.dumps(facts, indent=1))
        return
    settings = facts["settings"]
    made = f"{facts['created']} by deepfishing {facts['version']}"
    counts = f"{facts['ok']} ok, {facts['error']} unusable"
    counts += f", {facts['pending']} to do" if facts["pending"] else ""
    lines = {
        "store": facts["store"],
        "made": made,
        "images": f"{facts['images']} ({counts}), {facts['contents']} different",
        "labels": facts["labels"] or "none",
        "size": f"{_size(facts['bytes'])}, {_size(facts['bytes_per_image'])} per image",
        **{name: _short(value) for name, value in settings.items()},
    }
    for name, value in lines.items():
        typer.echo(f"{name:<15} {value}")
    typer.echo("\nfactor            shape  contents  per image")
    for name, factor in facts["factors"].items():
        shape = "x".join(map(str, factor["shape"]))
        size = _size(factor["bytes_per_image"])
        typer.echo(f"{name:<14} {shape:>8} {factor['contents']:>9} {size:>10}")
    for number, reason in enumerate(facts["failures"].values()):
        if number == SHOWN:
            typer.echo(f"unusable: {len(facts['failures']) - SHOWN} more, see --json")
            break
        typer.echo(f"unusable: {reason}")


@store_app.command()
def verify(
    store: StoreFolder,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON, nothing else.")] = False,
) -> None:
    """Check every file: checksum, columns, values, keys; exit with 1 and name the bad ones.

    Example: deepfish store verify store
    """
    from deepfishing.store import Store
    from deepfishing.store.check import verify as problems_of

    problems = problems_of(Store.open(store))
    if as_json:
        typer.echo(json.dumps({"store": str(store), "sound": not problems, "problems": problems}))
    elif problems:
        for problem in problems:
            typer.echo(f"deepfish: {problem}", err=True)
    else:
        typer.echo(f"{store}: sound")
    if problems:
        raise typer.Exit(1)


def _short(value: Any) -> str:
    text = value if isinstance(value, str) else json.dumps(value)
    return text if len(text) <= 62 else f"{text[:59]}..."


def _size(n: float) -> str:
    """Bytes for people.

    Examples
    --------
    >>> _size(999), _size(12_345_678)
    ('999 B', '12.3 MB')
    """
    for unit in ("B", "kB", "MB", "GB"):
        if n < 1000:
            return f"{n:.0f} B" if unit == "B" else f"{n:.1f} {unit}"
        n /= 1000
    return f"{n:.1f} TB"

"""`deepfish search`: the images of a store that are like others, and why."""

from __future__ import annotations

import sys
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from deepfishing.cli import say
from deepfishing.cli.command import MORE, WORK, Fields, Json, MovedWeights, StoreFolder
from deepfishing.errors import OptionError
from deepfishing.extraction.options import Resources
from deepfishing.util.files import SEPARATOR

if TYPE_CHECKING:
    from deepfishing.search import Hit, Searcher
    from deepfishing.search.searcher import Example


def search(
    store: StoreFolder,
    query: Annotated[
        str | None,
        typer.Argument(
            help="An id of the store, an image file, or - for the bytes of one on standard input; "
            "with a network that reads texts, words such as 'a red bicycle'."
        ),
    ] = None,
    *,
    k: Annotated[int, "How many images to find."] = 10,
    by: Annotated[
        str | None, "A recipe, such as dW8 or pow(dW8,0.5)+x7. [default: by the store]"
    ] = None,
    like: Annotated[
        list[str] | None, "One more example, an id or a file; may be repeated."
    ] = None,
    unlike: Annotated[list[str] | None, "A negative example, likewise."] = None,
    label: Annotated[
        list[str] | None, "Only images with this label; may be repeated."
    ] = None,
    path: Annotated[
        str | None, "Only images whose path or id is like '*/dogs/*'."
    ] = None,
    exact: Annotated[
        bool | None,
        typer.Option(
            "--exact/--index",
            help="Compare all images, or the candidates of an index kept beside the store. "
            "[default: exact up to 100,000 images]",
            show_default=False,
            rich_help_panel=MORE,
        ),
    ] = None,
    sheet: Annotated[
        Path | None, "Also draw query and hits into this .png or .jpg."
    ] = None,
    class_names: Annotated[
        Path | None, "Names of the network's classes, a line each.", MORE
    ] = None,
    weights: MovedWeights = None,
    resources: Annotated[Resources, Fields(WORK, only=("device",))],
    as_json: Json = False,
) -> None:
    """Find the images of a store that are like others or fit words, and say why.

    Example: deepfish search store holiday.jpg -k 5 --by dW8

    A QUERY with a slash or the suffix of an image is always a file. Other words are read by the
    text tower of CLIP, SigLIP and the like, if the store was made with one of them.

    The score is the similarity by the recipe; forward is how much two images look alike, backward
    how much they mean alike: the score of a gradient is their product. Classes are those that most
    of the backward similarity comes from. A quarter of the similarity to --unlike is taken away.
    On a pipe the columns are complete, with tabs between them.
    """
    named = [*([query] if query is not None else []), *(like or [])]
    if not named:
        raise OptionError(
            "a search needs a QUERY or --like, got neither; name an id or a file"
        )

    # loaded when the command runs, so that help and completion are quick
    from deepfishing.search import Searcher
    from deepfishing.search.words import WORDS_FEATURE, Words

    method = {None: "auto", True: "exact", False: "index"}[exact]
    examples: list[Example] = [
        sys.stdin.buffer.read() if n == "-" else n for n in named
    ]
    if b"" in examples:
        raise OptionError(
            "- must have the bytes of an image on standard input, got none"
        )
    negative = list(unlike or [])
    with say.progress_bar(quiet=as_json) as bar:

        def open_searcher(recipe: str | None) -> Searcher:
            return Searcher(
                store,
                recipe,
                method,
                weights=weights,
                device=resources.device,
                class_names=class_names,
                progress=bar,
                notice=say.note,
            )

        searcher = open_searcher(by)
        if by is None and any(
            isinstance(searcher.read(one), Words) for one in examples
        ):
            searcher = open_searcher(WORDS_FEATURE)
    hits = searcher.search(examples, k, negative, label or (), path)
    if sheet is not None:
        # loaded when the command runs, so that help and completion are quick
        from deepfishing.search.hits import save_tiles

        tiles = [(searcher.picture(example), "query", "") for example in examples]
        tiles += [
            (searcher.picture(hit.id), f"{hit.score:.3f}", hit.caption) for hit in hits
        ]
        save_tiles(sheet, tiles)
    if as_json:
        document = {
            "store": str(searcher.store.folder),
            "by": searcher.recipe.name,
            "method": "exact" if searcher.index is None else "index",
            "images": len(searcher.collection),
            "like": named,
            "unlike": negative,
            "hits": [asdict(hit) for hit in hits],
        }
        say.json(document, indent=1)
    else:
        how = "exactly" if searcher.index is None else "by index"
        found = f"{len(hits)} of {say.images_text(len(searcher.collection))}"
        is_terminal = sys.stdout.isatty()
        say.line(f"{found} by {searcher.recipe.title}, {how}", err=not is_terminal)
        if is_terminal:
            _show(hits)
        else:
            _print_rows(hits)
        say.what_next(("deepfish", "serve", store))


def _print_rows(hits: list[Hit]) -> None:
    """Print all of the hits for a program: a row of names, then a row per hit."""
    say.cells(("score", "forward", "backward", "image", "path", "labels", "classes"))
    for hit in hits:
        numbers = (hit.score, hit.forward, hit.backward)
        scores = ["" if number is None else f"{number:.6f}" for number in numbers]
        labels = SEPARATOR.join(hit.labels or ())
        classes = SEPARATOR.join(f"{c.name} {c.term:.4f}" for c in hit.classes)
        say.cells((*scores, hit.id, hit.path, labels, classes))


def _show(hits: list[Hit]) -> None:
    """Draw a table that fits the terminal; long names are cut."""
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    console = Console()
    table = Table(box=None, pad_edge=False)
    widths = {"score": 5, "forward": 7, "backward": 8, "image": 22, "labels": 12}
    cells: dict[str, list[str]] = {name: [] for name in (*widths, "classes")}
    for hit in hits:
        for name in ("score", "forward", "backward"):
            number = getattr(hit, name)
            cells[name].append("" if number is None else f"{number:.3f}")
        # tells more than the beginning
        end = hit.id if len(hit.id) <= 22 else f"…{hit.id[-21:]}"
        cells["image"].append(end)
        cells["labels"].append(", ".join(hit.labels or ()))
        cells["classes"].append(
            ", ".join(f"{c.name} {c.term:.2f}" for c in hit.classes[:2])
        )
    cells = {name: column for name, column in cells.items() if any(column)}
    widths = {name: width for name, width in widths.items() if name in cells}
    # two blanks between columns
    rest = console.width - sum(widths.values()) - 2 * len(widths)
    for name in cells:
        side: Any = "right" if name in ("score", "forward", "backward") else "left"
        width = widths.get(name, max(rest, 12))
        table.add_column(
            name, justify=side, width=width, no_wrap=True, overflow="ellipsis"
        )
    for row in zip(*cells.values(), strict=True):
        table.add_row(*map(escape, row))
    console.print(say.Spelled(table), highlight=False)

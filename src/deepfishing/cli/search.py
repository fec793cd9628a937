"""`deepfish search`: the images of a store that are like others, and why."""

from __future__ import annotations

import sys
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from deepfishing.cli.arguments.search import Search
from deepfishing.cli.printing import (
    images_text,
    print_cells,
    print_json,
    print_line,
    print_next,
    print_note,
)
from deepfishing.cli.progress import progress_bar
from deepfishing.cli.summaries import Escaped
from deepfishing.errors import OptionError
from deepfishing.extraction.options import Resources
from deepfishing.search import Searcher
from deepfishing.search.hits import save_tiles
from deepfishing.search.words import WORDS_FEATURE, Words
from deepfishing.util.files import SEPARATOR

if TYPE_CHECKING:
    from deepfishing.search import Hit, Searcher
    from deepfishing.search.searcher import Example


def run_search(args: Search) -> None:
    """Run `deepfish search`."""
    named = [*([args.query] if args.query is not None else []), *args.like]
    if not named:
        raise OptionError(
            "a search needs a QUERY or --like, got neither; name an id or a file"
        )

    if args.n < 1:
        raise OptionError(f"-n must be at least 1, got {args.n}")
    method = {None: "auto", True: "exact", False: "index"}[args.exact]
    examples: list[Example] = [
        sys.stdin.buffer.read() if n == "-" else n for n in named
    ]
    if b"" in examples:
        raise OptionError(
            "- must have the bytes of an image on standard input, got none"
        )
    negative = list(args.unlike)
    with progress_bar(quiet=args.as_json) as bar:

        def open_searcher(recipe: str | None) -> Searcher:
            return Searcher(
                args.store,
                recipe,
                method,
                weights=args.weights,
                device=Resources().device,
                progress=bar,
                notice=print_note,
            )

        searcher = open_searcher(args.features)
        if args.features is None and any(
            isinstance(searcher.read(one), Words) for one in examples
        ):
            searcher = open_searcher(WORDS_FEATURE)
    hits = searcher.search(examples, args.n, negative, args.label, args.path)
    if args.sheet is not None:
        tiles = [(searcher.picture(example), "query", "") for example in examples]
        tiles += [
            (searcher.picture(hit.id), f"{hit.score:.3f}", hit.caption) for hit in hits
        ]
        save_tiles(args.sheet, tiles)
    if args.as_json:
        document = {
            "store": str(searcher.store.folder),
            "by": searcher.recipe.name,
            "method": "exact" if searcher.index is None else "index",
            "images": len(searcher.collection),
            "like": named,
            "unlike": negative,
            "hits": [asdict(hit) for hit in hits],
        }
        print_json(document, indent=1)
    else:
        how = "exactly" if searcher.index is None else "by index"
        found = f"{len(hits)} of {images_text(len(searcher.collection))}"
        is_terminal = sys.stdout.isatty()
        print_line(f"{found} by {searcher.recipe.title}, {how}", err=not is_terminal)
        if is_terminal:
            _show(hits)
        else:
            _print_rows(hits)
        print_next(("deepfish", "serve", args.store))


def _print_rows(hits: list[Hit]) -> None:
    """Print all of the hits for a program: a row of names, then a row per hit."""
    print_cells(("score", "forward", "backward", "image", "path", "labels", "classes"))
    for hit in hits:
        numbers = (hit.score, hit.forward, hit.backward)
        scores = ["" if number is None else f"{number:.6f}" for number in numbers]
        labels = SEPARATOR.join(hit.labels or ())
        classes = SEPARATOR.join(f"{c.name} {c.term:.4f}" for c in hit.classes)
        print_cells((*scores, hit.id, hit.path, labels, classes))


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
    console.print(Escaped(table), highlight=False)

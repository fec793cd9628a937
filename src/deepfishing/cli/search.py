"""`deepfish search`: the images of a store that are like others, and why."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING

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


NUMBERS = ("score", "forward", "backward")  # columns of numbers


def run_search(args: Search) -> None:
    """Run `deepfish search`."""
    queries = list(args.like)
    if args.query is not None:
        queries.insert(0, args.query)
    if not queries:
        raise OptionError(
            "a search needs a QUERY or --like, got neither; name an id or a file"
        )

    if args.n < 1:
        raise OptionError(f"-n must be at least 1, got {args.n}")
    examples = _read_examples(queries)
    negative = list(args.unlike)
    searcher = _open_searcher(args, examples)
    hits = searcher.search(examples, args.n, negative, args.label, args.path)
    if args.sheet is not None:
        tiles = [(searcher.picture(example), "query", "") for example in examples]
        for hit in hits:
            tiles.append((searcher.picture(hit.id), f"{hit.score:.3f}", hit.caption))
        save_tiles(args.sheet, tiles)
    method, how = "index", "by index"
    if searcher.index is None:
        method, how = "exact", "exactly"
    if args.as_json:
        document = {
            "store": str(searcher.store.folder),
            "by": searcher.recipe.name,
            "method": method,
            "images": len(searcher.collection),
            "like": queries,
            "unlike": negative,
            "hits": [asdict(hit) for hit in hits],
        }
        print_json(document, indent=1)
    else:
        number = f"{len(hits)} of {images_text(len(searcher.collection))}"
        is_terminal = sys.stdout.isatty()
        print_line(f"{number} by {searcher.recipe.title}, {how}", err=not is_terminal)
        if is_terminal:
            _print_table(hits)
        else:
            _print_rows(hits)
        print_next(("deepfish", "serve", args.store))


def _read_examples(queries: Sequence[str]) -> list[Example]:
    """Return ids, files and words; `-` is the bytes of an image on standard input."""
    examples: list[Example] = []
    for query in queries:
        if query == "-":
            examples.append(sys.stdin.buffer.read())
        else:
            examples.append(query)
    if b"" in examples:
        raise OptionError(
            "- must have the bytes of an image on standard input, got none"
        )
    return examples


def _open_searcher(args: Search, examples: Sequence[Example]) -> Searcher:
    """Open a store; words are compared with the embedding unless a recipe is given."""
    method = {None: "auto", True: "exact", False: "index"}[args.exact]
    with progress_bar(quiet=args.as_json) as bar:

        def open_with(recipe: str | None) -> Searcher:
            return Searcher(
                args.store,
                recipe,
                method,
                weights=args.weights,
                device=Resources().device,
                progress=bar,
                notice=print_note,
            )

        searcher = open_with(args.features)
        if args.features is None:
            read = [searcher.read(example) for example in examples]
            if any(isinstance(example, Words) for example in read):
                searcher = open_with(WORDS_FEATURE)
        return searcher


def _print_rows(hits: list[Hit]) -> None:
    """Print all of the hits for a program: a row of names, then a row per hit."""
    print_cells(("score", "forward", "backward", "image", "path", "labels", "classes"))
    for hit in hits:
        numbers = (hit.score, hit.forward, hit.backward)
        scores = [_figure_text(number, 6) for number in numbers]
        labels = SEPARATOR.join(hit.labels or ())
        classes = SEPARATOR.join(f"{c.name} {c.term:.4f}" for c in hit.classes)
        print_cells((*scores, hit.id, hit.path, labels, classes))


def _figure_text(number: float | None, digits: int) -> str:
    if number is None:
        return ""
    return f"{number:.{digits}f}"


def _print_table(hits: list[Hit]) -> None:
    """Draw a table that fits the terminal; long names are cut."""
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    console = Console()
    table = Table(box=None, pad_edge=False)
    widths = {"score": 5, "forward": 7, "backward": 8, "image": 22, "labels": 12}
    cells: dict[str, list[str]] = {name: [] for name in (*widths, "classes")}
    for hit in hits:
        for name in NUMBERS:
            cells[name].append(_figure_text(getattr(hit, name), 3))
        id_ = hit.id
        if len(id_) > 22:
            id_ = f"…{id_[-21:]}"  # the end differs more than the beginning
        cells["image"].append(id_)
        cells["labels"].append(", ".join(hit.labels or ()))
        classes = [f"{c.name} {c.term:.2f}" for c in hit.classes[:2]]
        cells["classes"].append(", ".join(classes))
    cells = {name: column for name, column in cells.items() if any(column)}
    widths = {name: width for name, width in widths.items() if name in cells}
    # two blanks between columns
    remaining = console.width - sum(widths.values()) - 2 * len(widths)
    for name in cells:
        width = widths.get(name, max(remaining, 12))
        table.add_column(name, width=width, no_wrap=True, overflow="ellipsis")
        if name in NUMBERS:
            table.columns[-1].justify = "right"
    for row in zip(*cells.values(), strict=True):
        table.add_row(*map(escape, row))
    console.print(Escaped(table), highlight=False)

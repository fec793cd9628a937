"""Peers, the page: tables of Markdown, and their place in benchmarks/PEERS.md.

The measured text of a section replaces what is between its two marks; the prose around the marks
is written by hand and is kept.
"""

from __future__ import annotations

import ast
import inspect
import io
import statistics
import textwrap
import tokenize
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

PAGE = Path(__file__).parents[1] / "PEERS.md"


def table(columns: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    """A table of Markdown; every row must have a cell for each column."""
    if wrong := [row for row in rows if len(row) != len(columns)]:
        raise ValueError(f"rows must have {len(columns)} cells, got {wrong[0]}")
    lines = [columns, ["---"] * len(columns), *rows]
    return "".join(f"| {' | '.join(map(_cell, line))} |\n" for line in lines)


def _cell(value: object) -> str:
    return " ".join(str(value).split()).replace("|", "\\|")


def spread(values: Sequence[float]) -> str:
    """Median of the repetitions, with the lowest and the highest."""
    return interval(statistics.median(values), min(values), max(values))


def interval(middle: float, low: float, high: float) -> str:
    return f"{number(middle)} ({number(low)} to {number(high)})"


def number(value: float) -> str:
    """Three digits that count, and no fewer than the whole part has."""
    if value != 0 and abs(value) < 0.001:
        return f"{value:.1e}"
    digits = (
        0
        if abs(value) >= 100
        else 1
        if abs(value) >= 10
        else 2
        if abs(value) >= 1
        else 3
    )
    return f"{value:,.{digits}f}"


def megabytes(value: float) -> str:
    return f"{value / 1e6:,.0f} MB" if abs(value) >= 1e7 else f"{value / 1e6:.1f} MB"


def lines_of(*functions: Callable[..., Any]) -> int:
    """Lines that a user has to write: those of the bodies, blank lines, comments, docstrings not.

    The very functions are run, so what is counted works; their imports are inside.
    """
    return sum(len(_code_lines(function)) for function in functions)


def _code_lines(function: Callable[..., Any]) -> set[int]:
    source = textwrap.dedent(inspect.getsource(function))
    definition = ast.parse(source).body[0]
    if not isinstance(definition, ast.FunctionDef):
        raise ValueError(
            f"only the lines of a function can be counted, got {function!r}"
        )
    body = definition.body[1:] if ast.get_docstring(definition) else definition.body
    silent = (
        tokenize.COMMENT,
        tokenize.NL,
        tokenize.NEWLINE,
        tokenize.INDENT,
        tokenize.DEDENT,
    )
    lines: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type not in (*silent, tokenize.ENDMARKER):
            lines.update(range(token.start[0], token.end[0] + 1))
    return {line for line in lines if line >= body[0].lineno}


def with_section(page: str, name: str, body: str) -> str:
    """The page with another text between the marks of a section."""
    begin, end = f"<!-- begin {name} -->\n", f"<!-- end {name} -->"
    before, found, rest = page.partition(begin)
    _, closed, after = rest.partition(end)
    if not (found and closed):
        raise ValueError(
            f"the page must have {begin.strip()} and {end}, got neither or one"
        )
    return f"{before}{begin}\n{body.strip()}\n\n{end}{after}"

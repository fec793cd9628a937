"""Measuring and reporting in one call.

`measure` returns the rows of the table, the points of curves and their summary in sentences, and
writes `report.html`: all that `deepfish reproduce` prints.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Any

from deepfishing.core.features import split_names
from deepfishing.core.recipes import AUTO
from deepfishing.core.recipes.language import known_recipes
from deepfishing.core.recipes.recipe import AUTO_FORWARD, FORWARD
from deepfishing.core.statistics import Difference
from deepfishing.errors import check_choice
from deepfishing.evaluation.experiment import Protocol
from deepfishing.evaluation.protocols.curves import measure_curves
from deepfishing.evaluation.protocols.table import reproduce
from deepfishing.evaluation.record import PROTOCOLS, TABLE, Result
from deepfishing.evaluation.report.columns import Table
from deepfishing.evaluation.report.confusions import Confusions, confusions
from deepfishing.evaluation.report.gains import GainSplit, add_gains, gains, table_split
from deepfishing.evaluation.report.html import write_report
from deepfishing.evaluation.report.tables import comparison
from deepfishing.evaluation.report.words import (
    Paragraph,
    curve_words,
    gain_words,
    leak_words,
    plain,
    table_words,
)
from deepfishing.evaluation.results import Curves, Results
from deepfishing.extraction.to_store import OnFailure
from deepfishing.images.dataset import Dataset
from deepfishing.networks.network import Network
from deepfishing.util.progress import Progress


@dataclass(frozen=True, eq=False, repr=False)
class Measured:
    """Rows, the gain of each over the best forward row, points by protocol, sentences and page.

    `split` has the three rows that show what unlabelled photos and gradients give; None where one
    of them was not measured.
    """

    rows: Table
    gains: Mapping[str, Difference]
    split: GainSplit | None
    points: Mapping[str, list[Result]]
    words: tuple[str, ...]
    page: Path

    @property
    def confusions(self) -> Confusions | None:
        """Confusions of classes by the best row; None where images have several classes."""
        return confusions(comparison(self.rows)) if self.rows else None

    def __repr__(self) -> str:
        parts = [repr(self.rows)]
        for name, points in self.points.items():
            parts.append(f"{len(points)} points of {name}")
        return f"Measured({'; '.join(parts)}; report {self.page})"

    def _repr_html_(self) -> str:
        words = "".join(f"<p>{escape(sentence)}</p>" for sentence in self.words)
        return f"{self.rows._repr_html_()}{words}"

    def to_pandas(self) -> Any:
        """Return the rows as a data frame, see `Table`."""
        return self.rows.to_pandas()


def measure(
    dataset: Dataset,
    network: Network,
    out: str | Path,
    protocols: Iterable[str] = (TABLE,),
    *,
    features: str | Iterable[str] | None = None,
    table: str = "all",
    protocol: Protocol | None = None,
    command: str = "",
    progress: Progress | None = None,
    on_failure: OnFailure | None = None,
    **options: Any,
) -> Measured:
    """Measure a table, curves or both, and write their report.

    Parameters
    ----------
    dataset, network, out, protocol, command, progress, on_failure
        As for `reproduce`.
    protocols : iterable of str
        What is measured: "table", "low-shot", "knn", "curate", "search", "approximation".
    features : str or iterable of str, optional
        Recipes; by default those of `table` for the table, and what suits them for curves.
    table : str
        The rows of the table where no features are named.
    options
        Of `measure_curves`.
    """
    protocols = tuple(protocols)
    for name in protocols:
        check_choice("protocol", name, PROTOCOLS)
    how: dict[str, Any] = {
        "protocol": protocol,
        "command": command,
        "progress": progress,
        "on_failure": on_failure,
    }
    rows = Table()
    points = {}
    for name in protocols:
        if name == TABLE:
            recipes = _rows_to_measure(features, table, network)
            rows = reproduce(dataset, network, out, recipes, **how)
        else:
            measured = measure_curves(
                name, dataset, network, out, features, **how, **options
            )
            add_gains(measured)
            Curves(out).keep(measured)
            points[name] = measured
    row_gains, split = _compare(Results(out), rows)
    return Measured(
        rows=rows,
        gains=row_gains,
        split=split,
        points=points,
        words=_words(rows, row_gains, split, points),
        page=write_report(out),
    )


def _rows_to_measure(
    features: str | Iterable[str] | None, table: str, network: Network
) -> list[str]:
    """Return the named rows, with those that `auto` is compared with.

    By default these are the rows of `table` whose layers the network has.
    """
    if features is None:
        names = split_names(table)
        recipes = known_recipes(
            [name for name in names if name != "all"], network.layers
        )
        titles = [recipe.title for recipe in recipes.values()]
        return [name for name in names if name == "all" or name in titles]
    names = split_names(features) if isinstance(features, str) else list(features)
    compared = (FORWARD, AUTO_FORWARD) if AUTO in names else ()
    return [*(name for name in compared if name not in names), *names]


def _compare(
    results: Results, rows: Table
) -> tuple[dict[str, Difference], GainSplit | None]:
    """Return the gains between rows, and write their split into the row of `auto`."""
    if not rows:
        return {}, None
    row_gains = gains(results, rows)
    split = table_split(results, comparison(rows, row_gains))
    if split is not None:
        for row in rows:
            if row["feature"] == AUTO:
                row.update(split.as_keys())
                results.keep([row])
    return row_gains, split


def _words(
    rows: Table,
    row_gains: Mapping[str, Difference],
    split: GainSplit | None,
    points: Mapping[str, list[Result]],
) -> tuple[str, ...]:
    """Return the findings in sentences."""
    paragraphs: list[Paragraph] = [(leak_words(rows),), gain_words(split)]
    for measured in points.values():
        paragraphs += curve_words(measured)
    paragraphs.append(table_words(comparison(rows, row_gains)))
    texts = map(plain, paragraphs)
    return tuple(text for text in texts if text)

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
from deepfishing.evaluation.checks import PROTOCOLS, TABLE, Result
from deepfishing.evaluation.curves import measure_curves
from deepfishing.evaluation.report.gain_split import GainSplit, add_gains, table_split
from deepfishing.evaluation.report.html import write_report
from deepfishing.evaluation.report.rows import gains
from deepfishing.evaluation.report.tables import Confusions, comparison, confusions
from deepfishing.evaluation.report.words import (
    curve_words,
    gain_words,
    plain,
    table_words,
)
from deepfishing.evaluation.reproduce import Protocol, reproduce
from deepfishing.evaluation.results import Curves, Results, Table
from deepfishing.evaluation.splits import split_words
from deepfishing.extraction.to_store import OnFailure
from deepfishing.images.dataset import Dataset
from deepfishing.networks.network import Network
from deepfishing.util.progress import Progress


@dataclass(frozen=True, eq=False, repr=False)
class Measured:
    """What was measured in one go.

    `rows` are those of the table and `gains` their differences from the best forward row; `split`
    says what unlabelled photos and gradients give beside it. `points` has the points of each other
    protocol. `words` are paragraphs that say what was seen, and `page` is the report.
    """

    rows: Table
    gains: Mapping[str, Difference]
    split: GainSplit | None
    points: Mapping[str, list[Result]]
    words: tuple[str, ...]
    page: Path

    @property
    def confusions(self) -> Confusions | None:
        """Which classes the best row takes for which; None where images have several classes."""
        return confusions(comparison(self.rows)) if self.rows else None

    def __repr__(self) -> str:
        curves = (f"{len(some)} points of {name}" for name, some in self.points.items())
        return f"Measured({'; '.join((repr(self.rows), *curves))}; report {self.page})"

    def _repr_html_(self) -> str:
        words = "".join(f"<p>{escape(said)}</p>" for said in self.words)
        return f"{self.rows._repr_html_()}{words}"

    def to_pandas(self) -> Any:
        """The rows as a data frame, see `Table`."""
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
    how: dict[str, Any] = {"protocol": protocol, "command": command}
    how |= {"progress": progress, "on_failure": on_failure}
    rows = Table()
    points = {}
    for name in protocols:
        if name == TABLE:
            wanted = _wanted_rows(features, table, network)
            rows = reproduce(dataset, network, out, wanted, **how)
        else:
            points[name] = measure_curves(
                name, dataset, network, out, features, **how, **options
            )
            add_gains(points[name])
            Curves(out).keep(points[name])
    results = Results(out)
    known = gains(results, rows) if rows else {}
    split = table_split(results, comparison(rows, known)) if rows else None
    if split is not None:
        for row in rows:
            if row["feature"] == AUTO:
                row.update(split.as_keys())
                results.keep([row])
    page = write_report(out)
    words = [gain_words(split)]
    for measured in points.values():
        words += curve_words(measured)
    words.append(table_words(comparison(rows, known)))
    paragraphs = [plain(said) for said in words if said]
    if said := split_words(rows):
        paragraphs.insert(0, said)
    return Measured(rows, known, split, points, tuple(paragraphs), page)


def _wanted_rows(
    features: str | Iterable[str] | None, table: str, network: Network
) -> list[str]:
    """The rows that are asked for, with those that `auto` is compared with.

    Of a default table without recipes that the network lacks the layers of.
    """
    if features is None:
        names = split_names(table)
        known = known_recipes([name for name in names if name != "all"], network.layers)
        titles = [recipe.title for recipe in known.values()]
        return [name for name in names if name == "all" or name in titles]
    names = split_names(features) if isinstance(features, str) else list(features)
    compared = (FORWARD, AUTO_FORWARD) if AUTO in names else ()
    return [*(name for name in compared if name not in names), *names]

"""Stage 7: one call from images to a page.

Comes in: a data set, a network, a folder. Goes out: the rows of the table, the points of curves,
what they say in words, and `report.html`: all that `deepfish reproduce` prints.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Any

from deepfishing.core.statistics import Difference
from deepfishing.errors import check_choice
from deepfishing.evaluation.checks import PROTOCOLS, TABLE, Result
from deepfishing.evaluation.curves import measure_curves
from deepfishing.evaluation.report.html import write_report
from deepfishing.evaluation.report.rows import gains
from deepfishing.evaluation.report.tables import Confusions, comparison, confusions
from deepfishing.evaluation.report.words import curve_words, plain, table_words
from deepfishing.evaluation.reproduce import Protocol, reproduce
from deepfishing.evaluation.results import Results, Table
from deepfishing.evaluation.splits import split_words
from deepfishing.extraction.to_store import OnFailure
from deepfishing.images.dataset import Dataset
from deepfishing.networks.network import Network
from deepfishing.util.progress import Progress


@dataclass(frozen=True, eq=False, repr=False)
class Measured:
    """What was measured in one go.

    `rows` are those of the table and `gains` their differences from the best forward row; `points`
    has the points of each other protocol. `words` are paragraphs that say what was seen, and `page`
    is the report.
    """

    rows: Table
    gains: Mapping[str, Difference]
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
            rows = reproduce(dataset, network, out, features or table, **how)
        else:
            points[name] = measure_curves(name, dataset, network, out, features, **how, **options)
    page = write_report(out)
    known = gains(Results(out), rows) if rows else {}
    words = [table_words(comparison(rows, known)), *map(curve_words, points.values())]
    paragraphs = [plain(said) for said in words if said]
    if said := split_words(rows):
        paragraphs.insert(0, said)
    return Measured(rows, known, points, tuple(paragraphs), page)

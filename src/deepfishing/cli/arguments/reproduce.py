"""`deepfish reproduce`: the paper's table on a data set, with any network."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from deepfishing.cli.arguments.shared import (
    NETWORK,
    PROTOCOL,
    PYTHON_ONLY,
    WORK,
    Fields,
)
from deepfishing.evaluation.record import PROTOCOLS
from deepfishing.extraction.options import (
    OPTIONS,
    Resources,
)
from deepfishing.images.dataset import DATASETS


@dataclass(frozen=True, kw_only=True)
class Reproduce:
    """Measure the paper's rows: forward features, concatenations and gradients.

    Example: deepfish reproduce voc2007 --data VOCdevkit --features x7,dW8

    Features stay on disk, so a second run or a new row only computes what is missing. Ends with
    a table, results.jsonl and report.html in the --out folder. Other protocols than the table give
    curves, in curves.jsonl: few examples, nearest neighbours, projections of the kernel.
    """

    dataset: Annotated[str, f"One of: {', '.join(DATASETS)}."]
    data: Annotated[
        Path | None,
        "Folder of the data set, such as VOCdevkit; without it, what `deepfish fetch` got. "
        "groceries is part of the package.",
    ] = None
    options: Annotated[
        dict[str, Any], Fields(NETWORK, without=PYTHON_ONLY, records=OPTIONS)
    ]
    features: Annotated[
        str | None,
        "Comma-separated names; by default `all` rows of the paper's Table 1 and `forward`, "
        "`auto-forward` and `auto` (groceries, folder: and `best`), or what suits the protocol.",
    ] = None
    protocol: Annotated[
        str | None,
        f"What is measured, comma-separated: {', '.join(PROTOCOLS)}; by default table, for "
        "groceries table,low-shot.",
    ] = None
    train: Annotated[str | None, "Split to train on.", PROTOCOL] = None
    test: Annotated[str | None, "Split to test on.", PROTOCOL] = None
    seed: Annotated[
        int | None, "Seed of the split, where none is official. [default: 0]", PROTOCOL
    ] = None
    out: Annotated[
        Path | None, "Folder for results; results/DATASET-NETWORK by default."
    ] = None
    resources: Annotated[Resources, Fields(WORK, only=("device",))]
    as_json: Annotated[bool, "Print the rows as JSON lines, nothing else."] = False

"""`deepfish reproduce`: the paper's table on a data set, with any network."""

from __future__ import annotations

import json
import shlex
import sys
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from deepfishing.cli.datasets import DATASETS, check_dataset, load_dataset
from deepfishing.cli.network import (
    BatchSize,
    Device,
    Dtype,
    Engine,
    Label,
    Mean,
    NetworkName,
    Prototxt,
    Tau,
    Views,
    Weights,
    check_names,
    parse_label,
)
from deepfishing.gradients.batch_size import parse_batch_size


def reproduce(
    dataset: Annotated[str, typer.Argument(help=f"One of: {', '.join(DATASETS)}.")],
    data: Annotated[
        Path | None,
        typer.Option(help="Folder of the data set, such as VOCdevkit; scenes makes its own."),
    ] = None,
    network: NetworkName = "efficientnet-lite0",
    weights: Weights = None,
    prototxt: Prototxt = None,
    mean: Mean = None,
    features: Annotated[
        str, typer.Option(help="Comma-separated names, or `all` rows of the paper's Table 1.")
    ] = "all",
    tau: Tau = 2.0,
    label: Label = "uniform",
    difficult: Annotated[
        str, typer.Option(help="Difficult examples in training: negative or ignore.")
    ] = "negative",
    train: Annotated[str | None, typer.Option(help="Split to train on.")] = None,
    test: Annotated[str | None, typer.Option(help="Split to test on.")] = None,
    out: Annotated[
        Path | None, typer.Option(help="Folder for results; results/DATASET-NETWORK by default.")
    ] = None,
    batch_size: BatchSize = "auto",
    views: Views = "centre",
    device: Device = "cpu",
    dtype: Dtype = "float32",
    engine: Engine = "auto",
    skip_broken: Annotated[
        bool, typer.Option("--skip-broken", help="Leave unreadable images out and go on.")
    ] = False,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print the rows as JSON lines, nothing else.")
    ] = False,
) -> None:
    """Measure the paper's rows: forward features, concatenations and gradients.

    Example: deepfish reproduce voc2007 --data VOCdevkit --features x7,dW8

    Features stay on disk, so a second run or a new row only computes what is missing. Ends with
    a table, results.jsonl and report.html in the --out folder.
    """
    # what can be told at once is told before torch is loaded and before any work
    check_dataset(dataset)
    check_names(network, features)

    from deepfishing.cli.progress import progress_bar
    from deepfishing.experiments.reproduce import Protocol
    from deepfishing.experiments.reproduce import reproduce as run
    from deepfishing.experiments.results import Results
    from deepfishing.networks.load import load_network
    from deepfishing.report.gains import gains
    from deepfishing.report.html import write_report
    from deepfishing.report.terminal import table_1

    protocol = Protocol(
        tau=tau,
        label=parse_label(label),
        difficult=difficult,
        batch_size=parse_batch_size(batch_size),
        skip_broken=skip_broken,
        engine=engine,
        views=views,
    )
    net = load_network(network, weights, device, dtype, prototxt, mean)
    out = out or Path("results") / f"{dataset}-{net.name.replace(':', '-')}"
    source = load_dataset(dataset, data, train, test, out)
    command = shlex.join(["deepfish", *sys.argv[1:]])
    with progress_bar() as progress:
        rows = run(source, net, out, features, protocol, command, progress)
    page = write_report(out)
    if as_json:
        for row in rows:
            typer.echo(json.dumps(row))
        return
    Console().print(table_1(rows, gains(Results(out), rows)))
    typer.echo(f"results  {out / 'results.jsonl'}\nreport   {page}")

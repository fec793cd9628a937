"""`deepfish reproduce`: the paper's table on a data set, with any network."""

from __future__ import annotations

import shlex
import sys
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

from rich.console import Console, RenderableType
from rich.text import Text

from deepfishing.cli import say
from deepfishing.cli.command import NETWORK, PROTOCOL, WORK, Fields, Strict
from deepfishing.errors import DatasetError, OptionError, check_choice
from deepfishing.evaluation.checks import PROTOCOLS, TABLE
from deepfishing.extraction.options import (
    OPTIONS,
    Resources,
    check_features,
    load_from_options,
    split_options,
)
from deepfishing.fetch.place import fetched_data
from deepfishing.images.dataset import (
    DATASETS,
    DIFFICULT,
    Dataset,
    DatasetRecord,
    find_record,
)
from deepfishing.images.item import as_text
from deepfishing.images.sources import passed_over_in


def reproduce(
    dataset: Annotated[str, f"One of: {', '.join(DATASETS)}."],
    *,
    data: Annotated[
        Path | None,
        "Folder of the data set, such as VOCdevkit; without it, what `deepfish fetch` got. "
        "groceries brings its own.",
    ] = None,
    options: Annotated[dict[str, Any], Fields(NETWORK, records=OPTIONS)],
    features: Annotated[
        str | None,
        "Comma-separated names; by default `all` rows of the paper's Table 1 and `forward`, "
        "`auto-forward` and `auto` (groceries, folder: and `best`), or what suits the protocol.",
    ] = None,
    protocol: Annotated[
        str | None,
        f"What is measured, comma-separated: {', '.join(PROTOCOLS)}; by default table, for "
        "groceries table,low-shot.",
    ] = None,
    largest: Annotated[
        int | None,
        "Training images to time approximation on, at most 50,000.",
        PROTOCOL,
    ] = None,
    difficult: Annotated[
        str, "Difficult labels in training: ignore or negative.", PROTOCOL
    ] = DIFFICULT[0],
    train: Annotated[str | None, "Split to train on.", PROTOCOL] = None,
    test: Annotated[str | None, "Split to test on.", PROTOCOL] = None,
    seed: Annotated[
        int | None, "Seed of the split, where none is official. [default: 0]", PROTOCOL
    ] = None,
    out: Annotated[
        Path | None, "Folder for results; results/DATASET-NETWORK by default."
    ] = None,
    resources: Annotated[Resources, Fields(WORK, without=("memory",))],
    strict: Strict = False,
    as_json: Annotated[bool, "Print the rows as JSON lines, nothing else."] = False,
) -> None:
    """Measure the paper's rows: forward features, concatenations and gradients.

    Example: deepfish reproduce voc2007 --data VOCdevkit --features x7,dW8

    Features stay on disk, so a second run or a new row only computes what is missing. Ends with
    a table, results.jsonl and report.html in the --out folder. Other protocols than the table give
    curves, in curves.jsonl: few examples, nearest neighbours, projections of the kernel.
    """
    # what can be told at once is told before torch is loaded and before any work
    known = find_record(dataset)
    protocols = known.protocols if protocol is None else tuple(protocol.split(","))
    for name in protocols:
        check_choice("protocol", name, PROTOCOLS)
    if largest is not None and ("approximation" not in protocols or largest < 1):
        raise OptionError(
            "--largest must be a number of images for --protocol approximation, "
            f"got {largest} for {','.join(protocols)}"
        )
    if features is not None or TABLE in protocols:
        check_features(options, features or known.table)

    # loaded when the command runs, so that help and completion are quick
    from deepfishing.evaluation.measuring import measure
    from deepfishing.evaluation.report.sheets import curve_sheets, table_sheets
    from deepfishing.evaluation.report.tables import comparison
    from deepfishing.evaluation.report.text import terminal
    from deepfishing.evaluation.reproduce import Protocol

    _, feature_options = split_options(options)
    how = Protocol(
        difficult=difficult, strict=strict, **feature_options, **vars(resources)
    )
    net = load_from_options(options, device=resources.device)
    for line in net.notes:
        say.note(line)
    out = out or Path("results") / f"{dataset}-{net.name.replace(':', '-')}"
    source = load_dataset(known, data, out, train=train, test=test, seed=seed)
    left_out: dict[str, str] = {}
    with say.progress_bar() as progress:
        found = measure(
            source,
            net,
            out,
            protocols,
            features=features,
            table=known.table,
            protocol=how,
            command=as_text(shlex.join(["deepfish", *sys.argv[1:]])),
            progress=progress,
            on_failure=left_out.__setitem__,
            **({} if largest is None else {"largest": largest}),
        )
    if as_json:
        for row in (
            *found.rows,
            *(point for curve in found.points.values() for point in curve),
        ):
            say.json(row)
        return
    say.left_out(left_out.values())
    if dataset == "folder" and data is not None:
        say.passed_over(passed_over_in(data))
    sheets = []
    if found.rows:
        sheets += table_sheets(
            comparison(found.rows, found.gains), found.split, narrow=True
        )
    for points in found.points.values():
        sheets += curve_sheets(points, narrow=True)
    drawn: list[RenderableType] = [*map(terminal, sheets), *map(Text, found.words)]
    for part in drawn:
        Console().print(say.Spelled(part))
        say.line()
    say.line(f"report   {found.page}")
    say.what_next(("deepfish", "serve", out))


def load_dataset(
    record: DatasetRecord, data: Path | None, out: Path, **asked: Any
) -> Dataset:
    """Read a data set; what is unpacked for it goes into `out`. None of `asked` is the default."""
    given = {name: value for name, value in asked.items() if value is not None}
    for name in given:
        if name not in record.options:
            raise DatasetError(
                f"{record.name} has no choice of --{name}, got {given[name]}; its split is: "
                f"{record.split}"
            )
    if "into" in record.options:
        given["into"] = out / "data"
    folder = data or (out / "data" if record.embedded else fetched_data(record.name))
    if folder is None:
        fetch = f", or run `deepfish fetch {record.name}`" * bool(record.files)
        raise DatasetError(
            f"{record.name} needs its folder, got none; pass --data FOLDER{fetch}"
        )
    found = replace(record.read(folder, **given), measure=record.measure)
    sizes = len(found.train), len(found.test)
    if record.sizes and sizes != record.sizes and not {"train", "test"} & set(given):
        published = " and ".join(f"{n:,}" for n in record.sizes)
        got = " and ".join(f"{n:,}" for n in sizes)
        say.note(
            f"note: {record.name} has {published} images to train and to test as published, "
            f"this copy {got}"
        )
    return found

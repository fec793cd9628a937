"""`deepfish reproduce`: the paper's table on a data set, with any network."""

from __future__ import annotations

import shlex
import sys
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import Any

from rich.console import Console, RenderableType
from rich.text import Text

from deepfishing.cli.arguments.reproduce import Reproduce
from deepfishing.cli.printing import (
    print_json,
    print_line,
    print_next,
    print_note,
)
from deepfishing.cli.progress import progress_bar
from deepfishing.cli.summaries import (
    Escaped,
    print_ignored_files,
    print_left_out,
)
from deepfishing.errors import DatasetError, check_choice
from deepfishing.evaluation.experiment import Protocol
from deepfishing.evaluation.measure import Measured, measure
from deepfishing.evaluation.record import PROTOCOLS, TABLE
from deepfishing.evaluation.report.sheet import Sheet
from deepfishing.evaluation.report.sheets import curve_sheets, table_sheets
from deepfishing.evaluation.report.tables import comparison
from deepfishing.evaluation.report.text import terminal
from deepfishing.extraction.options import (
    check_features,
    load_from_options,
    split_options,
)
from deepfishing.fetch.place import fetched_data
from deepfishing.images.dataset import (
    Dataset,
    DatasetRecord,
    find_record,
)
from deepfishing.images.item import as_text
from deepfishing.images.sources import passed_over_in


def run_reproduce(args: Reproduce) -> None:
    """Run `deepfish reproduce`."""
    # options are checked before torch is loaded
    record = find_record(args.dataset)
    protocols: tuple[str, ...] = record.protocols
    if args.protocol is not None:
        protocols = tuple(args.protocol.split(","))
    for name in protocols:
        check_choice("protocol", name, PROTOCOLS)
    if args.features is not None or TABLE in protocols:
        check_features(args.options, args.features or record.table)

    _, feature_options = split_options(args.options)
    protocol = Protocol(**feature_options, **vars(args.resources))
    net = load_from_options(args.options, device=args.resources.device)
    for line in net.notes:
        print_note(line)
    out = args.out or Path("results") / f"{args.dataset}-{net.name.replace(':', '-')}"
    source = load_dataset(
        record, args.data, out, train=args.train, test=args.test, seed=args.seed
    )
    left_out: dict[str, str] = {}
    with progress_bar() as progress:
        measured = measure(
            source,
            net,
            out,
            protocols,
            features=args.features,
            table=record.table,
            protocol=protocol,
            command=as_text(shlex.join(["deepfish", *sys.argv[1:]])),
            progress=progress,
            on_failure=left_out.__setitem__,
        )
    if args.as_json:
        for row in chain(measured.rows, *measured.points.values()):
            print_json(row)
        return
    print_left_out(left_out.values())
    if args.dataset == "folder" and args.data is not None:
        print_ignored_files(passed_over_in(args.data))
    _print_tables(measured)
    print_line(f"report   {measured.page}")
    print_next(("deepfish", "serve", out))


def _print_tables(measured: Measured) -> None:
    """Print the tables and sentences of the report."""
    sheets: list[Sheet] = []
    if measured.rows:
        table = comparison(measured.rows, measured.gains)
        sheets += table_sheets(table, measured.split, medium="terminal")
    for points in measured.points.values():
        sheets += curve_sheets(points, medium="terminal")
    parts: list[RenderableType] = [terminal(sheet) for sheet in sheets]
    parts += [Text(sentence) for sentence in measured.words]
    for part in parts:
        Console().print(Escaped(part))
        print_line()


def load_dataset(
    record: DatasetRecord, data: Path | None, out: Path, **choices: Any
) -> Dataset:
    """Read a data set; archives are unpacked into `out`. Choices that are None are the default."""
    given = {name: value for name, value in choices.items() if value is not None}
    for name in given:
        if name not in record.options:
            raise DatasetError(
                f"{record.name} has no choice of --{name}, got {given[name]}; its split is: "
                f"{record.split}"
            )
    if "into" in record.options:
        given["into"] = out / "data"
    folder = data
    if folder is None and record.embedded:
        folder = out / "data"
    elif folder is None:
        folder = fetched_data(record.name)
    if folder is None:
        problem = f"{record.name} needs its folder, got none; pass --data FOLDER"
        if record.files:
            problem += f", or run `deepfish fetch {record.name}`"
        raise DatasetError(problem)
    dataset = replace(record.read(folder, **given), measure=record.measure)
    sizes = len(dataset.train), len(dataset.test)
    if record.sizes and sizes != record.sizes and not {"train", "test"} & set(given):
        published = " and ".join(f"{n:,}" for n in record.sizes)
        copy_sizes = " and ".join(f"{n:,}" for n in sizes)
        print_note(
            f"note: {record.name} has {published} images to train and to test as published, "
            f"this copy {copy_sizes}"
        )
    return dataset

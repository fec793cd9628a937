"""A data set by its name: the folder that the user gave, what was fetched, or what is embedded."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from deepfishing.cli.say import say
from deepfishing.errors import DatasetError
from deepfishing.fetch.place import fetched_data
from deepfishing.images.dataset import Dataset
from deepfishing.images.records import DatasetRecord


def load_dataset(record: DatasetRecord, data: Path | None, out: Path, **asked: Any) -> Dataset:
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
        raise DatasetError(f"{record.name} needs its folder, got none; pass --data FOLDER{fetch}")
    found = replace(record.read(folder, **given), measure=record.measure)
    sizes = len(found.train), len(found.test)
    if record.sizes and sizes != record.sizes and not {"train", "test"} & set(given):
        published = " and ".join(f"{n:,}" for n in record.sizes)
        got = " and ".join(f"{n:,}" for n in sizes)
        say(
            f"note: {record.name} has {published} images to train and to test as published, "
            f"this copy {got}",
            err=True,
        )
    return found

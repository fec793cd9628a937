"""The data sets that commands know by name."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from deepfishing.errors import DatasetError, did_you_mean
from deepfishing.fetch.place import fetched_data
from deepfishing.images.dataset import Dataset
from deepfishing.images.folder import read_folder
from deepfishing.images.groceries import load_groceries
from deepfishing.images.voc import read_voc


@dataclass(frozen=True)
class Known:
    """What is done with a data set unless said otherwise.

    The splits to train and test on, the protocols, and the rows of the table.
    """

    train: str
    test: str
    protocols: tuple[str, ...] = ("table",)
    table: str = "all"


DATASETS = {
    "groceries": Known("train", "test", ("table", "low-shot"), "all,best"),
    "folder": Known("train", "test"),
    "voc2007": Known("trainval", "test"),
    "voc2012": Known("train", "val"),
}


def check_dataset(name: str) -> None:
    """Refuse a name that is no data set."""
    if name == "scenes":
        raise DatasetError(
            "scenes, drawn digits, has made way for real photographs; "
            "run `deepfish reproduce groceries`"
        )
    if name not in DATASETS:
        raise DatasetError(
            f"data set must be one of {', '.join(DATASETS)}, got {name!r}"
            f"{did_you_mean(name, DATASETS)}"
        )


def load_dataset(
    name: str, data: Path | None, train: str | None, test: str | None, out: Path
) -> Dataset:
    """Read a data set by name; `groceries` is unpacked into `data`, or into `out`."""
    check_dataset(name)
    known = DATASETS[name]
    train, test = train or known.train, test or known.test
    if name in ("groceries", "folder") and (train, test) != (known.train, known.test):
        raise DatasetError(
            f"{name} is trained on {known.train} and tested on {known.test}, "
            f"got --train {train} --test {test}"
        )
    if name == "groceries":
        return load_groceries(data or out / "data")
    data = data or fetched_data(name)
    if data is None:
        fetch = "" if name == "folder" else f", or run `deepfish fetch {name}`"
        raise DatasetError(f"{name} needs its folder, got none; pass --data FOLDER{fetch}")
    if name == "folder":
        return read_folder(data)
    return read_voc(data, int(name.removeprefix("voc")), train, test)

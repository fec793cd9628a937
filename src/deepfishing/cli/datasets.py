"""The data sets that commands know by name."""

from __future__ import annotations

from pathlib import Path

from deepfishing.errors import DatasetError, did_you_mean
from deepfishing.fetch.place import fetched_data
from deepfishing.images.dataset import Dataset
from deepfishing.images.folder import read_folder
from deepfishing.images.groceries import load_groceries
from deepfishing.images.voc import read_voc

# name -> splits to train and test on unless said otherwise
DATASETS: dict[str, tuple[str, str]] = {
    "voc2007": ("trainval", "test"),
    "voc2012": ("train", "val"),
    "groceries": ("train", "test"),
    "folder": ("train", "test"),
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
    train, test = train or DATASETS[name][0], test or DATASETS[name][1]
    if name in ("groceries", "folder") and (train, test) != DATASETS[name]:
        raise DatasetError(
            f"{name} is trained on {DATASETS[name][0]} and tested on {DATASETS[name][1]}, "
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

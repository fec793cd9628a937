"""The model of a store for the page: training in the background, predictions, downloads."""

from __future__ import annotations

import io
import json
import tempfile
import threading
import zipfile
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from jinja2 import Environment, FileSystemLoader, StrictUndefined

from deepfishing import __version__
from deepfishing.core.rank_one import Array
from deepfishing.core.recipes import parse_recipe
from deepfishing.errors import DeepFishingError, did_you_mean
from deepfishing.extraction.relabel import export_labels
from deepfishing.learn.model_files import DOCUMENT, TENSORS
from deepfishing.learn.sorting import UNSURE, Sorted, folder_names, sort_photo
from deepfishing.learn.store_model import (
    StoreModel,
    curve,
    model_folder,
    onnx_file,
    open_store_model,
    point_at,
    set_threshold,
)
from deepfishing.util.files import csv_text
from deepfishing.util.progress import Progress
from deepfishing.web.apart import run_apart
from deepfishing.web.gallery import Example, Gallery, UnknownError
from deepfishing.web.guard import RefusedError
from deepfishing.web.jobs import Jobs
from deepfishing.web.messages import message_for_page

TRAIN, ONNX = "train", "onnx"
NO_MODEL = "the store has no model yet; train one first"
MAX_LABELS = 50_000_000  # bytes of labels.csv


@dataclass(frozen=True, eq=False)
class Predictions:
    """The most probable class of each row of a gallery, -1 where there is none; `classes` name
    them.
    """

    classes: tuple[str, ...]
    codes: Array
    probability: Array


class ModelRoom:
    """The model of a gallery's store; may be used from several threads."""

    def __init__(self, gallery: Gallery, jobs: Jobs) -> None:
        self.jobs = jobs
        self.gallery = gallery
        self._lock = threading.RLock()
        self._predictions: Predictions | None = None
        self.problem = ""
        self.found: StoreModel | None = None
        self.reload()

    def reload(self) -> None:
        """Read the model that was trained last."""
        try:
            opened, problem = open_store_model(self.gallery.store), ""
        except DeepFishingError as error:
            folders = {"the store": self.gallery.store.folder}
            opened = None
            problem = message_for_page(error, "reading the model", folders)
        with self._lock:
            self.found = opened
            self.problem = problem
            self._predictions = None

    def require(self) -> StoreModel:
        """Return the model; an error if there is none."""
        if self.found is None:
            raise UnknownError(NO_MODEL)
        return self.found

    def _with_class(self, name: str) -> StoreModel:
        """Return the model; an error if it has no class of this name."""
        opened = self.require()
        classes = opened.model.classes
        if name not in classes:
            hint = did_you_mean(name, classes)
            raise UnknownError(f"class must be one of the model, got {name!r}{hint}")
        return opened

    def train(self, recipe: str, progress: Progress) -> None:
        """Train on the current labels, in another process."""
        options = json.dumps({"recipe": recipe})
        run_apart(TRAIN, [str(self.gallery.store.folder), options], progress)
        # of the model before
        onnx_file(self.gallery.store.folder).unlink(missing_ok=True)
        self.reload()

    def write_onnx(self, progress: Progress) -> None:
        """Write the model as .onnx, in another process."""
        self.require()
        weights = self.gallery.uploads.weights
        if weights is not None:
            weights = str(weights)
        options = json.dumps({"weights": weights})
        run_apart(ONNX, [str(self.gallery.store.folder), options], progress)

    def predictions(self) -> Predictions | None:
        """Return the most probable class of each row; None without a model."""
        with self._lock:
            if self.found is not None and self._predictions is None:
                self._predictions = self._predict(self.found)
            return self._predictions

    def _predict(self, opened: StoreModel) -> Predictions:
        numbers = self._numbers(opened)
        values = np.array(
            opened.probabilities[np.maximum(numbers, 0)], dtype=np.float32
        )
        values[:, ~opened.model.svm.trained] = -1
        codes = np.where(numbers >= 0, values.argmax(axis=1), -1)
        return Predictions(opened.model.classes, codes, values.max(axis=1))

    def _numbers(self, opened: StoreModel) -> Array:
        """Return the index of each row's prediction, -1 for none."""
        collection = self.gallery.collection
        keys = self.gallery.first_searcher.contents.keys
        numbers: Array = opened.numbers_of(keys)[collection.content]
        return numbers

    def summary(self) -> dict[str, Any]:
        """Return what the page shows of the model."""
        counts = self.gallery.live.counts()
        job, onnx = (self.jobs.get(name) for name in (TRAIN, ONNX))
        live = self.gallery.live
        labels = [{"name": name, "images": n} for name, n in counts.items()]
        about: dict[str, Any] = {
            "job": None,
            "onnx_job": None,
            "labelled": int(live.is_labelled().sum()),
            "labels": labels,
            "model": None,
            "problem": self.problem,
        }
        if job is not None:
            about["job"] = job.as_dict()
        if onnx is not None:
            about["onnx_job"] = onnx.as_dict()
        opened = self.found
        if opened is not None:
            about["model"] = self._about(opened, counts)
            about["has_onnx"] = onnx_file(self.gallery.store.folder).is_file()
        return about

    def _about(self, opened: StoreModel, counts: dict[str, int]) -> dict[str, Any]:
        model, facts = opened.model, opened.facts
        then = facts.get("labels", {})
        names = {*counts, *then}
        changed = sum(abs(counts.get(name, 0) - then.get(name, 0)) for name in names)
        auto = model.training.get("auto") or {}
        return {
            "recipe": parse_recipe(model.recipe).title,
            "definition": model.recipe,
            "why": auto.get("why", ""),
            "chosen": bool(auto),
            "network": model.settings.network.name,
            "trained": facts.get("trained", ""),
            "photos": model.training.get("images"),
            "several": model.has_several,
            "figures": facts.get("figures", {}),
            # of the choice of features, too; those above are of photos that the choice has seen
            "unseen": model.training.get("accuracy") or None if auto else None,
            "changed_labels": changed,
            "classes": [
                self._class(opened, number) for number in range(len(model.classes))
            ],
        }

    def _class(self, opened: StoreModel, number: int) -> dict[str, Any]:
        model = opened.model
        name = model.classes[number]
        ap = float(model.svm.ap[number])
        validation = model.training.get("validation", {})
        point = point_at(opened, name)
        facts = {
            "name": name,
            "photos": opened.facts.get("counts", {}).get(name, 0),
            "trained": bool(model.svm.trained[number]),
            "ap": None,
            "why": validation.get("not_measurable", {}).get(name, ""),
            "threshold": float(model.limits[number]),
            "chosen": model.thresholds is not None,
            "point": None,
        }
        if np.isfinite(ap):
            facts["ap"] = round(ap, 1)
        if point is not None:
            facts["point"] = asdict(point)
        return facts

    def curve(self, name: str) -> dict[str, Any]:
        """Return precision and recall of a class at all thresholds."""
        points = curve(self._with_class(name), name)
        return {"class": name, "points": [asdict(point) for point in points]}

    def set_threshold(self, name: str, value: float | None) -> dict[str, Any]:
        """Choose the threshold of a class; return the class as it is now."""
        with self._lock:
            changed = set_threshold(
                self.gallery.store, self._with_class(name), name, value
            )
            self.found = changed
        return self._class(changed, changed.class_number(name))

    def predict(self, example: Example) -> dict[str, Any]:
        """Return all classes of a photo, the most probable first, and its folder."""
        opened = self.require()
        model = opened.model
        if example.upload:
            arrays = self.gallery.uploads.recall(example.upload)
            absent = [name for name in model.columns if name not in arrays]
            if absent:
                raise RefusedError(
                    409,
                    f"the page must compute {', '.join(absent)} for this model, but does not; "
                    "start the server again",
                )
            chances = model.probabilities(
                {name: arrays[name] for name in model.columns}
            )[0]
        else:
            number = int(self._numbers(opened)[self.gallery.row(example.id)])
            if number < 0:
                raise RefusedError(
                    409, "the photo has come after the model; train again"
                )
            chances = np.asarray(opened.probabilities[number], dtype=np.float64)
        order = np.argsort(-np.where(model.svm.trained, chances, -1), kind="stable")
        names = folder_names(model.classes)
        places = sort_photo(model, "", example.id or "photo", chances, names)
        return {
            "classes": [
                {
                    "name": model.classes[c],
                    "probability": round(float(chances[c]), 4),
                    "threshold": float(model.limits[c]),
                }
                for c in order
                if model.svm.trained[c]
            ],
            "folders": [place.folder for place in places],
        }

    def sorted_csv(self, rows: Array | None) -> bytes:
        """Return a table of the folder that each photo belongs into."""
        records = []
        for photo in self._sorted(rows):
            record = {**vars(photo), "probability": f"{photo.probability:.4f}"}
            records.append(record)
        columns = ["path", "id", "folder", "label", "probability"]
        return csv_text(records, columns).encode("utf-8", "surrogateescape")

    def _sorted(self, rows: Array | None) -> Iterator[Sorted]:
        """Yield the folder that each photo belongs into."""
        opened = self.require()
        model = opened.model
        names = folder_names(model.classes)
        numbers = self._numbers(opened)
        candidates = np.arange(len(numbers))
        if rows is not None:
            candidates = rows
        for row in candidates[numbers[candidates] >= 0].tolist():
            picture = self.gallery.collection[row]
            chances = np.asarray(opened.probabilities[numbers[row]], dtype=np.float64)
            yield from sort_photo(model, picture.path, picture.id, chances, names)

    def folders(self, rows: Array | None) -> list[dict[str, Any]]:
        """Return how many photos would be sorted into each folder."""
        counts: dict[str, int] = {}
        for photo in self._sorted(rows):
            counts[photo.folder] = counts.get(photo.folder, 0) + 1
        order = sorted(counts, key=lambda name: (name == UNSURE, name))
        return [{"name": name, "photos": counts[name]} for name in order]

    def zipped(self) -> bytes:
        """Return the folder of the model as a zip."""
        self.require()
        folder = model_folder(self.gallery.store.folder)
        buffer = io.BytesIO()
        with zipfile.ZipFile(buffer, "w") as archive:
            for name in (DOCUMENT, TENSORS):
                archive.write(folder / name, f"model/{name}")
        return buffer.getvalue()

    def labels_csv(self) -> bytes:
        """Return the labels as `deepfish label --out` writes them."""
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder, "labels.csv")
            export_labels(self.gallery.store, path)
            return path.read_bytes()

    def onnx(self) -> bytes:
        """Return the model as .onnx, once it was written."""
        path = onnx_file(self.gallery.store.folder)
        if not path.is_file():
            raise UnknownError(
                "the model was not written as .onnx yet; ask for it first"
            )
        return path.read_bytes()

    def report(self) -> bytes:
        """Return one page about the model, without scripts."""
        opened = self.require()
        loader = FileSystemLoader(Path(__file__).parent)
        page = Environment(
            loader=loader, autoescape=True, undefined=StrictUndefined, trim_blocks=True
        )
        about = self._about(opened, self.gallery.live.counts())
        text = page.get_template("model_report.html.j2").render(
            store=self.gallery.name, version=__version__, **about
        )
        return text.encode()

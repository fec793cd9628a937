"""No code runs from weights, stores, models or an index: all of them may come from anybody."""

import contextlib
import hashlib
import io
import json
import os
import pickle
import shutil

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

from deepfishing.core.recipes import parse_recipe
from deepfishing.errors import DeepFishingError
from deepfishing.extraction.settings import Settings
from deepfishing.images.preprocess import Preprocess
from deepfishing.learn.model import Model
from deepfishing.learn.training import train_model
from deepfishing.networks.load import load_network
from deepfishing.networks.reference import NetworkRef
from deepfishing.networks.weights import read_weights
from deepfishing.search import Searcher
from deepfishing.store import Row, Store
from deepfishing.store.check import info, verify
from deepfishing.util.files import SEAL, sealed

SETTINGS = Settings(
    network=NetworkRef(
        name="toy",
        weights_sha256="0" * 64,
        layers={7: "fc7", 8: "fc8"},
        preprocess=Preprocess(8, 8, mean=(0.0,) * 3, std=(1.0,) * 3),
    )
)


class Runs:
    """Unpickled, it makes a file."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return os.system, (f"touch '{self.path}'",)


@pytest.fixture
def payload(tmp_path):
    """A value that runs code where it is unpickled; after the test it must not have been."""
    made = tmp_path / "made"
    runs = Runs(made)
    yield runs
    assert not made.exists()
    pickle.loads(pickle.dumps(runs))
    assert made.exists()  # so it was dangerous


def content_of(payload, protocol=2):
    return pickle.dumps({"x.weight": payload}, protocol)


@pytest.mark.parametrize("name", ["w.pth", "w.pt", "w.safetensors", "w.caffemodel"])
@pytest.mark.parametrize("how", [*range(6), "zip", "old", "beside tensors"])
def test_weights(payload, tmp_path, name, how):
    path = tmp_path / name
    if isinstance(how, int):
        path.write_bytes(content_of(payload, how))
    else:
        value = (
            {"x.weight": torch.ones(2), "extra": payload} if how != "zip" else payload
        )
        torch.save(value, path, _use_new_zipfile_serialization=how != "old")
    read = load_network if name.endswith("caffemodel") else read_weights
    with pytest.raises(DeepFishingError, match=name):
        read(str(path))


@pytest.fixture
def store(tmp_path, rng):
    store = Store(tmp_path / "store", SETTINGS.as_dict())
    keys = [f"{n:064x}" for n in range(300)]
    store.append(keys, {name: rng.normal(size=(300, 5)) for name in ("x7", "delta8")})
    store.write_rows(Row(f"{n}.jpg", f"{n}.jpg", key) for n, key in enumerate(keys))
    return store


def use(folder):
    """All that looks into a store, or writes to it; an error unless it is sound."""
    store = Store.open(folder)
    problems = verify(store)
    info(store)
    Searcher(store, "x7").search("0.jpg")
    with store.writing():
        store.rows()
    if problems:
        raise DeepFishingError("; ".join(problems))


def replace(path, content):
    """Put other bytes into a file; a shard is named by their hash, so that they are looked at."""
    path.write_bytes(content)
    if path.name.startswith("shard-"):
        path.rename(path.with_stem(f"shard-{hashlib.sha256(content).hexdigest()[:16]}"))


@pytest.mark.parametrize(
    "file", ["store.json", "index.parquet", "x7/shard-*.parquet", ".journal"]
)
def test_a_store_with_a_pickle_in_it(payload, store, file):
    found = list(store.folder.glob(file)) or [store.folder / file]
    for path in found:
        replace(path, content_of(payload))
    with pytest.raises(DeepFishingError):
        use(store.folder)


def test_a_shard_with_a_type_that_is_a_pickle(payload, store):
    """Old versions of pyarrow unpickled the types of columns that Python had made."""
    name = b"arrow.py_extension_type"
    type_ = {
        b"ARROW:extension:name": name,
        b"ARROW:extension:metadata": pickle.dumps(payload),
    }
    (path,) = (store.folder / "x7").glob("shard-*.parquet")
    table = pq.read_table(path)
    fields = [
        field.with_metadata({**(field.metadata or {}), **type_})
        for field in table.schema
    ]
    file = io.BytesIO()
    pq.write_table(table.cast(pa.schema(fields)), file)
    replace(path, file.getvalue())
    with contextlib.suppress(DeepFishingError):
        use(store.folder)


@pytest.fixture
def model(tmp_path, rng):
    arrays = {"x7": rng.normal(size=(30, 5)).astype(np.float32)}
    labels = np.where(rng.random((30, 2)) < 0.5, 1, -1).astype(np.int8)
    made = train_model("x7", arrays, labels, ("cat", "dog"), settings=SETTINGS)
    made.save(tmp_path / "model")
    return tmp_path / "model"


@pytest.mark.parametrize("file", ["model.json", "model.safetensors"])
def test_a_model_with_a_pickle_in_it(payload, model, file):
    content = content_of(payload)
    (model / file).write_bytes(content)
    if file != "model.json":  # with the right hash, for whoever made it can compute one
        facts = json.loads((model / "model.json").read_text())
        facts["sha256"][file] = hashlib.sha256(content).hexdigest()
        facts.pop(SEAL, None)
        (model / "model.json").write_text(json.dumps(facts))
    with pytest.raises(DeepFishingError, match=file):
        Model.load(model)


CODE = [
    "__import__('os').system('touch made')",
    "x7;__import__('os')",
    "eval(x7)",
    "pow(x7,exec)",
]


@pytest.mark.parametrize("recipe", CODE)
def test_a_recipe_is_parsed_and_not_evaluated(model, recipe, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    facts = json.loads((model / "model.json").read_text())
    facts.pop(SEAL, None)
    (model / "model.json").write_text(json.dumps({**facts, "recipe": recipe}))
    with pytest.raises(DeepFishingError):
        Model.load(model)
    with pytest.raises(DeepFishingError):
        parse_recipe(recipe, {7: "fc7", 8: "fc8"})
    assert not (tmp_path / "made").exists()


@pytest.mark.parametrize(
    "name",
    [
        *(
            "os:system",
            "os.system",
            "deepfishing.cli:main",
            "__import__('os')",
            "..",
            "",
            "/etc",
        ),
        *("timm:hf-hub:somebody/model", "timm:local-dir:/etc", "timm:../../x", "timm:"),
        *("torchvision:hub", "torchvision:../../x", "torchvision:resnet18;import os"),
    ],
)
def test_the_name_of_a_network_is_looked_up_and_never_imported(name):
    """It stands in every store and model; a page that gets a photo loads the network it names."""
    with pytest.raises(DeepFishingError):
        load_network(name)


@pytest.mark.parametrize("file", ["vectors", "arrays"])
def test_an_index_with_a_pickle_in_it_is_made_again(payload, store, file):
    expected = [hit.id for hit in Searcher(store, "x7", "index").search("3.jpg", 5)]
    (facts,) = store.folder.glob(".index/*/index.json")
    (old,) = facts.parent.glob(f"{file}-*")
    content = content_of(payload)
    name = f"{file}-{hashlib.sha256(content).hexdigest()[:16]}{old.suffix}"
    (facts.parent / name).write_bytes(content)
    changed = json.loads(facts.read_text())
    del changed[SEAL]
    changed["files"][file] = name
    facts.write_text(json.dumps(sealed(changed)))  # so that all hashes are right
    told = []
    found = Searcher(store, "x7", "index", notice=told.append).search("3.jpg", 5)
    assert [hit.id for hit in found] == expected
    assert len(told) == 1
    assert "as it was written" not in told[0]  # so its reader saw it


def test_an_index_does_not_lead_out_of_its_folder(store, tmp_path):
    Searcher(store, "x7", "index")
    (facts,) = store.folder.glob(".index/*/index.json")
    (vectors,) = facts.parent.glob("vectors-*")
    shutil.move(vectors, tmp_path / vectors.name)  # elsewhere, and as it must be
    changed = json.loads(facts.read_text())
    del changed[SEAL]
    changed["files"]["vectors"] = str(tmp_path / vectors.name)
    facts.write_text(json.dumps(sealed(changed)))
    told = []
    Searcher(store, "x7", "index", notice=told.append)
    assert "does not exist" in told[0]

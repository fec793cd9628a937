"""The commands that are killed: extract, prune, train, search with an index, reproduce.

Comes in: a folder to work in. Goes out: scenes. All run the command line itself, in this process's
forks, with a network of one layer, so that a run takes a fraction of a second.
"""

from __future__ import annotations

import hashlib
import shutil
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

import deepfishing.networks.load as load
from deepfishing.cli import main
from deepfishing.evaluation.results import Results
from deepfishing.learn.model import Model
from deepfishing.search import Searcher
from deepfishing.store import Row, Store
from deepfishing.store.check import verify
from fire.forks import ended, fork, load_script
from fire.kills import Scene

FLAT = (*("--weights", "random"), *("--engine", "torch"), *("--batch-size", "2"))
EXTRACT = (*FLAT, "--features", "x7,dW8", "--precision", "float32")
IMAGES = 18


def command(*arguments: object) -> None:
    """`deepfish`, in this process."""
    sys.argv = ["deepfish", *map(str, arguments)]
    try:
        main()
    except SystemExit as stop:
        if stop.code:
            raise


def make_scenes(
    root: Path,
) -> tuple[list[Scene], Callable[[tuple[int, str] | None], list[int]]]:
    """All scenes, and what makes a process die at a write (see kill_points.count_writes)."""
    present = load_script("tests/extraction/kill_points.py")
    present.small_chunks()
    torch.set_num_threads(1)
    load.load_network = lambda *_, **__: present.network()
    first, then, data = root / "first", root / "then", root / "data"
    _draw(first, present.draw)
    _change(first, then, present.draw)
    for split in ("train", "test"):
        _draw(data / split, partial(_draw_other, present.draw, split))
    log = root / "log"
    with_store, with_model, many = (
        root / "with_store",
        root / "with_model",
        root / "many",
    )
    with_store.mkdir()
    _run(lambda: command("extract", first, with_store / "store", *EXTRACT), log)
    shutil.copytree(with_store, with_model)
    _run(lambda: _train(with_model, "x7"), log)
    _run(lambda: make_store(many / "store", 300), log)
    scenes = [
        Scene(
            "extract", None, partial(_extract, first), _usable_store, _store_state, 1
        ),
        Scene(
            "prune", with_store, partial(_prune, then), _usable_store, _store_state, 1
        ),
        Scene(
            "train",
            with_store,
            partial(_train, recipe="dW8"),
            _usable_model,
            _model_state,
        ),
        Scene(
            "retrain",
            with_model,
            partial(_train, recipe="dW8"),
            _usable_model,
            _model_state,
        ),
        Scene("index", many, _search, _usable_index, _index_state),
        Scene(
            "reproduce",
            None,
            partial(_reproduce, data),
            _usable_results,
            _results_state,
        ),
    ]
    return scenes, present.count_writes


def make_store(folder: Path, n: int, per_shard: int = 100) -> Store:
    """A store of made-up features, with an index row for each."""
    random = np.random.default_rng(0)
    settings = {
        "network": "toy",
        "layers": {"7": "a", "8": "b"},
        "tau": 2.0,
        "label": "uniform",
    }
    settings |= {
        "weights_sha256": "0" * 64,
        "compute_dtype": "float32",
        "views": "centre",
    }
    settings |= {
        "head": "softmax",
        "scores": "",
        "source": {"kind": "python", "files": {}},
    }
    settings["preprocess"] = {
        "size": 8,
        "short_side": 8,
        "mean": [0.0] * 3,
        "std": [1.0] * 3,
    }
    store = Store(folder, settings, "float32")
    keys = [hashlib.sha256(str(i).encode()).hexdigest() for i in range(n)]
    for start in range(0, n, per_shard):
        some = keys[start : start + per_shard]
        values = {
            f: random.normal(size=(len(some), d)) for f, d in (("x7", 9), ("delta8", 7))
        }
        store.append(some, values)
    store.append([], {}, {"e" * 64: "image cannot be decoded: broken.jpg"})
    there = {"status": "ok", "factors": ("delta8", "x7")}
    rows = [
        Row(f"{'ab'[i % 2]}/{i:03d}.jpg", f"p/{i:03d}.jpg", key, **there)
        for i, key in enumerate(keys)
    ]
    broken = Row(
        "a/broken.jpg",
        "p/broken.jpg",
        "e" * 64,
        status="error",
        error="cannot be decoded",
    )
    store.write_rows([*rows, broken])
    return store


def _draw(folder: Path, draw: Callable[[Path, int], None]) -> None:
    """Two classes; one image is broken, one is there twice."""
    for name in "ab":
        (folder / name).mkdir(parents=True)
    for i in range(IMAGES):
        draw(folder / "ab"[i % 2] / f"{i:02d}.png", i)
    if folder.name == "first":
        (folder / "b/03.png").write_bytes(b"broken")
        (folder / "a/12.png").write_bytes((folder / "b/05.png").read_bytes())


def _draw_other(
    draw: Callable[[Path, int], None], split: str, path: Path, seed: int
) -> None:
    draw(path, seed + (1000 if split == "test" else 2000))


def _change(first: Path, then: Path, draw: Callable[[Path, int], None]) -> None:
    """Some images are gone, one has changed, one is mended, one is new."""
    shutil.copytree(first, then)
    for name in ("b/01.png", "a/02.png", "b/17.png"):
        (then / name).unlink()
    draw(then / "b/07.png", 100)
    draw(then / "b/03.png", 101)
    draw(then / "b/99.png", 102)


def _run(work: Callable[[], object], log: Path) -> None:
    if ended(fork(work, log)):
        raise SystemExit(f"a scene cannot be set up:\n{log.read_text()[-2000:]}")


def _extract(pictures: Path, folder: Path) -> None:
    command("extract", pictures, folder / "store", *EXTRACT)


def _prune(pictures: Path, folder: Path) -> None:
    command("extract", pictures, folder / "store", *EXTRACT, "--prune")


def _train(folder: Path, recipe: str) -> None:
    command("train", folder / "store", folder / "model", "--features", recipe)


def _search(folder: Path) -> None:
    command(
        "search",
        folder / "store",
        "a/000.jpg",
        "--features",
        "dW8",
        "--index",
        "--json",
    )


def _reproduce(data: Path, folder: Path) -> None:
    command(
        *(
            "reproduce",
            "folder",
            "--data",
            data,
            "--out",
            folder / "out",
            "--features",
            "x7,dW8",
        ),
        *("--weights", "random", "--json"),
    )


def _bits(store: Store, row: Row) -> dict[str, str]:
    """A hash of each of an image's features, by content and factor."""
    keys = [str(row.sha256)]
    return {
        f"{keys[0]} {factor}": hashlib.sha256(
            store.read(keys, factor).tobytes()
        ).hexdigest()
        for factor in row.factors
    }


def _store_state(folder: Path) -> dict[str, Any]:
    store = Store.open(folder / "store")
    rows = store.rows().values()
    return {
        "rows": list(map(str, rows)),
        "bits": {
            name: bits for row in rows for name, bits in _bits(store, row).items()
        },
        "features": {
            name: sorted(store.shards(name).keys()) for name in store.factors()
        },
        "problems": verify(store),
    }


def _usable_store(folder: Path, whole: list[Any]) -> list[str]:
    """A killed store opens, and what it says that it has is there, and right."""
    if not (folder / "store/store.json").exists():
        return []
    store = Store.open(folder / "store")
    known = {name: bits for one in whole for name, bits in one["bits"].items()}
    return [
        f"{row.id}: {name} is another one"
        for row in store.rows().values()
        if row.status == "ok"
        for name, bits in _bits(store, row).items()
        if known.get(name) != bits
    ]


def _model_state(folder: Path) -> Any:
    if not (folder / "model/model.json").exists():
        return None
    model = Model.load(folder / "model")
    numbers = [model.svm.dual, model.svm.bias, *model.support.values()]
    return {
        "recipe": model.recipe,
        "numbers": [hashlib.sha256(n.tobytes()).hexdigest() for n in numbers],
        "files": sorted(path.name for path in (folder / "model").iterdir()),
    }


def _usable_model(folder: Path, whole: list[Any]) -> list[str]:
    """None, the old one or the new one."""
    found = _model_state(folder)
    numbers = [one and one["numbers"] for one in whole]
    if found is None or found["numbers"] in numbers:
        return []
    return ["the model is neither the old one nor the new one"]


def _index_state(folder: Path) -> dict[str, Any]:
    store = Store.open(folder / "store")
    told: list[str] = []
    searcher = Searcher(store, "dW8", "index", notice=told.append)
    hits = {
        id_: [
            (hit.id, hit.score)
            for hit in searcher.search(id_, candidates=300, probes=99)
        ]
        for id_ in ("a/000.jpg", "b/111.jpg", "b/299.jpg")
    }
    files = sorted(path.suffix for path in (folder / "store/.index").glob("*/*"))
    return {"hits": hits, "files": files, "told": told, "problems": verify(store)}


def _usable_index(folder: Path, whole: list[Any]) -> list[str]:
    """Searching without it is not disturbed."""
    searcher = Searcher(folder / "store", "dW8", "exact")
    hits = [[hit.id, hit.score] for hit in searcher.search("a/000.jpg")]
    wanted = whole[-1]["hits"]["a/000.jpg"]
    return (
        []
        if [h[0] for h in hits] == [w[0] for w in wanted]
        else ["other hits without an index"]
    )


def _results_state(folder: Path) -> dict[str, Any]:
    results = Results(folder / "out")
    rows = [{k: v for k, v in row.items() if k != "seconds"} for row in results.rows]
    scores = [
        hashlib.sha256(results.scores(row)[0].tobytes()).hexdigest()
        for row in results.rows
    ]
    return {
        "rows": rows,
        "scores": scores,
        "report": (folder / "out/report.html").exists(),
    }


def _usable_results(folder: Path, whole: list[Any]) -> list[str]:
    """Every line is a whole row, with its scores."""
    if not (folder / "out").exists():
        return []
    found = _results_state(folder)
    good = whole[-1]
    pairs = list(zip(good["rows"], good["scores"], strict=True))
    return [
        f"a row of {row['feature']} is another one"
        for row, scores in zip(found["rows"], found["scores"], strict=True)
        if (row, scores) not in pairs
    ]

"""Single flipped bits, in every file that is read back, one at a time.

    python -m fire.flips FOLDER [--flips 300] [--seed 0] [TARGET ...]

A target is a file and what is done with it. With a bit flipped the result must be an error of one
line, or the result without the flip: a bit that decides nothing, such as a space in a JSON file.
Everything else is a find. Shards must be found by `deepfish store verify`, too, whatever the bit.
One JSON line a target.
"""

from __future__ import annotations

import argparse
import json
import random
import shutil
import traceback
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from deepfishing.errors import DeepFishingError
from deepfishing.extraction.settings import Settings
from deepfishing.learn.model import Model
from deepfishing.learn.training import train_model
from deepfishing.search import Searcher
from deepfishing.store import Store, shards
from deepfishing.store.check import verify

IDS = ("a/000.jpg", "b/021.jpg", "a/038.jpg")


@dataclass(frozen=True)
class Target:
    """A file, and what is read from it: a value that can be compared.

    `always` says that every flip must be told as an error or a problem.
    """

    name: str
    file: Path
    read: Callable[[], Any]
    always: bool = False


def make_targets(root: Path, n: int = 40) -> list[Target]:
    """A store of n images in two shards, its index and a model, each with its readers."""
    from fire.scenes import make_store

    folder = root / "store"
    store = make_store(folder, n, per_shard=n // 2)
    rows = [row for row in store.rows().values() if row.status == "ok"]
    keys = [str(row.sha256) for row in rows]
    Searcher(store, "dW8", "index")
    arrays = {factor: store.read(keys, factor) for factor in ("x7", "delta8")}
    labels = np.array(
        [[1, -1] if row.id[0] == "a" else [-1, 1] for row in rows], dtype=np.int8
    )
    settings = Settings.from_dict(store.settings)
    train_model("dW8", arrays, labels, ("a", "b"), settings=settings).save(
        root / "model"
    )

    def read() -> Any:
        opened = Store.open(folder)
        return [
            [str(row) for row in opened.rows().values()],
            opened.errors(),
            _read(opened, keys),
        ]

    def search(method: str) -> Any:
        told: list[str] = []
        searcher = Searcher(folder, "dW8", method, notice=told.append)
        return [
            (hit.id, hit.labels, hit.score, hit.forward, hit.backward)
            for id_ in IDS
            for hit in searcher.search(id_, k=n, candidates=n, probes=99)
        ]

    def problems() -> Any:
        return verify(Store.open(folder))

    def model() -> Any:
        loaded = Model.load(root / "model")
        scores = loaded.probabilities(arrays)
        facts = [
            loaded.recipe,
            loaded.classes,
            loaded.settings.as_dict(),
            dict(loaded.training),
        ]
        return [*facts, [str(loaded.svm.cost), str(loaded.svm.ap)], scores.tolist()]

    (x7, _), (error,) = (sorted((folder / name).iterdir()) for name in ("x7", "errors"))
    # the first is hashed whole in any case
    _, delta = sorted((folder / "delta8").iterdir())
    (facts,) = folder.glob(".index/*/index.json")
    (vectors,) = folder.glob(".index/*/vectors-*")
    (places,) = folder.glob(".index/*/arrays-*")
    exact, indexed = lambda: search("exact"), lambda: search("index")
    return [
        Target("shard, verified", x7, problems, always=True),
        Target("shard of errors, verified", error, problems, always=True),
        Target("shard, read to train", x7, read),
        Target("shard of errors, read", error, read),
        Target("shard, searched", delta, exact),
        Target("shard, searched by index", delta, indexed),
        Target("store.json", folder / "store.json", read),
        Target("index.parquet, read", folder / "index.parquet", read),
        Target("index.parquet, searched", folder / "index.parquet", exact),
        Target("model.safetensors", root / "model/model.safetensors", model),
        Target("model.json", root / "model/model.json", model),
        Target("search index: facts", facts, indexed),
        Target("search index: vectors", vectors, indexed),
        Target("search index: arrays", places, indexed),
    ]


def flip(target: Target, bit: int, expected: Any) -> tuple[str, str]:
    """What comes of one flipped bit: told, same, wrong or crash; and the words."""
    beside = {path: path.read_bytes() for path in _files(target)}
    changed = bytearray(beside[target.file])
    changed[bit // 8] ^= 1 << bit % 8
    target.file.write_bytes(changed)
    shards._digits.cache_clear()  # flips follow each other within a tick of the clock
    try:
        found = target.read()
    except DeepFishingError as error:
        return ("told", str(error)) if "\n" not in str(error) else ("crash", str(error))
    except Exception:  # whatever it is, it is a find
        return "crash", traceback.format_exc()[-600:]
    finally:
        for path in _files(target) - beside.keys():
            # an index that was made again has others
            path.unlink()
        for path, content in beside.items():
            path.write_bytes(content)
    if target.always:
        return ("told", str(found)) if found else ("wrong", "not found by verify")
    return ("same", "") if found == expected else ("wrong", str(found)[:300])


def run(target: Target, flips: int, seed: int) -> dict[str, Any]:
    """Flip bits of a file, spread over all of it; counts, and what was found."""
    chance = random.Random(f"{seed} {target.name}")
    bits = 8 * target.file.stat().st_size
    # one of each of as many regions of the same size, so that no part of a file is left out
    edges = [number * bits // flips for number in range(flips + 1)]
    chosen = [chance.randrange(a, b) if b > a else a for a, b in pairwise(edges)]
    counts: Counter[str] = Counter()
    finds = []
    expected = None if target.always else target.read()
    for bit in chosen:
        what, words = flip(target, bit, expected)
        counts[what] += 1
        if what in ("wrong", "crash"):
            finds.append({"bit": bit, "what": what, "words": words})
    return {
        "target": target.name,
        "flips": len(chosen),
        "bits": bits,
        **counts,
        "finds": finds,
    }


def _files(target: Target) -> set[Path]:
    return {path for path in target.file.parent.iterdir() if path.is_file()}


def _read(store: Store, keys: list[str]) -> Any:
    return [store.read(keys, factor).tolist() for factor in ("x7", "delta8")]


def main() -> None:
    """Flip bits of the targets."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("targets", nargs="*")
    parser.add_argument("--flips", type=int, default=300)
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_intermixed_args()
    root = given.folder.resolve() / "flips"
    root.mkdir(parents=True)
    for target in make_targets(root):
        if not given.targets or target.name in given.targets:
            print(json.dumps(run(target, given.flips, given.seed)), flush=True)
    shutil.rmtree(root)


if __name__ == "__main__":
    main()

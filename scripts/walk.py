"""Count the functions of the package that one photo passes in `deepfish extract`.

    python scripts/walk.py [--list]

Two counts: of a whole `extract_to`, which also reads the options, loads and checks the network and
starts an engine, and of `extract_to_store` for a photo when these are ready. Changes of file are
counted in the order of the first calls.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import threading
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from types import FrameType
from typing import Any

import deepfishing
from deepfishing.core.features import needed_factors
from deepfishing.core.recipes import parse_recipes
from deepfishing.extraction.pipeline import extract_to
from deepfishing.extraction.settings import Settings
from deepfishing.extraction.to_store import Local, extract_to_store
from deepfishing.images.published import load_groceries
from deepfishing.networks.load import load_network
from deepfishing.store import Store

ROOT = Path(deepfishing.__file__).parent
FEATURES = "x7,dW7,dW8"


def walk(work: Callable[[], object]) -> list[tuple[str, str]]:
    """Return file and name of each function of the package, in the order of the first calls."""
    found: dict[tuple[str, str], None] = {}

    def record(frame: FrameType, event: str, _: Any) -> None:
        file, name = frame.f_code.co_filename, frame.f_code.co_qualname
        is_comprehension = "<" in name.rpartition(".")[2]
        if event == "call" and Path(file).is_relative_to(ROOT) and not is_comprehension:
            found[str(Path(file).relative_to(ROOT)), name] = None

    threading.setprofile(record)
    sys.setprofile(record)
    try:
        work()
    finally:
        sys.setprofile(None)
        threading.setprofile(None)
    return list(found)


def summary(title: str, calls: list[tuple[str, str]]) -> str:
    """Return a line with the number of functions and of changes of file."""
    files = [file for file, _ in calls]
    changes = sum(a != b for a, b in pairwise(files))
    return f"{title:<28} {len(calls)} functions, {changes} changes of file"


def main() -> None:
    """Print the counts."""
    parser = argparse.ArgumentParser()
    parser.add_argument(
        "--list", action="store_true", help="also every function, in order"
    )
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as place:
        photos = [
            Path(p) for p in load_groceries(place, n_train=28, n_test=1).train.paths
        ]
        # makes the engine's model
        extract_to(Path(place, "first"), photos[:1], features=FEATURES)
        whole = walk(
            lambda: extract_to(Path(place, "whole"), photos[:1], features=FEATURES)
        )

        network = load_network("efficientnet-lite0")
        settings = Settings.from_network(network)
        factors = needed_factors(parse_recipes(FEATURES, network.layers))
        store, local = Store(Path(place, "ready"), settings.as_dict()), Local()
        options: dict[str, Any] = {
            "settings": settings,
            "network": network,
            "on": local,
        }
        extract_to_store(store, photos[:1], factors, **options)
        ready = walk(lambda: extract_to_store(store, photos[:2], factors, **options))
    if given.list:
        for file, name in ready:
            print(f"{file:<28} {name}")
    print(summary("a whole run", whole))
    print(summary("a photo, network is ready", ready))


if __name__ == "__main__":
    main()

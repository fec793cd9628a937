"""One target in a process of its own, guided by coverage: `python -m fuzz.child`.

Comes in: a target's name, how many inputs, a seed, a folder. Goes out, in that folder: `count`, the
inputs that were really run; `finds.jsonl`, one line per kind of find; the inputs behind them. A
find does not end the run. What ends the process, such as a segmentation fault, is seen by whoever
started it, and libFuzzer leaves the input behind.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import mmap
import os
import random
import struct
import sys
import tempfile
import traceback
import warnings
from collections.abc import Callable
from pathlib import Path

import atheris

from fuzz.mutate import Mutator
from fuzz.target import Run, Target

with atheris.instrument_imports(include=["deepfishing"]):
    from fuzz.rule import Watch, limit_memory

MEMORY = Path("/dev/shm")  # a folder that is no disk, where there is one
HANG = 60  # seconds after which libFuzzer ends the process


class Inputs:
    """Runs inputs, counts them and keeps what they find."""

    def __init__(self, run: Run, watch: Watch, most: int, folder: Path) -> None:
        self.run, self.watch, self.most, self.folder = run, watch, most, folder
        self.known = {
            json.loads(line)["kind"] for line in _lines(folder / "finds.jsonl")
        }
        with (folder / "count").open("r+b") as file:
            # is on disk even if the process dies
            self.count = mmap.mmap(file.fileno(), 8)

    def __call__(self, data: bytes) -> None:
        """One input; the last one ends the process."""
        done = struct.unpack("q", self.count)[0] + 1
        self.count[:] = struct.pack("q", done)
        try:
            self.watch.run(self.run, data)
        except Exception as error:  # whatever it is, it is a find
            self.keep(error, data)
        if done >= self.most:
            os._exit(0)

    def keep(self, error: Exception, data: bytes) -> None:
        """Note a find, unless one from the same line of code is known."""
        kind = kind_of(error)
        if kind in self.known:
            return
        self.known.add(kind)
        path = self.folder / f"find-{hashlib.sha256(kind.encode()).hexdigest()[:8]}"
        path.write_bytes(data)
        trace = "".join(traceback.format_exception(error))
        path.with_suffix(".txt").write_text(trace, errors="backslashreplace")
        fact = {"kind": kind, "error": repr(error)[:300], "input": path.name}
        with (self.folder / "finds.jsonl").open("a") as file:
            file.write(json.dumps(fact) + "\n")


def kind_of(error: BaseException) -> str:
    """Type and last line of the package: finds that agree in them are one."""
    frames = traceback.extract_tb(error.__traceback__)
    ours = [f for f in frames if f"{os.sep}deepfishing{os.sep}" in f.filename] or frames
    place = f"{Path(ours[-1].filename).name}:{ours[-1].lineno}" if ours else ""
    return f"{type(error).__name__} at {place}"


def fuzz(target: Target, most: int, seed: int, folder: Path, scratch: Path) -> None:
    """Run until there were enough inputs; does not return."""
    seeds = target.seeds()
    corpus = scratch / "corpus"
    corpus.mkdir()
    for number, data in enumerate(seeds):
        (corpus / f"{number:03d}").write_bytes(data)
    place = scratch / "place"
    place.mkdir()
    os.chdir(place)
    run = target.prepare(place)
    limit_memory()
    inputs = Inputs(run, Watch(place), most, folder)
    longest = max(4096, 2 * max(map(len, seeds)))
    options = [
        f"-seed={seed + 1}",
        f"-max_len={longest}",
        "-len_control=0",
        f"-timeout={HANG}",
    ]
    options += [
        "-rss_limit_mb=0",
        f"-artifact_prefix={folder}{os.sep}",
        "-print_funcs=0",
    ]
    atheris.Setup(
        [sys.argv[0], str(corpus), *options],
        inputs,
        custom_mutator=_mutator(target, seeds),
    )
    atheris.Fuzz()


def _mutator(target: Target, seeds: list[bytes]) -> Callable[[bytes, int, int], bytes]:
    ours = Mutator(target, seeds)

    def mutate(data: bytes, most: int, seed: int) -> bytes:
        rng = random.Random(seed)
        # libFuzzer keeps the shortest inputs that reach the same lines of the package, and does not
        # see what libraries do behind them, so that a sound input must be begun with again
        if rng.random() < 0.5:
            data = rng.choice(seeds)
        # libFuzzer's own changes know what the code compares inputs with
        changed = atheris.Mutate(data, most) if rng.random() < 0.3 else ours(data, rng)
        return bytes(changed[:most])

    return mutate


def _lines(path: Path) -> list[str]:
    return path.read_text().splitlines() if path.exists() else []


def main() -> None:
    """Read the arguments and run."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("name")
    parser.add_argument("inputs", type=int)
    parser.add_argument("seed", type=int)
    parser.add_argument("folder", type=Path)
    chosen = parser.parse_args()
    warnings.simplefilter("ignore")
    with atheris.instrument_imports(include=["deepfishing"]):
        from fuzz.targets import load

        target = load(chosen.name)
    parent = MEMORY if MEMORY.is_dir() else None
    # the process ends without a chance to tidy up; whoever started it removes the folder
    scratch = Path(tempfile.mkdtemp(prefix="scratch-", dir=parent))
    (chosen.folder / "scratch").write_text(str(scratch))
    fuzz(target, chosen.inputs, chosen.seed, chosen.folder.resolve(), scratch)


if __name__ == "__main__":
    main()

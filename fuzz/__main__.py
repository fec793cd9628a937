"""All targets, or some of them: `python -m fuzz [TARGET ...] [--inputs N] [--seed N]`.

Prints a table. What came of a target is kept in `results/fuzz/<target>/`, with the inputs that
found something; `--replay FILE` runs one of them again and shows what it does. Once all targets
were run with as many inputs and the same seed, RESULTS.md beside this file has their last runs: a
target that was mended can be run again alone. The exit code is 1 if there was a find.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import platform
import shutil
import struct
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import asdict, dataclass
from importlib.metadata import version
from pathlib import Path

from fuzz.targets import NAMES, load

RESULTS = Path(__file__).parent / "RESULTS.md"
KEPT = Path("results", "fuzz")
# begun with, so that none ends alone
SLOWEST = ("web-schema", "caffemodel", "search-index")
MOST_DEATHS = 20  # of a target's process, after which it is left alone
HEAD = """# Fuzzing

Made by `{command}` on {machine}; each line is the last run of its target.

An input is a find if it gives anything
but a value or a one-line error of the package: another exception, more than 5 s or 2 GB, a write
outside its folder, a program started, the end of the process. Inputs are mutated from sound ones,
guided by the coverage of the package (atheris); web-schema's are drawn by schemathesis.

| target | what is read | inputs | seconds | finds |
|---|---|---|---|---|
"""


@dataclass(frozen=True)
class Outcome:
    """What came of a target: inputs really run, wall-clock seconds, one line per find."""

    name: str
    seed: int
    inputs: int
    seconds: float
    finds: tuple[str, ...]

    def __str__(self) -> str:
        return f"{self.name:<18}{self.inputs:>12,}{self.seconds:>12.1f}{len(self.finds):>8}"


def run(name: str, inputs: int, seed: int, folder: Path) -> Outcome:
    """Fuzz one target in child processes: another one after each that died."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    (folder / "count").write_bytes(bytes(8))
    begin, deaths = time.monotonic(), []
    while (done := _count(folder)) < inputs and len(deaths) < MOST_DEATHS:
        code = _child(name, inputs, seed + len(deaths), folder)
        if code:
            deaths.append(
                f"the process ended with {code} after input {_count(folder):,}"
            )
        elif _count(folder) == done:
            deaths.append("the process ended without any input")
    lines = (
        (folder / "finds.jsonl").read_text()
        if (folder / "finds.jsonl").exists()
        else ""
    )
    facts = [json.loads(line) for line in lines.splitlines()]
    finds = [
        f"{fact['error'][:200]} ({fact['kind']}, {fact['input']})" for fact in facts
    ]
    seconds = round(time.monotonic() - begin, 1)
    outcome = Outcome(name, seed, _count(folder), seconds, (*finds, *deaths))
    (folder / "outcome.json").write_text(json.dumps(asdict(outcome), indent=1) + "\n")
    return outcome


def last(inputs: int, seed: int, kept: Path) -> list[Outcome]:
    """The last run of each target that had that many inputs from that seed."""
    paths = [kept / name / "outcome.json" for name in NAMES]
    facts = [json.loads(path.read_text()) for path in paths if path.exists()]
    outcomes = [Outcome(**{**fact, "finds": tuple(fact["finds"])}) for fact in facts]
    return [one for one in outcomes if (one.inputs, one.seed) == (inputs, seed)]


def _child(name: str, inputs: int, seed: int, folder: Path) -> int:
    arguments = [
        sys.executable,
        "-m",
        "fuzz.child",
        name,
        str(inputs),
        str(seed),
        str(folder),
    ]
    # one thread: targets run side by side; no order of a set may differ between two runs
    quiet = {
        "OMP_NUM_THREADS": "1",
        "PYTHONHASHSEED": "0",
        "PYTHONDONTWRITEBYTECODE": "1",
    }
    with (folder / "log.txt").open("ab") as log:
        code = subprocess.run(
            arguments, env={**os.environ, **quiet}, stdout=log, stderr=log, check=False
        ).returncode
    if (folder / "scratch").exists():
        shutil.rmtree((folder / "scratch").read_text(), ignore_errors=True)
        (folder / "scratch").unlink()
    return code


def _count(folder: Path) -> int:
    return int(struct.unpack("q", (folder / "count").read_bytes())[0])


def write_results(outcomes: list[Outcome], command: str) -> None:
    """The table as a page."""
    machine = f"{os.cpu_count()} cores, {platform.machine()}, Python {platform.python_version()}"
    machine += f", atheris {version('atheris')}, schemathesis {version('schemathesis')}"
    lines = [
        f"| {one.name} | {load(one.name).reads} | {one.inputs:,} | {one.seconds:.0f} | "
        f"{len(one.finds)} |\n"
        for one in outcomes
    ]
    found = [f"\n- {one.name}: {find}" for one in outcomes for find in one.finds]
    text = (
        HEAD.format(command=command, machine=machine) + "".join(lines) + "".join(found)
    )
    RESULTS.write_text(text.rstrip("\n") + "\n")


def replay(name: str, path: Path) -> None:
    """Run one input, in this process and without a net."""
    target = load(name)
    data = path.read_bytes()
    with tempfile.TemporaryDirectory() as scratch:
        target.prepare(Path(scratch))(data)
    print(f"{path}: a value, or an error of the package in one line")


def main() -> int:
    """Read the arguments, run, print."""
    parser = argparse.ArgumentParser(
        prog="python -m fuzz", description=__doc__.partition("\n")[0]
    )
    parser.add_argument("targets", nargs="*", metavar="TARGET", help=", ".join(NAMES))
    parser.add_argument("--inputs", type=int, default=100_000, help="per target")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--jobs", type=int, default=os.cpu_count() or 1, help="side by side"
    )
    parser.add_argument(
        "--replay", type=Path, metavar="FILE", help="run one input of one target"
    )
    chosen = parser.parse_args()
    if unknown := [name for name in chosen.targets if name not in NAMES]:
        parser.error(
            f"TARGET must be one of {', '.join(NAMES)}, got {', '.join(unknown)}"
        )
    if chosen.replay is not None:
        if len(chosen.targets) != 1:
            parser.error(f"--replay takes one TARGET, got {len(chosen.targets)}")
        replay(chosen.targets[0], chosen.replay)
        return 0
    if missing := [
        n for n in ("atheris", "schemathesis") if not importlib.util.find_spec(n)
    ]:
        parser.error(
            f"{' and '.join(missing)} must be installed; run `pip install -e '.[fuzz]'`"
        )
    names = chosen.targets or NAMES
    print(f"{'target':<18}{'inputs':>12}{'seconds':>12}{'finds':>8}", flush=True)
    outcomes: dict[str, Outcome] = {}
    with ThreadPoolExecutor(max(1, chosen.jobs)) as pool:
        started = [
            pool.submit(run, name, chosen.inputs, chosen.seed, KEPT.absolute() / name)
            for name in sorted(names, key=lambda name: name not in SLOWEST)
        ]
        for finished in as_completed(started):
            outcome = finished.result()
            print(outcome, flush=True)
            outcomes[outcome.name] = outcome
    for outcome in outcomes.values():
        for find in outcome.finds:
            print(f"{outcome.name}: {find}")
    every = last(chosen.inputs, chosen.seed, KEPT)
    if len(every) == len(NAMES):
        inputs = "" if chosen.inputs == 100_000 else f" --inputs {chosen.inputs}"
        write_results(every, f"python -m fuzz{inputs} --seed {chosen.seed}")
    return int(any(outcome.finds for outcome in outcomes.values()))


if __name__ == "__main__":
    sys.exit(main())

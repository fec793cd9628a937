"""How cost grows with the number of images, from a thousand to a million.

    python benchmarks/growth.py [--data VOCdevkit] [--fresh] [--most 1e6] [STAGE ...]

Every stage is run at every size in a process of its own, which gives seconds and its peak memory
(`growth_stages`). A point is a line of growth.jsonl; points that are there are not measured again,
so a run that was interrupted goes on. At last GROWTH.md and the plots are written (`growth_page`).
Takes half an hour on 2 cores, 8 GB of disk and 6 GB of memory.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from deepfishing.util.machine import describe

HERE = Path(__file__).parent
POINTS = HERE / "growth.jsonl"

DECADES = (1_000, 3_000, 10_000, 30_000, 100_000, 300_000, 1_000_000)
# stage -> sizes; those of one size are run one after the other, since they use the same store
SIZES = {
    "extract": DECADES[:3],
    "fill": DECADES,
    "read": DECADES,
    "kernel": (1_000, 2_000, 4_000, 8_000, 16_000),
    "project": DECADES,
    "linear": DECADES,
    "index": DECADES,
    "exact": DECADES,
}
ON_STORE = ("read", "project", "linear", "index", "exact")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("stages", nargs="*", metavar="STAGE", help=", ".join(SIZES))
    parser.add_argument(
        "--data", default="", help="VOCdevkit; without it the embedded photographs"
    )
    parser.add_argument("--most", type=float, default=DECADES[-1], help="images")
    parser.add_argument("--fresh", action="store_true", help="measure all points again")
    parser.add_argument(
        "--points", type=Path, default=POINTS, help="the file of points"
    )
    parser.add_argument(
        "--work", type=Path, help="folder for stores; a temporary one by default"
    )
    parser.add_argument(
        "--child", nargs=2, metavar=("STAGE", "N"), help=argparse.SUPPRESS
    )
    parser.add_argument("--page", action="store_true", help="only write the pages")
    given = parser.parse_args()
    if given.child:
        child(given.work, given.data, given.child[0], int(given.child[1]))
        return
    if unknown := set(given.stages) - set(SIZES):
        parser.error(f"STAGE must be one of {', '.join(SIZES)}, got {sorted(unknown)}")
    if given.fresh:
        given.points.unlink(missing_ok=True)
    if not given.page:
        chosen = given.stages or list(SIZES)
        with tempfile.TemporaryDirectory(prefix="growth-") as folder:
            measure(
                given.points,
                given.work or Path(folder),
                given.data,
                chosen,
                int(given.most),
            )
    from growth_page import write_pages

    if given.points == POINTS:
        write_pages(read_points(given.points))


def measure(points: Path, work: Path, data: str, stages: list[str], most: int) -> None:
    """Add the points that are not there yet, small ones first."""
    work.mkdir(parents=True, exist_ok=True)
    todo = missing(read_points(points), stages, most)
    if todo and not (work / "material.npz").exists():
        run_child(work, data, "material", 0)
    for n, stage in todo:
        if stage in ON_STORE and not (work / f"store-{n}" / ".labels.npy").exists():
            # measured before; here it only makes the store
            run_child(work, data, "fill", n)
        if stage == "linear" and not (work / f"store-{n}" / ".vectors.npy").exists():
            run_child(work, data, "project", n)
        started, load = time.monotonic(), os.getloadavg()[0]
        for name, point in run_child(work, data, stage, n).items():
            facts = {"load": round(load, 1), "data": "voc2007" if data else "groceries"}
            keep(points, {"group": stage, "stage": name, "n": n, **point, **facts})
        print(f"{stage} {n:,}: {time.monotonic() - started:.0f} s in all", flush=True)


def missing(points: list[dict], stages: list[str], most: int) -> list[tuple[int, str]]:
    """Sizes and stages that no point is of.

    >>> missing([{"group": "kernel", "n": 1000}], ["kernel"], 2000)
    [(2000, 'kernel')]
    """
    done = {(point["group"], point["n"]) for point in points}
    order = list(SIZES)
    wanted = {
        (n, stage)
        for stage in stages
        if stage in SIZES
        for n in SIZES[stage]
        if n <= most
    }
    left = [(n, stage) for n, stage in wanted if (stage, n) not in done]
    return sorted(left, key=lambda each: (each[0], order.index(each[1])))


def run_child(work: Path, data: str, stage: str, n: int) -> dict[str, dict]:
    command = [
        sys.executable,
        __file__,
        "--work",
        work,
        "--data",
        data,
        "--child",
        stage,
        str(n),
    ]
    ran = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    return json.loads(ran.stdout.splitlines()[-1])


def child(work: Path, data: str, stage: str, n: int) -> None:
    import growth_stages

    if stage == "material":
        growth_stages.make_material(work, data)
        print("{}")
        return
    print(json.dumps(growth_stages.STAGES[stage](work, data, n)))


def keep(points: Path, point: dict) -> None:
    with points.open("a") as file:
        file.write(json.dumps({**point, "machine": describe()}) + "\n")


def read_points(points: Path) -> list[dict]:
    if not points.exists():
        return []
    return [json.loads(line) for line in points.read_text().splitlines()]


if __name__ == "__main__":
    main()

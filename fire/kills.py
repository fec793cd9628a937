"""Kill -9 while a command works, go on, and compare with a run that was not killed.

    python -m fire.kills FOLDER [--kills 300] [--writes 60] [--seed 0] [SCENE ...]

A scene is a command in a folder. `--kills` of its runs die at a random moment from start to end,
`--writes` more before, half-way through or after a random one of its writes. After each death what
is on disk must be usable as it is (`between`); then the command runs again, and what it leaves must
equal what a run leaves that was not killed (`final`). Scenes other than `extract` and `prune` are
killed a fifth as often. One JSON line a death.
"""

from __future__ import annotations

import argparse
import json
import math
import random
import shutil
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fire.forks import FailedError, answer, ended, fork, kill_after

KILLED = -9


@dataclass(frozen=True)
class Scene:
    """A command that is killed.

    Parameters
    ----------
    name : str
    base : path or None
        What is in the folder before the command; None for an empty folder.
    run : callable
        The command, in a folder.
    between : callable
        After a kill, from the folder and what whole runs leave: what is wrong, one line each.
    final : callable
        What a folder holds, as JSON values.
    share : float
        How many of the kills that are asked for it takes.
    """

    name: str
    base: Path | None
    run: Callable[[Path], None]
    between: Callable[[Path, list[Any]], list[str]]
    final: Callable[[Path], Any]
    share: float = 0.2


def play(
    scene: Scene,
    folder: Path,
    kills: int,
    writes: int,
    dying: Callable[[tuple[int, str] | None], list[int]],
    seed: int,
) -> Iterator[dict[str, Any]]:
    """Kill a scene so many times; one line each."""
    chance = random.Random(f"{seed} {scene.name}")
    log = folder / "log"
    work = folder / "work"

    def fresh() -> None:
        shutil.rmtree(work, ignore_errors=True)
        if scene.base is None:
            work.mkdir(parents=True)
        else:
            shutil.copytree(scene.base, work)

    def at(point: tuple[int, str] | None) -> None:
        dying(point)
        scene.run(work)

    def count() -> int:
        calls = dying(None)
        scene.run(work)
        return calls[0]

    fresh()
    whole = [] if scene.base is None else [answer(lambda: scene.final(work), log)]
    fresh()
    start = time.monotonic()
    if code := ended(fork(lambda: scene.run(work), log)):
        raise SystemExit(f"{scene.name} ended with {code}:\n{log.read_text()[-2000:]}")
    seconds = time.monotonic() - start
    whole.append(answer(lambda: scene.final(work), log))
    fresh()
    points = [
        (n, when)
        for n in range(1, answer(count, log) + 1)
        for when in ("before", "half", "after")
    ]
    again = chance.choices(points, k=max(0, writes - len(points)))
    todo: list[Any] = [
        *chance.sample(points, min(writes, len(points))),
        *again,
        *[None] * kills,
    ]
    tries = 0
    while todo and tries < 4 * (kills + writes):
        tries += 1
        point = todo[0]
        fresh()
        if point is None:
            point = round(chance.uniform(0, 1.05 * seconds), 4)
            died = kill_after(fork(lambda: scene.run(work), log), point)
        else:
            died = ended(fork(lambda point=point: at(point), log))
        if died == 0:
            # it was quicker than the kill, or had fewer writes: that counts for nothing
            todo = todo[1:] if isinstance(point, tuple) else todo
            continue
        todo.pop(0)
        wrong = (
            [] if died == KILLED else [f"died with {died}: {log.read_text()[-300:]}"]
        )
        try:
            wrong += answer(lambda: scene.between(work, whole), log)
            if resumed := ended(fork(lambda: scene.run(work), log)):
                wrong.append(f"going on ended with {resumed}: {log.read_text()[-300:]}")
            elif answer(lambda: scene.final(work), log) != whole[-1]:
                wrong.append(
                    "what is left is not what a run leaves that was not killed"
                )
        except FailedError as error:
            wrong.append(str(error))
        yield {"scene": scene.name, "at": point, "wrong": wrong}


def main() -> None:
    """Play the scenes."""
    from fire.scenes import make_scenes

    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("scenes", nargs="*")
    parser.add_argument("--kills", type=int, default=300)
    parser.add_argument("--writes", type=int, default=60)
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_intermixed_args()
    given.folder.mkdir(parents=True, exist_ok=True)
    scenes, dying = make_scenes(given.folder.resolve())
    if unknown := set(given.scenes) - {scene.name for scene in scenes}:
        parser.error(
            f"SCENE must be one of {[s.name for s in scenes]}, got {sorted(unknown)}"
        )
    for scene in scenes:
        if not given.scenes or scene.name in given.scenes:
            place = given.folder.resolve() / scene.name
            place.mkdir(exist_ok=True)
            kills, writes = (
                math.ceil(n * scene.share) for n in (given.kills, given.writes)
            )
            for line in play(scene, place, kills, writes, dying, given.seed):
                print(json.dumps(line), flush=True)
            shutil.rmtree(place)


if __name__ == "__main__":
    main()

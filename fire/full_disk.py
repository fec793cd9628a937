"""A disk that is full, at every page that a command writes.

    python -m fire.full_disk FOLDER [SCENE ...]

A small file system in memory is mounted, which takes the right to do so; where there is none, one
line says so. The scenes of `fire.kills` run in it with room for 0, 1, 2 ... pages of 4 KiB. A run
must end well or with one line that begins with `deepfish:`; what is on disk must be usable; and
with room again the command must leave what it leaves on an empty disk. One JSON line a run.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from fire.forks import FailedError, answer, ended, fork
from fire.kills import Scene

PAGE = 4096
ROOMY = 64 << 20


def mount(place: Path, size: int, again: bool = False) -> str:
    """Mount a file system of so many bytes, or change its size; why not, if that fails."""
    options = f"{'remount,' if again else ''}size={size},mode=0700"
    ran = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", options, "tmpfs", place],
        capture_output=True,
        text=True,
        check=False,
    )
    return "" if ran.returncode == 0 else ran.stderr.strip() or "mount failed"


def unmount(place: Path) -> None:
    """Take it away again."""
    subprocess.run(["umount", place], check=True)


def play(scene: Scene, folder: Path) -> Iterator[dict[str, Any]]:
    """Run a scene with more and more room, until it ends well; a line each."""
    work, log = folder / "work", folder / "log"
    work.mkdir(parents=True)
    if why := mount(work, ROOMY):
        yield {"scene": scene.name, "skipped": why}
        return
    try:
        _fill(scene, work)
        whole = [] if scene.base is None else [answer(lambda: scene.final(work), log)]
        _fill(scene, work)
        if ended(fork(lambda: scene.run(work), log)):
            raise FailedError(f"{scene.name} failed: {log.read_text()[-500:]}")
        whole.append(answer(lambda: scene.final(work), log))
        for pages in range(100_000):
            _fill(scene, work)
            room = os.statvfs(work)
            used = (room.f_blocks - room.f_bfree) * room.f_frsize
            if why := mount(work, max(used + pages * PAGE, PAGE), again=True):
                raise FailedError(why)
            code = ended(fork(lambda: scene.run(work), log))
            said = log.read_text()
            wrong = _judge(code, said)
            try:
                wrong += answer(lambda: scene.between(work, whole), log)
                mount(work, ROOMY, again=True)
                if ended(fork(lambda: scene.run(work), log)):
                    wrong.append(f"going on failed: {log.read_text()[-300:]}")
                elif answer(lambda: scene.final(work), log) != whole[-1]:
                    wrong.append("what is left is not what a run leaves that had room")
            except FailedError as error:
                wrong.append(str(error))
            mount(work, ROOMY, again=True)
            yield {"scene": scene.name, "pages": pages, "code": code, "wrong": wrong}
            if code == 0 and "cannot be kept" not in said:
                # of an index: that is no failure
                return
    finally:
        unmount(work)


def _fill(scene: Scene, work: Path) -> None:
    """What is there before the command."""
    for path in work.iterdir():
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    if scene.base is not None:
        shutil.copytree(scene.base, work, dirs_exist_ok=True)


def _judge(code: int, said: str) -> list[str]:
    lines = [line for line in said.splitlines() if line.startswith("deepfish:")]
    if "Traceback" in said or code not in (0, 1) or (code == 1 and len(lines) != 1):
        return [f"ended with {code}: {said[-500:]}"]
    return []


def main() -> None:
    """Play the scenes."""
    from fire.scenes import make_scenes

    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("scenes", nargs="*")
    given = parser.parse_intermixed_args()
    root = given.folder.resolve()
    root.mkdir(parents=True, exist_ok=True)
    scenes, _ = make_scenes(root)
    for scene in scenes:
        if not given.scenes or scene.name in given.scenes:
            for line in play(scene, root / f"full-{scene.name}"):
                print(json.dumps(line), flush=True)


if __name__ == "__main__":
    main()

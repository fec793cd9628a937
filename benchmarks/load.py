"""Minutes of mixed load on `deepfish serve`: what it answers, how soon, and whether it grows.

    python benchmarks/load.py [--minutes 10] [--requests 0] [--clients 8] [--images 200]
        [--out FILE] [--json]

A store of the embedded photographs is made in a temporary folder and served by a process of its
own, which tells what it has in use (`watched.py`).
Clients (`visitors.py`) search by id and by new photos, look at thumbnails, filter by label and
text, plot, and send requests that are broken or torn off in the middle. At the end the server gets
Ctrl-C while they go on. The page goes to LOAD.md; the exit code is 1 if an answer was not the
expected one or did not come, if open files, threads or memory grew, or if Ctrl-C was more than the
end.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import platform
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import httpx
import numpy as np
from scipy import stats
from visitors import (
    SECONDS,
    UPLOAD,
    Shown,
    Visitor,
    ask_everything,
    open_socket,
    photos,
    visitors,
)

from deepfishing.images.published import load_groceries

OUT = Path(__file__).parent / "LOAD.md"
WATCHED = Path(__file__).parent / "watched.py"
DEEPFISH = [sys.executable, "-c", "from deepfishing.cli import main; main()"]
# of the same load before anything counts, so that heaps have their size
WARM_SECONDS = 60.0
# by which pools and caches may differ
SLACK = {"files": 8, "threads": 8, "blocks": 3000}
BLOCKS = 10  # of time, for the slope of the memory
GROWTH = 0.02  # of the memory in the whole run: what is surely more than this is a leak
MOMENTS = ("before", "after")
PAGE = """# Load on the page

Made by `python benchmarks/load.py --minutes {minutes:g} --clients {clients} --images {images}` on
{machine}, load average {load:.1f} when it began. The server and its {clients} clients, which take
no pauses, share the cores.

{requests:,} requests in {minutes:g} minutes: {failed} got another answer than expected, a 5xx or
else, and {dropped} got none. {torn:,} more were torn off by the client on purpose.

| kind | requests | median ms | 95 % ms | 99 % ms |
|---|---|---|---|---|
{rows}
| | at the start | highest | at the end |
|---|---|---|---|
| resident memory, MB | {memory_start:.0f} | {memory_highest:.0f} | {memory_end:.0f} |
| memory in use, MB | {in_use_before} | | {in_use_after} |
| memory in use by Python, blocks | {blocks_before:,} | | {blocks_after:,} |
| open files | {files_before} | {files_highest} | {files_after} |
| threads | {threads_before} | {threads_highest} | {threads_after} |

All of it is after {warm:.0f} s of the same load. Memory in use is what the C library and Python
have given out and not got back; it, files and threads are counted when all clients have gone,
before and after. Resident memory also has what was freed and is kept for later: at the start the
mean of the {block:.0f} s after the first {since:.0f} s, at the end that of the last {block:.0f} s.
In between it changes by {slope:+.1f} MB an hour, 95 % interval {slope_low:+.1f} to
{slope_high:+.1f} (least squares on the means of {blocks} blocks of time): {verdict}.

Ctrl-C while all clients went on, beside four uploads that were stuck in the middle, ended the
server in {end_seconds:.1f} s with exit code {end_code}; it printed {end_printed}.
"""


@dataclass(frozen=True)
class Sample:
    """A process at a moment: seconds since the start, bytes, open files, threads."""

    seconds: float
    memory: int
    files: int
    threads: int


def look(pid: int, start: float) -> Sample:
    status = Path(f"/proc/{pid}/status").read_text()
    memory, threads = (
        int(re.search(rf"{k}:\s*(\d+)", status)[1]) for k in ("VmRSS", "Threads")
    )
    files = len(list(Path(f"/proc/{pid}/fd").iterdir()))
    return Sample(time.monotonic() - start, memory * 1024, files, threads)


def settled(pid: int, seconds: float = 2.0) -> Sample:
    """A quiet moment: nothing was opened or closed for so long, or that never comes."""
    start = time.monotonic()
    seen = [look(pid, start)]
    while seen[-1].seconds < 10 * seconds:
        time.sleep(0.1)
        seen.append(look(pid, start))
        late = [one for one in seen if one.seconds >= seen[-1].seconds - seconds]
        if (
            len({(one.files, one.threads) for one in late}) == 1
            and seen[-1].seconds > seconds
        ):
            break
    return seen[-1]


def slope(
    samples: Sequence[Sample], since: float
) -> tuple[list[float], float, float, float]:
    """Means of the memory in blocks of time, its change a second, and the 95 % interval of that.

    Neighbouring seconds are not independent, so it is the means that a line is fitted to.
    """
    late = [one for one in samples if one.seconds >= since]
    blocks = np.array_split(np.arange(len(late)), BLOCKS)
    seconds = [float(np.mean([late[i].seconds for i in block])) for block in blocks]
    memory = [float(np.mean([late[i].memory for i in block])) for block in blocks]
    fit = stats.linregress(seconds, memory)
    half = stats.t.ppf(0.975, BLOCKS - 2) * fit.stderr
    return memory, float(fit.slope), float(fit.slope - half), float(fit.slope + half)


@dataclass(frozen=True)
class Serving:
    """A server of photographs: its process, its address, its files, what can be asked of it."""

    process: subprocess.Popen[str]
    url: str
    printed: Path
    in_use: Path  # written by `watched.py`
    shown: Shown

    def quiet(self) -> dict[str, Any]:
        """The process when nothing happens, and what it has in use then."""
        sample = settled(self.process.pid)
        self.in_use.unlink(missing_ok=True)
        self.process.send_signal(signal.SIGUSR1)
        start = time.monotonic()
        while not self.in_use.exists() and time.monotonic() - start < SECONDS:
            time.sleep(0.1)
        return {**asdict(sample), **json.loads(self.in_use.read_text())}


@contextmanager
def serve_photographs(folder: Path, images: int) -> Iterator[Serving]:
    data = load_groceries(folder, n_train=images // 2, n_test=images - images // 2)
    table = folder / "photographs.csv"
    rows = [
        f"{path},{path.parent.name}\n" for path in (*data.train.paths, *data.test.paths)
    ]
    table.write_text("path,label\n" + "".join(rows))
    store, printed, in_use = folder / "store", folder / "printed", folder / "in_use"
    extract = [*DEEPFISH, "extract", str(table), str(store), "--features", "x7,dW8,dW7"]
    subprocess.run(extract, check=True, capture_output=True)
    command = [
        sys.executable,
        str(WATCHED),
        str(in_use),
        "serve",
        str(store),
        "--port=0",
    ]
    with (
        printed.open("w") as errors,  # a pipe that nobody reads would be full one day
        subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=errors, text=True
        ) as process,
    ):
        try:
            process.stdout.readline()
            url = process.stdout.readline().strip()
            yield Serving(process, url, printed, in_use, what_is_shown(url))
        finally:
            process.kill()


def what_is_shown(url: str) -> Shown:
    with httpx.Client(base_url=url, timeout=SECONDS) as client:
        facts = client.get("/api/store").json()
        listed = client.get("/api/images", params={"limit": 500}).json()["images"]
    recipes = [facts["gradient"][0], *facts["forward"], *facts["gradient"][1:]]
    ids, labels = (
        [one["id"] for one in listed],
        [one["name"] for one in facts["labels"]],
    )
    return Shown(ids, labels, recipes, photos())


def interrupt(serving: Serving, clients: int) -> dict[str, Any]:
    """Ctrl-C in the middle of everything: seconds until the end, exit code, what was printed."""
    with contextlib.ExitStack() as stack:
        for _ in range(4):
            stack.enter_context(open_socket(serving.url)).sendall(UPLOAD)
        stack.enter_context(visitors(serving.url, clients, serving.shown, seed=2))
        time.sleep(1)
        before = serving.printed.stat().st_size
        start = time.monotonic()
        serving.process.send_signal(signal.SIGINT)
        out, _ = serving.process.communicate(timeout=SECONDS)
        seconds = time.monotonic() - start
    # what the clients saw of the end is no error of the server
    printed = out + serving.printed.read_text()[before:]
    return {
        "end_seconds": seconds,
        "end_code": serving.process.returncode,
        "end_printed": printed,
    }


def measure(seconds: float, requests: int, clients: int, images: int) -> dict[str, Any]:
    """All that the page says, as plain values; of so many seconds and requests, or more."""
    load, warm = os.getloadavg()[0], min(WARM_SECONDS, seconds / 4)
    with (
        tempfile.TemporaryDirectory() as folder,
        serve_photographs(Path(folder), images) as serving,
    ):
        pid, url, shown = serving.process.pid, serving.url, serving.shown
        ask_everything(url, shown)
        with visitors(url, clients, shown, seed=0):
            time.sleep(warm)
        before = serving.quiet()
        samples: list[Sample] = []
        start = time.monotonic()
        with visitors(url, clients, shown, seed=1) as made:
            while (
                time.monotonic() - start < seconds
                or sum(map(answered, made)) < requests
            ):
                time.sleep(min(1.0, seconds / 40))
                samples.append(look(pid, start))
        after = serving.quiet()
        ended = interrupt(serving, clients)
    since = min(60.0, seconds / 4)
    memory, rate, low, high = slope(samples, since)
    times: dict[str, list[float]] = defaultdict(list)
    for visitor in made:
        for kind, values in visitor.times.items():
            times[kind] += values
    dropped = [line for one in made for line in one.dropped]
    return {
        "minutes": seconds / 60,
        "clients": clients,
        "images": images,
        "machine": f"{os.cpu_count()} cores, {platform.machine()}",
        "load": load,
        "requests": sum(map(len, times.values())) + len(dropped),
        "failed": [line for one in made for line in one.failed],
        "dropped": dropped,
        "torn": sum(one.torn for one in made),
        "times": {kind: quantiles(times[kind]) for kind in sorted(times)},
        "warm": warm,
        "since": since,
        "block": (seconds - since) / BLOCKS,
        "memory": memory,
        "memory_highest": max(one.memory for one in samples),
        "slope": rate,
        "slope_low": low,
        "slope_high": high,
        "memory_grows": low * (seconds - since) > GROWTH * memory[0],
        "before": before,
        "after": after,
        "files_highest": max(one.files for one in samples),
        "threads_highest": max(one.threads for one in samples),
        **ended,
    }


def answered(visitor: Visitor) -> int:
    return sum(map(len, list(visitor.times.values())))


def quantiles(seconds: Sequence[float]) -> dict[str, float]:
    middle, slow, slowest = (np.quantile(seconds, [0.5, 0.95, 0.99]) * 1000).tolist()
    return {"requests": len(seconds), "p50": middle, "p95": slow, "p99": slowest}


def problems(facts: dict[str, Any]) -> list[str]:
    """What must not be, one line each."""
    found = [*facts["failed"], *facts["dropped"]]
    before, after = (facts[when] for when in MOMENTS)
    allowed = {what: before[what] + slack for what, slack in SLACK.items()}
    if before["bytes"]:
        allowed["bytes"] = before["bytes"] * (1 + GROWTH)
    for what, most in allowed.items():
        if after[what] > most:
            found.append(f"{what} grew: {before[what]} to {after[what]}")
    if facts["memory_grows"]:
        found.append(
            f"memory grows by {facts['slope_low'] * 3600 / 1e6:.0f} MB an hour or more"
        )
    if facts["end_code"] or facts["end_printed"]:
        found.append(
            f"Ctrl-C: exit code {facts['end_code']}, printed {facts['end_printed']!r}"
        )
    return found


def write_page(facts: dict[str, Any]) -> str:
    rows = "".join(
        f"| {kind} | {q['requests']:,} | {q['p50']:.1f} | {q['p95']:.1f} | {q['p99']:.1f} |\n"
        for kind, q in facts["times"].items()
    )
    memory = [facts["memory"][0], facts["memory_highest"], facts["memory"][-1]]
    names = ("memory_start", "memory_highest", "memory_end")
    more = {
        **{name: value / 1e6 for name, value in zip(names, memory, strict=True)},
        **{
            name: facts[name] * 3600 / 1e6
            for name in ("slope", "slope_low", "slope_high")
        },
        **{f"{what}_{when}": facts[when][what] for what in SLACK for when in MOMENTS},
        **{f"in_use_{when}": in_megabytes(facts[when]["bytes"]) for when in MOMENTS},
        **{name: len(facts[name]) for name in ("failed", "dropped")},
        "rows": rows,
        "blocks": BLOCKS,
        "verdict": verdict(facts),
        "end_printed": "something" if facts["end_printed"] else "nothing",
    }
    return PAGE.format_map({**facts, **more})


def in_megabytes(n: int | None) -> str:
    return "not told by this C library" if n is None else f"{n / 1e6:.1f}"


def verdict(facts: dict[str, Any]) -> str:
    if facts["memory_grows"]:
        return "it grows"
    if facts["slope_low"] > 0:
        grown = facts["slope"] * (60 * facts["minutes"] - facts["since"]) / 1e6
        return f"it grew by {grown:.0f} MB in this run"
    return "it falls" if facts["slope_high"] < 0 else "no growth was found"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument(
        "--requests", type=int, default=0, help="go on until there were so many"
    )
    parser.add_argument("--clients", type=int, default=8)
    parser.add_argument("--images", type=int, default=200)
    parser.add_argument("--out", type=Path, default=OUT)
    parser.add_argument("--json", action="store_true", help="print all figures as JSON")
    given = parser.parse_args()
    facts = measure(60 * given.minutes, given.requests, given.clients, given.images)
    given.out.write_text(write_page(facts))
    print(json.dumps(facts) if given.json else write_page(facts))
    for line in (found := problems(facts))[:20]:
        print(line, file=sys.stderr)
    sys.exit(1 if found else 0)


if __name__ == "__main__":
    main()

"""The studio on a large collection: first screen, memory, learning after a label, the map's frames.

    python benchmarks/studio_scale.py --features STORE --rows 100000 [--work DIR] [--out FILE]
        [--label-pool] [--map]

Real features of a store are drawn with replacement and changed by about 30 %, as in `search.py`.
Up to `MAX_FILES` rows get a small photo of their own, a re-sized one of the store's with a number
behind its end; larger stores have rows without files, so that thumbnails are not in their figures,
and embeddings of `SHORT` numbers.
The server is a process of its own, the browser a Chromium without a window, which draws in
software. `--label-pool` and `--map` do the work that is done once per collection, too.
"""

from __future__ import annotations

import argparse
import hashlib
import io
import json
import os
import platform
import re
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import psutil
from PIL import Image
from playwright.sync_api import Page, sync_playwright

from deepfishing.core.rank_one import Array
from deepfishing.extraction.to_store import SHARD_IMAGES
from deepfishing.store import Row, Store
from deepfishing.store.contents import Contents
from deepfishing.store.precision import DEFAULT as PRECISION
from search import BLOCK, resampled

MAX_FILES = 200_000
SHORT = 256  # numbers of an embedding in larger stores, as that of a smaller network
SIDE = 128  # pixels of the photos that are repeated
PHOTOS = 500  # different ones
CLASSES = 10
LABELS = 100  # photos that are labelled before the times of learning are measured
REPEATS = 10
FRAMES = 20
VIEWPORT = {"width": 1280, "height": 860}
SECONDS = 1800

# Draws a map of n random points, each frame moved a little, and waits for the last pixel.
FRAME_TIMES = """async ([n, renderer, frames]) => {
  const { MapCanvas } = await import("/static/map_canvas.js");
  const canvas = document.createElement("canvas");
  canvas.style.cssText = "position: fixed; inset: 0; width: 930px; height: 590px";
  document.body.append(canvas);
  const chart = new MapCanvas(canvas, { renderer });
  const places = new Uint16Array(2 * n).map(() => 65536 * (Math.random() + Math.random()) / 2);
  chart.resize();
  chart.setPoints(places);
  const palette = new Uint8Array(1024).map((_, at) => (at % 4 === 3 ? 235 : 37 * at));
  chart.setCodes(new Uint8Array(n).map((_, at) => at % 25), palette);
  const pixel = new Uint8Array(4);
  const times = [];
  for (let frame = 0; frame < frames; frame += 1) {
    const start = performance.now();
    chart.pan(3, 2);
    chart.draw();
    const gl = chart.painter.gl;
    if (gl) gl.readPixels(0, 0, 1, 1, gl.RGBA, gl.UNSIGNED_BYTE, pixel);
    else chart.painter.context.getImageData(0, 0, 1, 1);
    times.push(performance.now() - start);
  }
  canvas.remove();
  return [chart.painter.name, times.sort((a, b) => a - b)[frames >> 1]];
}"""


def make_store(folder: Path, source: Store, rows: int) -> None:
    """Write a store of so many rows; one that is there stays."""
    if (folder / "index.parquet").exists():
        return
    held = ("x7", "delta8") if rows <= MAX_FILES else ("x7",)
    contents = Contents.of(source, held)
    real = contents.read(np.arange(min(len(contents), 10_000)), held)
    if rows > MAX_FILES:
        axes = np.random.default_rng(0).normal(size=(real["x7"].shape[1], SHORT))
        real["x7"] = (real["x7"] @ axes).astype(np.float32)
    photos = small_photos(source) if rows <= MAX_FILES else []
    images = folder.parent / f"{folder.name}-photos"
    store = Store(folder, source.settings, PRECISION)
    index = []
    for start, (keys, factors) in zip(
        range(0, rows, BLOCK), resampled(real, rows, 0), strict=False
    ):
        if photos:
            keys = write_photos(images, photos, start, len(keys))
        append(store, keys, factors)
        for number, key in enumerate(keys, start):
            index.append(
                Row(name_of(number), str(images / name_of(number)), key, factors=held)
            )
        print(f"\r{start + len(keys):,} of {rows:,} rows", end="", file=sys.stderr)
    store.write_rows(index)


def append(store: Store, keys: Sequence[str], factors: dict[str, Array]) -> None:
    """Write features in files as `deepfish extract` makes them."""
    for start in range(0, len(keys), SHARD_IMAGES):
        some = slice(start, start + SHARD_IMAGES)
        store.append(
            keys[some], {name: values[some] for name, values in factors.items()}
        )


def small_photos(source: Store) -> list[bytes]:
    """Some photos of a store, re-sized."""
    found = []
    for row in list(source.rows().values())[:PHOTOS]:
        with Image.open(row.path) as photo:
            small = photo.convert("RGB").resize((SIDE, SIDE))
        made = io.BytesIO()
        small.save(made, "JPEG", quality=70)
        found.append(made.getvalue())
    return found


def write_photos(
    folder: Path, photos: Sequence[bytes], start: int, n: int
) -> list[str]:
    """Write photos, each with its number behind its end; return their hashes."""
    keys = []
    for number in range(start, start + n):
        content = photos[number % len(photos)] + number.to_bytes(8, "big")
        path = folder / name_of(number)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
        keys.append(hashlib.sha256(content).hexdigest())
    return keys


def name_of(number: int) -> str:
    """Return the id of a row."""
    return f"{number // 1000:04d}/{number:07d}.jpg"


class Server:
    """A server in a process of its own, and the most memory that it had."""

    def __init__(self, store: Path) -> None:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = probe.getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}"
        begin = time.perf_counter()
        run = "from deepfishing.cli import main; main()"
        command = [
            sys.executable,
            "-c",
            run,
            "serve",
            str(store),
            "--port",
            str(self.port),
        ]
        self.process = subprocess.Popen(command, stderr=sys.stderr)
        while True:
            try:
                httpx.get(f"{self.url}/api/store", timeout=SECONDS)
                break
            except httpx.TransportError:
                if (
                    self.process.poll() is not None
                    or time.perf_counter() - begin > SECONDS
                ):
                    raise SystemExit("the server did not start") from None
                time.sleep(0.05)
        self.seconds = time.perf_counter() - begin
        self.client = httpx.Client(base_url=self.url, timeout=SECONDS)
        self.most = 0
        self._ended = threading.Event()
        threading.Thread(target=self._watch, daemon=True).start()

    def _watch(self) -> None:
        watched = psutil.Process(self.process.pid)
        while not self._ended.wait(0.05):
            try:
                self.most = max(self.most, watched.memory_info().rss)
            except psutil.NoSuchProcess:
                return

    def end(self) -> None:
        """Stop the server."""
        self._ended.set()
        self.process.terminate()
        self.process.wait(60)

    def work(self, name: str, path: str = "") -> float:
        """Do a job and return how long it took."""
        begin = time.perf_counter()
        if path:
            self.client.post(path, json={}).raise_for_status()
        while True:
            job = self.client.get("/api/jobs", params={"name": name}).json()
            if job["state"] != "running":
                break
            time.sleep(0.2)
        if job["state"] != "done":
            raise SystemExit(f"{name}: {job}")
        return time.perf_counter() - begin


def median_ms(call: Any, repeats: int = REPEATS) -> float:
    """Median milliseconds of a call."""
    times = []
    for number in range(repeats):
        begin = time.perf_counter()
        call(number)
        times.append(1000 * (time.perf_counter() - begin))
    return float(np.median(times))


def first_screen(page: Page, url: str) -> float:
    """Seconds from the address to the first pictures, or the first cards where there are none."""
    begin = time.perf_counter()
    page.goto(url)
    page.wait_for_selector("#grid .card[data-id]")
    page.wait_for_function(
        "() => { const all = [...document.querySelectorAll('#grid .card .shot')];"
        " const on = all.filter(s => s.getBoundingClientRect().top < innerHeight);"
        " return on.length && on.every(s => s.matches('.loaded, .gone')); }"
    )
    return time.perf_counter() - begin


def jump(page: Page, share: float) -> float:
    """Milliseconds until cards are shown after a jump down the page."""
    begin = time.perf_counter()
    page.evaluate(
        "share => scrollTo(0, share * (document.documentElement.scrollHeight - innerHeight))",
        share,
    )
    page.wait_for_function(
        "() => [...document.querySelectorAll('#grid .card[data-id]')].some(c => {"
        " const b = c.getBoundingClientRect(); return b.top >= 0 && b.bottom <= innerHeight; })"
    )
    return 1000 * (time.perf_counter() - begin)


def learn(server: Server, rows: int) -> tuple[float, float]:
    """Median milliseconds from a label to what was learned from it, and mean processor time."""
    random = np.random.default_rng(0)
    ids = [
        name_of(int(number)) for number in random.permutation(rows)[: LABELS + REPEATS]
    ]

    def learned() -> dict[str, Any]:
        return dict(server.client.get("/api/labels/learned").json())

    def label(number: int) -> None:
        asked = {"ids": [ids[number]], "labels": [f"class {number % CLASSES}"]}
        server.client.post("/api/labels", json=asked).raise_for_status()

    for number in range(LABELS):
        label(number)

    def timed(number: int) -> None:
        label(LABELS + number)
        begin = time.perf_counter()
        while time.perf_counter() - begin < SECONDS:
            state = learned()
            if state.get("learned") == state["version"]:
                return
            time.sleep(0.01)

    timed(-1)
    watched = psutil.Process(server.process.pid)
    time.sleep(3.0)
    before = watched.cpu_times()
    wall = median_ms(timed)
    time.sleep(3.0)  # the curve comes later
    after = watched.cpu_times()
    processor = after.user + after.system - before.user - before.system
    return wall, 1000 * processor / REPEATS


@contextmanager
def chromium() -> Iterator[Page]:
    """A tab of a browser without a window."""
    path = os.environ.get("CHROMIUM") or shutil.which("chromium")
    with sync_playwright() as play:
        browser = play.chromium.launch(executable_path=path, args=["--no-sandbox"])
        page = browser.new_page(viewport=VIEWPORT)
        page.set_default_timeout(1000 * SECONDS)
        yield page
        browser.close()


def measure(store: Path, rows: int, with_pool: bool, with_map: bool) -> dict[str, Any]:
    """All figures of a store."""
    found: dict[str, Any] = {"rows": rows}
    (store / "labels.jsonl").unlink(missing_ok=True)  # of a run before
    server = Server(store)
    try:
        found["server start, s"] = server.seconds
        with chromium() as page:
            found["first screen, s"] = first_screen(page, server.url)
            found["jump to the middle, ms"] = jump(page, 0.5)
            found["jump to the end, ms"] = jump(page, 1.0)
            by = server.client.get("/api/store").json()
            recipe = (by["gradient"] or by["forward"])[0]

            def search(number: int) -> None:
                like = [{"id": name_of(number * 977 % rows)}]
                asked = {"by": recipe, "like": like, "k": 12}
                server.client.post("/api/search", json=asked).raise_for_status()

            found[f"search by {recipe}, ms"] = median_ms(search)
            found["filter by text, ms"] = median_ms(
                lambda n: server.client.get(
                    "/api/images", params={"text": f"{n:02d}5.jp"}
                )
            )
            found["memory of the server so far, MB"] = server.most / 2**20
            if with_pool:
                is_kept = (store / ".studio" / "labels.json").exists()
                server.client.get("/api/labels/learned")
                time.sleep(1.0)
                if not is_kept:
                    found["describing all photos for labels, once, s"] = server.work(
                        "label pool"
                    )
                wall, processor = learn(server, rows)
                found[f"learning after a label ({LABELS} labelled), ms"] = wall
                found["the same, time of the processor with the curve, ms"] = processor
                found["memory of the server so far, with labels, MB"] = (
                    server.most / 2**20
                )
            if with_map:
                if not server.client.get("/api/map").json()["placed"]:
                    found["making the map, once, s"] = server.work(
                        "map", "/api/map/make"
                    )
                begin = time.perf_counter()
                page.goto(f"{server.url}#view=map")
                page.reload()
                page.wait_for_selector("#map[data-passing]")
                found["opening the map, s"] = time.perf_counter() - begin
                corners = [[0, 0], [0.5, 0], [0.5, 1], [0, 1]]
                found["a lasso around half of it, ms"] = median_ms(
                    lambda n: server.client.post(
                        "/api/map/select", json={"corners": corners}
                    )
                )
            shown = min(rows, 200_000)
            for renderer in ("webgl2", "2d"):
                name, frame = page.evaluate(FRAME_TIMES, [shown, renderer, FRAMES])
                found[f"a frame of {shown:,} points in software, {name}, ms"] = frame
        found["most memory of the server, MB"] = server.most / 2**20
        own = psutil.Process(server.process.pid).memory_full_info().uss
        found["at the end, without files and libraries that are mapped, MB"] = (
            own / 2**20
        )
    finally:
        server.end()
    return found


def table(found: dict[str, Any]) -> str:
    """A section of the page."""
    rows = found["rows"]
    lines = [f"## {rows:,} photos", "", "| what | |", "|---|---|"]
    for name, value in found.items():
        if name != "rows":
            lines.append(
                f"| {name.rpartition(', ')[0]} | {value:,.1f} {name.rpartition(', ')[2]} |"
            )
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--features", type=Path, required=True)
    parser.add_argument("--rows", type=int, default=100_000)
    parser.add_argument("--work", type=Path)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--label-pool", action="store_true")
    parser.add_argument("--map", action="store_true")
    given = parser.parse_args()
    load = os.getloadavg()[0]
    with tempfile.TemporaryDirectory() as temporary:
        folder = given.work or Path(temporary)
        store = folder / f"store-{given.rows}"
        make_store(store, Store.open(given.features), given.rows)
        found = measure(store, given.rows, given.label_pool, given.map)
    print(json.dumps(found, indent=1))
    text = table(found)
    command = " ".join(["python benchmarks/studio_scale.py", *sys.argv[1:]])
    command = re.sub(r"--(features|work|out) \S+", r"--\1 ...", command)
    text += (
        f"\n`{command}`, {os.cpu_count()} cores, {platform.machine()}, load average {load:.1f} "
        "when it began.\n"
    )
    print(text)
    if given.out is not None:
        before = (
            given.out.read_text() if given.out.exists() else "# The studio at scale\n"
        )
        head, *sections = before.split("\n## ")
        kept = [one for one in sections if not one.startswith(f"{given.rows:,} photos")]
        merged = sorted(
            [*kept, text.removeprefix("## ")], key=lambda one: len(one.split()[0])
        )
        given.out.write_text("\n## ".join([head.rstrip() + "\n", *merged]))


if __name__ == "__main__":
    main()

"""The animated picture of the README: labelling in the studio, and a search.

`python scripts/recording.py --results results/demo` labels the embedded photographs by keys, takes
suggestions, looks at the accuracy and searches, all in Chromium, and writes what is on the screen
as docs/assets/studio.webp. Answers are the names of the photographs' folders. Needs the extra `dev`
and Chromium. About a minute.
"""

from __future__ import annotations

import argparse
import io
import tempfile
from pathlib import Path, PurePosixPath

from pictures import ASSETS, chromium, make_results, make_session, running
from PIL import Image
from playwright.sync_api import Page

from deepfishing import Store
from deepfishing.store.label_log import LabelLog
from deepfishing.web.gallery import Gallery

OUT = ASSETS / "studio.webp"
SIZE = (1100, 720)
SHOWN = (990, 648)  # pixels of the picture
QUALITY = 58
MAX_BYTES = 1_500_000
# photographs that are labelled by name, and by taking the suggestion
TYPED, TAKEN = 8, 6
SHORT, LONG = 650, 2200  # milliseconds that a frame is shown


class Recording:
    """Frames of a page, and how long each is shown."""

    def __init__(self, page: Page) -> None:
        self.page = page
        self.frames: list[Image.Image] = []
        self.durations: list[int] = []

    def take(self, milliseconds: int = SHORT) -> None:
        """Add what is on the screen."""
        self.page.wait_for_load_state("networkidle")
        self.page.wait_for_timeout(350)  # pictures fade in
        frame = Image.open(io.BytesIO(self.page.screenshot())).convert("RGB")
        self.frames.append(frame.resize(SHOWN, Image.Resampling.LANCZOS))
        self.durations.append(milliseconds)

    def save(self, path: Path) -> int:
        """Write an animated picture; return its bytes."""
        first, *rest = self.frames
        options = {"quality": QUALITY, "method": 6, "minimize_size": True, "loop": 0}
        first.save(
            path, save_all=True, append_images=rest, duration=self.durations, **options
        )
        return path.stat().st_size


def truth_of(session: Path, results: Path) -> dict[str, str]:
    """The class of each photograph of the session, by its id."""
    of_content = {
        str(row.sha256): PurePosixPath(row.id).parent.name
        for row in Store.open(results).rows().values()
    }
    rows = Store.open(session).rows().values()
    return {row.id: of_content[str(row.sha256)] for row in rows}


def label(page: Page, recording: Recording, truth: dict[str, str]) -> None:
    """Label photographs by name, then by suggestion where it is right."""
    page.wait_for_selector("#photo.loaded")
    page.wait_for_selector("#suggestion:not([hidden])")
    recording.take(LONG // 2)
    for number in range(TYPED + TAKEN):
        name = page.inner_text("#name")
        suggestion = page.inner_text("#suggestion b")
        if number >= TYPED and suggestion == truth[name]:
            page.keyboard.press("Enter")
        else:
            page.keyboard.press("/")
            page.keyboard.type(truth[name][:4])
            recording.take(SHORT // 2)
            page.keyboard.type(truth[name][4:])
            page.keyboard.press("Enter")
        page.wait_for_function(
            "old => document.querySelector('#name').textContent !== old", arg=name
        )
        page.wait_for_selector("#photo.loaded")
        recording.take()
    page.wait_for_selector("#curve:not([hidden])")
    page.evaluate("document.querySelector('.progress').scrollIntoView({block: 'end'})")
    recording.take(LONG)


def search(page: Page, recording: Recording) -> None:
    """Look at the photos sorted by label, and search with one."""
    page.click("#views [data-view=photos]")
    page.select_option("#order", "label")
    page.wait_for_selector("#grid .caption")
    recording.take(LONG // 2)
    page.click("#grid .card >> nth=9 >> .shot")
    page.wait_for_selector("#gradient .hits:not([aria-busy]) .card[data-id]")
    recording.take(LONG)


def review(page: Page, recording: Recording) -> None:
    """Look at a doubtful label."""
    page.click("#views [data-view=review]")
    page.wait_for_selector("#doubted.loaded")
    page.wait_for_selector("#gains .loaded")
    recording.take(LONG)


def main() -> None:
    """Record."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument(
        "--results", type=Path, help="a folder of `deepfish reproduce groceries`"
    )
    given = parser.parse_args().results
    with tempfile.TemporaryDirectory() as folder, chromium() as browser:
        results = given or make_results(Path(folder))
        session = make_session(results, Path(folder))
        log = LabelLog.open(session)
        for act in log.history()[30:]:
            # half of the labels, so that they can be given
            log.undo(act.id, origin="recording")
        with running(Gallery(session)) as url:
            page = browser.new_page(viewport={"width": SIZE[0], "height": SIZE[1]})
            recording = Recording(page)
            page.goto(f"{url}#view=label")
            label(page, recording, truth_of(session, results))
            search(page, recording)
            review(page, recording)
            page.close()
        size = recording.save(OUT)
    print(f"docs/assets/{OUT.name}: {len(recording.frames)} frames, {size:,} bytes")
    if size > MAX_BYTES:
        raise SystemExit(f"{OUT} must have at most {MAX_BYTES:,} bytes, got {size:,}")


if __name__ == "__main__":
    main()

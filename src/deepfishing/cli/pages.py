"""Pages for the browser: `deepfish serve` shows a store, `deepfish report` folders of results."""

from __future__ import annotations

import webbrowser
from pathlib import Path
from typing import Annotated, Any

from deepfishing.cli import say
from deepfishing.cli.command import MORE, NETWORK, Fields, MovedWeights
from deepfishing.errors import OptionError, check_choice
from deepfishing.extraction.options import OPTIONS
from deepfishing.util.progress import Progress

FORMATS = ("html", "markdown", "latex")


def studio(
    photos: Annotated[Path, "Folder of photos; sub-folders are read, too."],
    *,
    options: Annotated[
        dict[str, Any], Fields(NETWORK, only=("network", "weights"), records=OPTIONS)
    ],
    albums: Annotated[
        bool, "Folders are albums, not classes: take no labels from their names."
    ] = False,
    port: Annotated[int | None, "Port. [default: 8765, or a free one]"] = None,
    host: Annotated[
        str, "Address; others than this machine's own need a token.", MORE
    ] = "127.0.0.1",
    features: Annotated[
        str, "Names or recipes, as for `deepfish extract`.", MORE
    ] = "all",
    no_open: Annotated[
        bool, "Do not open the browser, only print the address."
    ] = False,
) -> None:
    """Open a folder of photos in the browser: search, label, review, sort.

    Example: deepfish studio photos

    The photos are read first, with a progress bar in the page; they stay where they are and are
    never changed. What is known of them is kept in PHOTOS/.deepfishing, or in your data folder
    where that cannot be written to. Reading can be cancelled, and goes on the next time. Ctrl-C
    ends the studio.
    """
    # loaded when the command runs, so that help and completion are quick
    from deepfishing.extraction.pipeline import extract_to
    from deepfishing.images.sources import find_images
    from deepfishing.web.gallery import Gallery
    from deepfishing.web.opening import Opening, find_place
    from deepfishing.web.server import bind, share_heaps
    from deepfishing.web.server import serve as run

    labels = ""
    if photos.is_dir():
        # a problem is reported before a server starts
        labels = say.labels_text(find_images(photos, albums=albums))
    place = find_place(photos)
    share_heaps()

    def read(progress: Progress) -> None:
        found = find_images(photos, albums=albums)
        extract_to(
            place.store,
            found,
            features=features,
            progress=progress,
            prune=True,
            **options,
        )

    def make_gallery() -> Gallery:
        gallery = Gallery(place.store, weights=options.get("weights"))
        gallery.name = photos.absolute().name
        return gallery

    address = bind(host, port)

    def ready() -> None:
        say.line(
            f"photos of {photos}, features and labels in {place.store}; Ctrl-C ends"
        )
        if labels:
            say.line(f"labels: {labels}; --albums if folders are no classes")
        say.line(address.shown)
        if not no_open:
            webbrowser.open(address.url)

    opening = Opening(photos.absolute().name, place, read, make_gallery, photos)
    run(opening, address, ready)


def serve(
    store: Annotated[Path, "Folder of `deepfish extract` or `deepfish reproduce`."],
    port: Annotated[int | None, "Port. [default: 8765, or a free one]"] = None,
    host: Annotated[
        str,
        "Address; others than this machine's own need the printed token, or that in the "
        "environment, DEEPFISHING_TOKEN.",
        MORE,
    ] = "127.0.0.1",
    model: Annotated[
        Path | None, "Folder of `deepfish train`; shows its predictions."
    ] = None,
    forward: Annotated[
        str | None, "Forward feature to start with. [default: x7]", MORE
    ] = None,
    gradient: Annotated[
        str | None, "Gradient to start with. [default: as in search]", MORE
    ] = None,
    weights: MovedWeights = None,
    open_: Annotated[bool, "Open the page in the browser."] = False,
) -> None:
    """Look at a store in the browser: search it by a click or by a photo, and see why.

    Example: deepfish serve store --open

    The page compares features and gradients side by side. It needs no internet, and only this
    machine can open it. The network that looks at photos is loaded meanwhile; the page says when it
    is ready. Ctrl-C ends it.
    """
    # loaded when the command runs, so that help and completion are quick
    from deepfishing.web.gallery import Gallery
    from deepfishing.web.server import bind, share_heaps
    from deepfishing.web.server import serve as run

    share_heaps()
    with say.progress_bar() as bar:
        gallery = Gallery(store, forward, gradient, model, bar, weights=weights)
    address = bind(host, port)

    def ready() -> None:
        say.line(f"{len(gallery.collection)} images of {store}; Ctrl-C ends")
        say.line(address.shown)
        if open_:
            webbrowser.open(address.url)

    run(gallery, address, ready)


def report(
    folders: Annotated[
        list[Path], "Folder with results.jsonl; or several, or one with such folders."
    ],
    format_: Annotated[
        str,
        "html: the whole page, report.html. markdown, latex: its tables, report.md or report.tex.",
    ] = "html",
    images: Annotated[
        Path | None, "Where the test images are, if they have moved; for html."
    ] = None,
    features: Annotated[str | None, "Only these gradients; of several folders."] = None,
) -> None:
    """Write report.html, report.md or report.tex for a folder of results.

    Example: deepfish report results/demo

    The page is one file that needs no network: tables beside the paper's, curves, and the images
    that features rank best, worst and differently. Of several folders, or of one that has folders
    of results in it, gains.html or gains.md is written: how much gradients gain on each data set,
    with intervals, and against the number of examples.
    """
    # loaded when the command runs, so that help and completion are quick
    from deepfishing.evaluation.report.html import write_report
    from deepfishing.evaluation.report.overview import find_folders, write_overview
    from deepfishing.evaluation.report.text import write_latex, write_markdown

    check_choice("--format", format_, FORMATS)
    found = find_folders(folders)
    if found != folders or len(found) > 1:
        if format_ == "latex" or images is not None:
            raise OptionError(
                "several folders of results are drawn as html or markdown, without --images; name "
                f"one of {', '.join(map(str, found[:5]))}"
            )
        page = "gains.html" if format_ == "html" else "gains.md"
        place = folders[0] if len(folders) == 1 else Path()
        say.line(write_overview(found, place / page, features))
    elif features is not None:
        raise OptionError(
            f"--features is for several folders of results, got one, {found[0]}"
        )
    elif format_ == "html":
        say.line(write_report(found[0], images))
    else:
        say.line((write_markdown if format_ == "markdown" else write_latex)(found[0]))

"""Pages for the browser: `deepfish studio` and `deepfish serve`."""

from __future__ import annotations

import webbrowser

from deepfishing.cli.arguments.pages import Serve, Studio
from deepfishing.cli.printing import (
    print_line,
)
from deepfishing.cli.progress import progress_bar
from deepfishing.cli.summaries import labels_lines
from deepfishing.extraction.pipeline import extract_to
from deepfishing.images.sources import find_images
from deepfishing.util.progress import Progress
from deepfishing.web.gallery import Gallery
from deepfishing.web.opening import Opening, find_place
from deepfishing.web.server import bind, share_heaps
from deepfishing.web.server import serve as run


def run_studio(args: Studio) -> None:
    """Run `deepfish studio`."""
    labels: list[str] = []
    if args.photos.is_dir():
        # a problem is reported before a server starts
        images = find_images(args.photos, albums=args.albums)
        labels = labels_lines(images, args.photos)
        del images  # a million of them are large
    place = find_place(args.photos)
    share_heaps()

    def read(progress: Progress) -> None:
        images = find_images(args.photos, albums=args.albums)
        extract_to(
            place.store,
            images,
            progress=progress,
            prune=True,
            **args.options,
        )

    def make_gallery() -> Gallery:
        gallery = Gallery(place.store, weights=args.options.get("weights"))
        gallery.name = args.photos.absolute().name
        return gallery

    address = bind(args.host, args.port)

    def ready() -> None:
        print_line(
            f"photos of {args.photos}, features and labels in {place.store}; Ctrl-C ends"
        )
        for line in labels:
            print_line(line)
        print_line(address.shown)
        if not args.no_open:
            webbrowser.open(address.url)

    name = args.photos.absolute().name
    run(Opening(name, place, read, make_gallery, args.photos), address, ready)


def run_serve(args: Serve) -> None:
    """Run `deepfish serve`."""
    share_heaps()
    with progress_bar() as bar:
        gallery = Gallery(
            args.store, args.features, args.model, bar, weights=args.weights
        )
    address = bind(args.host, args.port)

    def ready() -> None:
        print_line(f"{len(gallery.collection)} images of {args.store}; Ctrl-C ends")
        print_line(address.shown)

    run(gallery, address, ready)

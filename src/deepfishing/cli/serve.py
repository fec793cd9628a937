"""`deepfish serve`: a store as a page in the browser."""

from __future__ import annotations

import webbrowser
from pathlib import Path
from typing import Annotated

from deepfishing.cli.help import MORE
from deepfishing.cli.parameters import MovedWeights
from deepfishing.cli.progress import progress_bar
from deepfishing.cli.say import say


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
        Path | None, "Folder that `deepfish train` made; shows its predictions."
    ] = None,
    forward: Annotated[str | None, "Forward recipe to start with. [default: x7]", MORE] = None,
    gradient: Annotated[
        str | None, "Gradient recipe to start with. [default: that of deepfish search]", MORE
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
    from deepfishing.web.gallery import Gallery
    from deepfishing.web.server import bind, share_heaps
    from deepfishing.web.server import serve as run

    share_heaps()
    with progress_bar() as bar:
        gallery = Gallery(store, forward, gradient, model, bar, weights=weights)
    address = bind(host, port)

    def ready() -> None:
        say(f"{len(gallery.collection)} images of {store}; Ctrl-C ends")
        say(address.shown)
        if open_:
            webbrowser.open(address.url)

    run(gallery, address, ready)

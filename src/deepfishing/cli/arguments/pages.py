"""Pages for the browser: `deepfish studio` and `deepfish serve`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from deepfishing.cli.arguments.shared import (
    MORE,
    NETWORK,
    Fields,
    MovedWeights,
)
from deepfishing.extraction.options import OPTIONS


@dataclass(frozen=True, kw_only=True)
class Studio:
    """Open a folder of photos in the browser: search, label, review, sort.

    Example: deepfish studio photos

    The photos are read first, with a progress bar in the page; they stay where they are and are
    never changed. Features and labels are kept in PHOTOS/.deepfishing, or in your data folder
    where that cannot be written to. Reading can be cancelled, and goes on the next time. Ctrl-C
    ends the studio.
    """

    photos: Annotated[Path, "Folder of photos; sub-folders are read, too."]
    options: Annotated[
        dict[str, Any], Fields(NETWORK, only=("network", "weights"), records=OPTIONS)
    ]
    albums: Annotated[
        bool, "Folders are albums, not classes: take no labels from their names."
    ] = False
    port: Annotated[int | None, "Port. [default: 8765, or a free one]"] = None
    host: Annotated[
        str, "Address; others than this machine's own need a token.", MORE
    ] = "127.0.0.1"
    no_open: Annotated[bool, "Do not open the browser, only print the address."] = False


@dataclass(frozen=True, kw_only=True)
class Serve:
    """Open a store in the browser: search, label, review, sort.

    Example: deepfish serve store

    The page compares features and gradients side by side. It needs no internet, and only this
    machine can open it. The network that looks at photos is loaded meanwhile; the page says when it
    is ready. Ctrl-C ends it.
    """

    store: Annotated[Path, "Folder of `deepfish extract` or `deepfish reproduce`."]
    port: Annotated[int | None, "Port. [default: 8765, or a free one]"] = None
    host: Annotated[
        str,
        "Address; others than this machine's own need the printed token, or that in the "
        "environment, DEEPFISHING_TOKEN.",
        MORE,
    ] = "127.0.0.1"
    model: Annotated[
        Path | None, "Folder of `deepfish train`; shows its predictions."
    ] = None
    features: Annotated[
        str | None,
        "Recipes to start with, comma-separated: one without and one with a gradient, such as "
        "pow(x7,0.5),dW8+x7. [default: x7, and as in search]",
        MORE,
    ] = None
    weights: MovedWeights = None

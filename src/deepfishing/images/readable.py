"""Stage 1, images: which images cannot be read, found out before anything is computed.

Comes in: images that are about to be used. Goes out: the reasons why some cannot be, or an error
that names the first. Each is decoded once, at the smallest size that its format allows.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor

from deepfishing.errors import ImageError
from deepfishing.images.item import Item
from deepfishing.images.preprocess import open_image
from deepfishing.progress import Progress


def unreadable(items: Sequence[Item], progress: Progress | None = None) -> dict[str, str]:
    """Id and reason of each image that cannot be decoded, in the order of the images."""
    found = {}
    with ThreadPoolExecutor(os.cpu_count() or 1) as pool:
        for done, (item, reason) in enumerate(zip(items, pool.map(_reason, items), strict=True), 1):
            if reason:
                found[item.id] = reason
            if progress is not None:
                progress("checking", done, len(items))
    return found


def refuse_unreadable(failures: Mapping[str, str], images: int) -> None:
    """Stop with one line if there are images, of so many, that cannot be used."""
    if failures:
        raise ImageError(
            f"{len(failures)} of {images} images cannot be used, the first: "
            f"{next(iter(failures.values()))}; mend or remove them, or run without --strict, which "
            "lists them all and leaves them out"
        )


def _reason(item: Item) -> str:
    try:
        open_image(item, draft=1)
    except ImageError as error:
        return str(error)
    return ""

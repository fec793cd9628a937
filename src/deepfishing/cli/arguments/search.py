"""`deepfish search`: the images of a store that are like others, and why."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from deepfishing.cli.arguments.shared import (
    MORE,
    Json,
    MovedWeights,
    Names,
    OptionalArgument,
    StoreFolder,
)


@dataclass(frozen=True, kw_only=True)
class Search:
    """Find the images of a store that are similar to a photo or fit words.

    Example: deepfish search store holiday.jpg -n 5 --features dW8

    A QUERY with a slash or the suffix of an image is always a file. Other words are read by the
    text tower of CLIP, SigLIP and the like, if the store was made with one of them.

    The score is the similarity by the recipe; forward is how much two images look alike, backward
    how much they mean alike: the score of a gradient is their product. Classes are those that most
    of the backward similarity comes from. A quarter of the similarity to --unlike is taken away.
    On a pipe the columns are complete, with tabs between them.
    """

    store: StoreFolder
    query: Annotated[
        str | None,
        OptionalArgument(
            "An id of the store, an image file, or - for the bytes of one on standard input; "
            "with a network that reads texts, words such as 'a red bicycle'."
        ),
    ] = None
    n: Annotated[int, "How many images to find."] = 10
    features: Annotated[
        str | None, "A recipe, such as dW8 or pow(dW8,0.5)+x7. [default: by the store]"
    ] = None
    like: Annotated[
        tuple[str, ...], "One more example, an id or a file; may be repeated."
    ] = ()
    unlike: Annotated[tuple[str, ...], "A negative example, likewise."] = ()
    label: Annotated[
        tuple[str, ...], "Only images with this label; may be repeated."
    ] = ()
    path: Annotated[str | None, "Only images whose path or id is like '*/dogs/*'."] = (
        None
    )
    exact: Annotated[
        bool | None,
        "Compare all images, or the candidates of an index kept beside the store. "
        "[default: exact up to 100,000 images]",
        MORE,
        Names(("--exact/--index",)),
    ] = None
    sheet: Annotated[
        Path | None, "Also draw query and hits into this .png or .jpg."
    ] = None
    weights: MovedWeights = None
    as_json: Json = False

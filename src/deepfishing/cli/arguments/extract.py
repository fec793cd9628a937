"""`deepfish extract`: features of images into a store."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from deepfishing.cli.arguments.shared import (
    MORE,
    NETWORK,
    PYTHON_ONLY,
    WORK,
    Fields,
    KeptPrecision,
    Strict,
)
from deepfishing.extraction.options import LOCAL, OPTIONS, Resources


@dataclass(frozen=True, kw_only=True)
class Extract:
    """Extract features of images into a folder of Parquet files.

    Example: deepfish extract photos store

    What is in the store is not computed again, so an interrupted run goes on where it stopped
    and new or changed images are all that is computed. Unusable images are listed and left out.
    A store remembers its network and settings; options that contradict them are refused.
    """

    images: Annotated[
        str,
        "A folder, a VOC tree, an image, a quoted pattern, a .txt list, a .csv, .tsv or .parquet "
        "table, a .tar, a video, - for a list on standard input, or a URL such as "
        "s3://bucket/photos.",
    ]
    store: Annotated[Path, "Folder for the features; made if absent."]
    options: Annotated[
        dict[str, Any], Fields(NETWORK, without=PYTHON_ONLY, records=OPTIONS)
    ]
    features: Annotated[str, "Names or recipes: x7,dW7 or dW:layer4.1.conv2@64x64."] = (
        "all"
    )
    resources: Annotated[Resources, Fields(WORK, without=("memory",))]
    precision: KeptPrecision = None
    on: Annotated[
        str, "Where: local, ray, or ray://HOST:PORT of a Ray cluster.", WORK
    ] = LOCAL
    strict: Strict = False
    retry: Annotated[bool, "Try images again that could not be used before.", MORE] = (
        False
    )
    every: Annotated[
        float, "Seconds between the frames of a video; 0 for all.", MORE
    ] = 1.0
    albums: Annotated[
        bool, "Folders are albums, not classes: take no labels from their names.", MORE
    ] = False
    prune: Annotated[
        bool, "Drop images that are in the store and not in IMAGES.", MORE
    ] = False
    dry_run: Annotated[
        bool,
        "Estimate time, disk and memory from a sample of the images; store nothing.",
        MORE,
    ] = False
    as_json: Annotated[bool, "Print one JSON event per line, nothing else."] = False

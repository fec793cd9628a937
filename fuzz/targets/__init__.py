"""All targets, in files by what is read; a file is imported when one of its targets runs."""

from __future__ import annotations

import importlib

from fuzz.target import Target

GROUPS = {
    "caffe": ("caffemodel", "prototxt", "binaryproto"),
    "weights": ("safetensors", "torch-file", "torch-pickle"),
    "datasets": ("voc-lists", "voc-xml", "image-folder", "tar"),
    "lists": ("csv", "parquet", "text-list", "url"),
    "pictures": ("image",),
    "stores": ("store-manifest", "store-index", "store-shard", "store-journal"),
    "models": ("model",),
    "indexes": ("search-index",),
    "results": ("results", "scores"),
    "recipes": ("recipe",),
    "fetches": ("unpack", "answer", "fetch-notes"),
    "pages": ("web",),
    "schema": ("web-schema",),
}
NAMES = tuple(name for names in GROUPS.values() for name in names)


def load(name: str) -> Target:
    """The target of this name; `module:name` is one that another module has in its `TARGETS`."""
    module, _, own = name.rpartition(":")
    if not module:
        group = next(group for group, names in GROUPS.items() if name in names)
        module = f"fuzz.targets.{group}"
    found: Target = importlib.import_module(module).TARGETS[own]
    return found

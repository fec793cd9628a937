"""The views of the studio. To add one, add its two files and a line to `VIEWS`.

A view NAME has its page in `static/view_NAME.js`, which docs/architecture.md describes, and its
routes below /api in a function that takes the `Studio`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from fastapi import APIRouter

from deepfishing.web import (
    view_duplicates,
    view_label,
    view_map,
    view_model,
    view_photos,
    view_review,
)
from deepfishing.web.studio import Studio


@dataclass(frozen=True)
class View:
    """One view: its name in addresses and files, its title in the navigation, its routes."""

    name: str
    title: str
    make_routes: Callable[[Studio], APIRouter]


VIEWS = (
    View("photos", "Photos", view_photos.make_routes),
    View("label", "Label", view_label.make_routes),
    View("review", "Review", view_review.make_routes),
    View("duplicates", "Duplicates", view_duplicates.make_routes),
    View("map", "Map", view_map.make_routes),
    View("model", "Model", view_model.make_routes),
)

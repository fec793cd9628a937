"""One function per question about a store.

`twins`, `bursts`, `labels`, `odd`, `choose` and `map` take the folder of a store, or a
store, or a searcher that is open already.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from deepfishing.curate.duplicates import Burst, Twins, find_bursts, find_twins
from deepfishing.curate.label_errors import Doubt, doubtful_labels
from deepfishing.curate.map_page import Map, make_map
from deepfishing.curate.neighbours import open_searcher
from deepfishing.curate.outliers import DEFAULT, OddPhoto, odd_photos
from deepfishing.curate.outliers import RECIPES as OUTLIER_RECIPES
from deepfishing.curate.selection import Labels, Pick, choose_photos, open_photos
from deepfishing.search import Searcher
from deepfishing.search.compare import DEFAULTS
from deepfishing.store import Store
from deepfishing.util.progress import Progress, silent

Photos = Store | Searcher | str | Path


def twins(
    store: Photos,
    against: Photos | None = None,
    *,
    features: str | None = None,
    progress: Progress = silent,
) -> Twins:
    """Return groups of photos that are copies of one picture; nothing on disk is changed.

    With `against`, photos of the first store that the second has, too.
    """
    other = None
    if against is not None:
        other = _neighbours(against, features, DEFAULTS, progress)
    photos = _neighbours(store, features, DEFAULTS, progress)
    return find_twins(photos, other, progress=progress)


def bursts(
    store: Photos, *, features: str | None = None, progress: Progress = silent
) -> list[Burst]:
    """Return photos of one scene that are no copies of each other, the largest burst first."""
    photos = _neighbours(store, features, DEFAULTS, progress)
    return find_bursts(photos, progress=progress)


def labels(
    store: Photos,
    source: str | Path | None = None,
    *,
    features: str | None = None,
    split: str = "trainval",
    seed: int = 0,
    progress: Progress = silent,
) -> list[Doubt]:
    """Return the labels that are probably wrong, the most doubtful first.

    `source` is a table or a VOC tree with labels; by default those of the store, or its folders.
    """
    path = None
    if source is not None:
        path = Path(source)
    photos = _open(store, features)
    return doubtful_labels(photos, path, split=split, seed=seed, progress=progress)[0]


def odd(
    store: Photos,
    score: str = DEFAULT,
    *,
    features: str | None = None,
    k: int | None = None,
    progress: Progress = silent,
) -> list[OddPhoto]:
    """Return all photos of a store, the oddest first; see `oddness` for the scores."""
    photos = _neighbours(store, features, OUTLIER_RECIPES, progress)
    return odd_photos(photos, score, k=k, progress=progress)


def choose(
    store: Photos,
    n: int = 100,
    *,
    features: str | None = None,
    labelled: Labels | None = None,
    progress: Progress = silent,
) -> list[Pick]:
    """Return at most n photos to label, the most useful first."""
    photos = _open(store, features)
    return list(choose_photos(photos, n, labelled=labelled, progress=progress))


def map(
    store: Photos,
    clusters: int | None = None,
    *,
    features: str | None = None,
    progress: Progress = silent,
) -> Map:
    """Return a place for every photo, and named clusters; `write_map` makes a page of them."""
    photos = _neighbours(store, features, DEFAULTS, progress)
    return make_map(photos, clusters, progress=progress)


def _neighbours(
    store: Photos, features: str | None, defaults: Sequence[str], progress: Progress
) -> Searcher:
    """Open a store so that the neighbours of all photos can be found."""
    if isinstance(store, Searcher):
        return store
    return open_searcher(store, features, defaults=defaults, progress=progress)


def _open(store: Photos, features: str | None) -> Searcher:
    """Open a store for a recipe, without an index."""
    if isinstance(store, Searcher):
        return store
    return open_photos(store, features)

"""Places of photos on a map: what is alike lies close.

Up to `MAX_EXACT` contents t-SNE lays out the graph of the kernel's nearest neighbours. Of more it
lays out an even sample, by short vectors of the kernel, and each other content is placed among its
nearest ones of the sample. openTSNE is used where it is installed, else scikit-learn, which is
slower and so gets a smaller sample.

A layout takes from seconds to minutes, so the studio keeps it beside the store (`open_layout`). New
photos are placed by their neighbours, and nothing that is on the map moves.
"""

from __future__ import annotations

import importlib
import importlib.util
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from scipy.sparse import coo_array, csr_matrix

from deepfishing.core.rank_one import Array, l2_normalize
from deepfishing.curate.neighbours import Neighbours, nearest, open_searcher
from deepfishing.curate.outliers import P, read_blocks
from deepfishing.search import Searcher
from deepfishing.search.compare import sample
from deepfishing.search.hits import IMAGENET_CLASSES, imagenet_names
from deepfishing.search.index import Embedding
from deepfishing.store import Store
from deepfishing.store.side_files import pack_keys, read_side, unpack_keys, write_side
from deepfishing.util.machine import cores
from deepfishing.util.progress import Progress, silent

NEIGHBOURS = 15
MIN_PHOTOS_FOR_THREADS = 1000
FEW = 5  # contents up to which there is nothing to lay out
LANDMARKS = 1000
STEPS = 150, 300  # of t-SNE, with exaggeration and without
EARLY_STEPS = 250  # of scikit-learn, with exaggeration
AXES = 50  # of the kernel
SEED = 0
MAX_GROUPS = 24
MAX_EXACT = 10_000  # contents
OPEN_TSNE, SKLEARN = "openTSNE", "scikit-learn"
MAX_SAMPLE = {OPEN_TSNE: 20_000, SKLEARN: 5_000}
NEAR = 5  # contents of the sample that place another one
SPREAD = 0.002  # of the map, by which contents with the same neighbours are set apart
BLOCK_ROWS = 1024

NAME = "map"
FORMAT = 1


@dataclass(frozen=True, eq=False)
class Layout:
    """Places (n, 2) in [0, 1] of contents, and the number of the group that each lies in (n,).

    `names` are what the network sees in each group more often than elsewhere. `recipe` and the
    package `by` made the layout, in which t-SNE placed `laid_out` contents.
    """

    keys: pa.Array
    places: Array
    group: Array
    names: tuple[str, ...]
    recipe: str
    by: str
    laid_out: int

    def places_of(self, keys: pa.Array) -> Array:
        """Return the places (n, 2) of contents; NaN of one that is not on the map."""
        numbers = pc.fill_null(pc.index_in(keys, value_set=self.keys), -1)
        at = numbers.to_numpy(zero_copy_only=False)
        places = np.array(self.places[np.maximum(at, 0)], dtype=np.float32)
        places[at < 0] = np.nan
        return places


def open_layout(store: Store) -> Layout | None:
    """Return the layout that was kept for a store; None if there is none that can be used."""
    found = read_side(store.folder, NAME)
    if found is None or found[0].get("format") != FORMAT:
        return None
    facts, arrays = found
    try:
        places, group, packed = (arrays[name] for name in ("places", "group", "keys"))
        names = tuple(map(str, facts["names"]))
        n = len(packed)
        fits = (
            places.shape == (n, 2)
            and group.shape == (n,)
            and packed.ndim == 2
            and n > 0
        )
        if not fits or not np.isfinite(places).all() or int(group.max()) >= len(names):
            return None
        about = str(facts["recipe"]), str(facts["by"]), int(facts["laid_out"])
        return Layout(unpack_keys(packed), places, group, names, *about)
    except (LookupError, TypeError, ValueError):
        return None


def make_layout(
    store: Store,
    by: str | None = None,
    *,
    again: bool = False,
    progress: Progress = silent,
) -> Layout:
    """Lay out a store and keep the places; what is on a map already stays unless `again`."""
    kept = None if again else open_layout(store)
    if kept is not None and by is None:
        by = kept.recipe
    photos = open_searcher(store, by, progress=progress)
    keys = photos.contents.keys
    if kept is None or kept.recipe != photos.recipe.name:
        places = lay_out(photos, progress)
        group = find_groups(places)
        names = class_names(photos, group, int(group.max()) + 1)
        about = photos.recipe.name, package(), _sampled(len(keys))
        layout = Layout(keys, places, group, tuple(names), *about)
    else:
        places = kept.places_of(keys)
        known = np.flatnonzero(np.isfinite(places[:, 0]))
        if len(known) == len(keys) == len(kept.keys):
            return kept
        if not len(known):
            return make_layout(store, by, again=True, progress=progress)
        if len(known) < len(keys):
            vectors = short_vectors(photos, progress)
            places = _placed(vectors, known, places[known], progress)
        group = _nearest_group(kept, places)
        layout = replace(kept, keys=keys, places=places, group=group)
    facts = {
        name: getattr(layout, name) for name in ("names", "recipe", "by", "laid_out")
    }
    arrays: dict[str, Array] = {
        "places": layout.places.astype(np.float32),
        "group": layout.group.astype(np.uint8),
        "keys": pack_keys(keys),
    }
    write_side(store.folder, NAME, {"format": FORMAT, **facts}, arrays)
    return layout


def _nearest_group(layout: Layout, places: Array) -> Array:
    """The group of each place (n,), that of the nearest centre."""
    groups = range(len(layout.names))
    centres = [
        np.asarray(layout.places[layout.group == g]).mean(axis=0) for g in groups
    ]
    distance = np.linalg.norm(places[:, None] - np.stack(centres), axis=2)
    nearest_centre: Array = distance.argmin(axis=1)
    return nearest_centre


def work(folder: Path, options: dict[str, Any], progress: Progress) -> dict[str, Any]:
    """Lay out a store as a task of the server."""
    layout = make_layout(
        Store.open(folder), again=bool(options.get("again")), progress=progress
    )
    return {"photos": len(layout.keys)}


def package() -> str:
    """Return which package makes the layout."""
    return OPEN_TSNE if importlib.util.find_spec("openTSNE") is not None else SKLEARN


def _sampled(n: int) -> int:
    """How many of n contents t-SNE lays out."""
    limit = MAX_EXACT if package() == OPEN_TSNE else MAX_SAMPLE[SKLEARN]
    return n if n <= limit else min(n, MAX_SAMPLE[package()])


def lay_out(photos: Searcher, progress: Progress = silent) -> Array:
    """Return the places (n, 2) of the contents of a store, in [0, 1]."""
    n = len(photos.contents)
    if n <= FEW:
        return np.stack([np.arange(n) / max(n - 1, 1), np.zeros(n)], axis=1)
    axes = 3 if package() == OPEN_TSNE and n <= MAX_EXACT else AXES
    vectors = short_vectors(photos, progress, axes)
    chosen = sample(n, _sampled(n))
    start = _start(vectors[chosen])
    if package() == SKLEARN:
        places = _by_sklearn(vectors[chosen], start, progress)
    elif n <= MAX_EXACT:
        graph = _graph(nearest(photos, NEIGHBOURS, progress=progress))
        places = _by_open_tsne(graph, start, progress)
    else:
        graph = _graph(_nearest_vectors(vectors[chosen]))
        places = _by_open_tsne(graph, start, progress)
    places = places - places.min(axis=0)
    places = places / np.maximum(places.max(axis=0), 1e-9)
    return places if len(chosen) == n else _placed(vectors, chosen, places, progress)


def short_vectors(
    photos: Searcher, progress: Progress = silent, axes: int = AXES
) -> Array:
    """Return vectors (n, axes) whose dot products are nearly the recipe's kernel."""
    n = len(photos.contents)
    embedding = Embedding.fit(photos.features.of(sample(n, LANDMARKS)), axes)
    parts = []
    for start in range(0, n, BLOCK_ROWS):
        progress("reading", start, n)
        rows = np.arange(start, min(start + BLOCK_ROWS, n))
        parts.append(embedding.linear(photos.features.of(rows)))
    return np.concatenate(parts)


def _start(vectors: Array) -> Array:
    """The two main axes of the kernel beside its mean: what is far apart stays so."""
    n = len(vectors)
    # in case they are alike
    start = np.random.default_rng(SEED).normal(scale=1e-6, size=(n, 2))
    main = vectors[:, 1:3]
    start[:, : main.shape[1]] += (
        1e-4 * main / max(float(main.std()) if main.size else 0.0, 1e-3)
    )
    return start


def _by_open_tsne(graph: csr_matrix, start: Array, progress: Progress) -> Array:
    """t-SNE of the neighbours' graph, (n, 2)."""
    tsne: Any = importlib.import_module("openTSNE")
    affinities = tsne.affinity.PrecomputedAffinities(graph)
    # threads that wait for each other at every step take longer than a few photos
    jobs = cores() if len(start) >= MIN_PHOTOS_FOR_THREADS else 1
    embedding = tsne.TSNEEmbedding(start, affinities, n_jobs=jobs, random_state=SEED)
    for step in range(0, sum(STEPS), 50):
        early = (
            {"exaggeration": 12, "momentum": 0.5}
            if step < STEPS[0]
            else {"momentum": 0.8}
        )
        embedding.optimize(50, inplace=True, **early)
        progress("map", step + 50, sum(STEPS))
    return np.asarray(embedding)


def _by_sklearn(vectors: Array, start: Array, progress: Progress) -> Array:
    """t-SNE of short vectors (n, m), (n, 2); slower than openTSNE for many of them."""
    from sklearn.manifold import TSNE

    progress("map", 0, 1)
    perplexity = min(NEIGHBOURS, len(vectors) - 1) / 3  # of as many neighbours
    tsne = TSNE(
        perplexity=perplexity,
        init=start,
        max_iter=EARLY_STEPS + STEPS[1],
        random_state=SEED,
    )
    places: Array = tsne.fit_transform(vectors)
    progress("map", 1, 1)
    return places


def _graph(near: Neighbours) -> csr_matrix:
    """Neighbours of each other, with weights that add up to 1."""
    n, k = near.numbers.shape
    rows, columns = np.repeat(np.arange(n), k), near.numbers.ravel()
    there = columns >= 0
    one_way = coo_array(
        (np.ones(there.sum()), (rows[there], columns[there])), shape=(n, n)
    )
    both = csr_matrix(one_way + one_way.T)
    return both / both.sum()


def _nearest_vectors(vectors: Array) -> Neighbours:
    """The nearest of each vector by the cosine, without itself."""
    unit = l2_normalize(vectors.astype(np.float32))
    similarity, numbers = _search(unit, unit, NEIGHBOURS + 1)
    numbers = np.where(numbers == np.arange(len(unit))[:, None], -1, numbers)
    return Neighbours(numbers, similarity)


def _placed(vectors: Array, chosen: Array, places: Array, progress: Progress) -> Array:
    """Places (n, 2) of all contents: those of the chosen ones, and each other among them."""
    unit = l2_normalize(vectors.astype(np.float32))
    everywhere = np.empty((len(unit), 2), dtype=np.float32)
    everywhere[chosen] = places
    others = np.setdiff1d(np.arange(len(unit)), chosen)
    noise = np.random.default_rng(SEED).normal(scale=SPREAD, size=(len(others), 2))
    k = min(NEAR, len(chosen))
    for start in range(0, len(others), BLOCK_ROWS):
        progress("placing", start, len(others))
        rows = others[start : start + BLOCK_ROWS]
        similarity, numbers = _search(unit[chosen], unit[rows], k)
        around = places[numbers]  # (m, k, 2)
        # neighbours may lie on several islands: only those beside the nearest one count
        gap = np.linalg.norm(around - around[:, :1], axis=2)
        weight = np.maximum(similarity, 1e-3) * (gap < 0.05)
        mean = (around * weight[:, :, None]).sum(axis=1) / weight.sum(axis=1)[:, None]
        everywhere[rows] = mean + noise[start : start + BLOCK_ROWS]
    return np.clip(everywhere, 0, 1)


def _search(among: Array, queries: Array, k: int) -> tuple[Array, Array]:
    """Similarity and numbers (m, k) of the nearest unit vectors."""
    import faiss  # takes a while to load

    index = faiss.IndexFlatIP(among.shape[1])
    index.add(np.ascontiguousarray(among))
    similarity, numbers = index.search(np.ascontiguousarray(queries), k)
    return similarity, numbers


def find_groups(places: Array, groups: int | None = None) -> Array:
    """Return the number of each place's group (n,), the largest group first.

    By default there are about half the root of the number of places, at most `MAX_GROUPS`.
    """
    from sklearn.cluster import KMeans  # takes a second to load

    n = len(places)
    different = len(np.unique(places, axis=0))
    wanted = groups or max(1, min(MAX_GROUPS, round(np.sqrt(n) / 2)))
    found = KMeans(min(wanted, different), n_init=4, random_state=SEED).fit_predict(
        places
    )
    order = np.argsort(-np.bincount(found), kind="stable")
    numbers: Array = np.argsort(order)[found]
    return numbers


def class_names(photos: Searcher, cluster: Array, n: int) -> list[str]:
    """Return what the network sees more often in each cluster than elsewhere."""
    seen: Array = np.zeros((n, 0))
    for numbers, (p,) in read_blocks(photos.store, photos.contents.keys, [P]):
        seen = seen if seen.size else np.zeros((n, p.shape[1]))
        np.add.at(seen, cluster[numbers], p)
    if not seen.size:
        return [f"group {number + 1}" for number in range(n)]
    names = imagenet_names() if seen.shape[1] == IMAGENET_CLASSES else []
    share = seen / seen.sum(axis=1, keepdims=True)
    overall = seen.sum(axis=0) / seen.sum()
    telling = share * np.log(np.maximum(share, 1e-9) / np.maximum(overall, 1e-9))
    if n == 1:  # there is no elsewhere
        telling = share
    best = np.argsort(-telling, axis=1)[:, :2]
    return [
        ", ".join(names[c] if names else f"class {c}" for c in some) for some in best
    ]

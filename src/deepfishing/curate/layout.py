"""Places of photos on a map: similar photos are close to each other.

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
MAX_ON_A_LINE = 5  # contents that are put on a line
LANDMARKS = 1000
STEPS = 150, 300  # of t-SNE, with exaggeration and without
EARLY_STEPS = 250  # of scikit-learn, with exaggeration
AXES = 50  # of the kernel
SEED = 0
MAX_GROUPS = 24
MAX_EXACT = 10_000  # contents
OPEN_TSNE, SKLEARN = "openTSNE", "scikit-learn"
MAX_SAMPLE = {OPEN_TSNE: 20_000, SKLEARN: 5_000}
NEIGHBOURS_IN_SAMPLE = 5  # that determine the place of another content
SPREAD = 0.002  # of the map: noise that separates contents with the same neighbours
MAX_GAP = 0.05  # of the map, to the nearest neighbour's place
BLOCK_ROWS = 1024

NAME = "map"
FORMAT = 1


@dataclass(frozen=True, eq=False)
class Layout:
    """Places (n, 2) in [0, 1] of contents, and the number of each one's group (n,).

    `names` are classes that are more frequent in each group than elsewhere. `recipe` and the
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
        rows = numbers.to_numpy(zero_copy_only=False)
        places = np.array(self.places[np.maximum(rows, 0)], dtype=np.float32)
        places[rows < 0] = np.nan
        return places


def open_layout(store: Store) -> Layout | None:
    """Return the layout of a store that is on disk; None if there is none that can be used."""
    stored = read_side(store.folder, NAME)
    if stored is None or stored[0].get("format") != FORMAT:
        return None
    facts, arrays = stored
    try:
        places, group, packed = arrays["places"], arrays["group"], arrays["keys"]
        names = tuple(map(str, facts["names"]))
        n = len(packed)
        shapes = places.shape, group.shape, packed.ndim
        if n == 0 or shapes != ((n, 2), (n,), 2):
            return None
        if not np.isfinite(places).all() or int(group.max()) >= len(names):
            return None
        return Layout(
            unpack_keys(packed),
            places,
            group,
            names,
            recipe=str(facts["recipe"]),
            by=str(facts["by"]),
            laid_out=int(facts["laid_out"]),
        )
    except (LookupError, TypeError, ValueError):
        return None


def make_layout(
    store: Store,
    by: str | None = None,
    *,
    again: bool = False,
    progress: Progress = silent,
) -> Layout:
    """Lay out a store and write the places; contents that have a place keep it unless `again`."""
    stored = None
    if not again:
        stored = open_layout(store)
    if stored is not None and by is None:
        by = stored.recipe
    photos = open_searcher(store, by, progress=progress)
    keys = photos.contents.keys
    if stored is None or stored.recipe != photos.recipe.name:
        layout = _new_layout(photos, progress)
    else:
        places = stored.places_of(keys)
        placed = np.flatnonzero(np.isfinite(places[:, 0]))
        if len(placed) == len(keys) == len(stored.keys):
            return stored
        if not len(placed):
            return make_layout(store, by, again=True, progress=progress)
        if len(placed) < len(keys):
            vectors = short_vectors(photos, progress)
            places = _place_others(vectors, placed, places[placed], progress)
        group = _nearest_group(stored, places)
        layout = replace(stored, keys=keys, places=places, group=group)
    facts = {
        "format": FORMAT,
        "names": layout.names,
        "recipe": layout.recipe,
        "by": layout.by,
        "laid_out": layout.laid_out,
    }
    arrays: dict[str, Array] = {
        "places": layout.places.astype(np.float32),
        "group": layout.group.astype(np.uint8),
        "keys": pack_keys(keys),
    }
    write_side(store.folder, NAME, facts, arrays)
    return layout


def _new_layout(photos: Searcher, progress: Progress) -> Layout:
    """Return a layout of all contents."""
    keys = photos.contents.keys
    places = lay_out(photos, progress)
    group = find_groups(places)
    names = class_names(photos, group, int(group.max()) + 1)
    return Layout(
        keys,
        places,
        group,
        tuple(names),
        recipe=photos.recipe.name,
        by=package(),
        laid_out=_sample_size(len(keys)),
    )


def _nearest_group(layout: Layout, places: Array) -> Array:
    """Return the group of each place (n,): the one with the nearest centre."""
    centres = []
    for number in range(len(layout.names)):
        members = np.asarray(layout.places[layout.group == number])
        centres.append(members.mean(axis=0))
    distance = np.linalg.norm(places[:, None] - np.stack(centres), axis=2)
    nearest_centre: Array = distance.argmin(axis=1)
    return nearest_centre


def work(folder: Path, options: dict[str, Any], progress: Progress) -> dict[str, Any]:
    """Lay out a store as a task of the server."""
    again = bool(options.get("again"))
    layout = make_layout(Store.open(folder), again=again, progress=progress)
    return {"photos": len(layout.keys)}


def package() -> str:
    """Return the package that makes the layout."""
    if importlib.util.find_spec("openTSNE") is None:
        return SKLEARN
    return OPEN_TSNE


def _sample_size(n: int) -> int:
    """Return how many of n contents t-SNE lays out."""
    if package() == OPEN_TSNE and n <= MAX_EXACT:
        return n
    return min(n, MAX_SAMPLE[package()])


def lay_out(photos: Searcher, progress: Progress = silent) -> Array:
    """Return the places (n, 2) of the contents of a store, in [0, 1]."""
    n = len(photos.contents)
    if n <= MAX_ON_A_LINE:
        return np.stack([np.arange(n) / max(n - 1, 1), np.zeros(n)], axis=1)
    axes = AXES
    if package() == OPEN_TSNE and n <= MAX_EXACT:
        axes = 3  # for the start alone
    vectors = short_vectors(photos, progress, axes)
    chosen = sample(n, _sample_size(n))
    start = _start(vectors[chosen])
    places: Array
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
    if len(chosen) == n:
        return places
    return _place_others(vectors, chosen, places, progress)


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
    """Return start positions: the two main axes of the kernel after its mean."""
    n = len(vectors)
    # noise, in case vectors are the same
    start = np.random.default_rng(SEED).normal(scale=1e-6, size=(n, 2))
    main = vectors[:, 1:3]
    if main.size:
        start[:, : main.shape[1]] += 1e-4 * main / max(float(main.std()), 1e-3)
    return start


def _by_open_tsne(graph: csr_matrix, start: Array, progress: Progress) -> Array:
    """Return t-SNE of the neighbours' graph, (n, 2)."""
    tsne: Any = importlib.import_module("openTSNE")
    affinities = tsne.affinity.PrecomputedAffinities(graph)
    # threads that wait for each other at every step take longer than a few photos
    jobs = 1
    if len(start) >= MIN_PHOTOS_FOR_THREADS:
        jobs = cores()
    embedding = tsne.TSNEEmbedding(start, affinities, n_jobs=jobs, random_state=SEED)
    for step in range(0, sum(STEPS), 50):
        options = {"momentum": 0.8}
        if step < STEPS[0]:
            options = {"exaggeration": 12, "momentum": 0.5}
        embedding.optimize(50, inplace=True, **options)
        progress("map", step + 50, sum(STEPS))
    return np.asarray(embedding)


def _by_sklearn(vectors: Array, start: Array, progress: Progress) -> Array:
    """Return t-SNE of short vectors (n, m), (n, 2); slower than openTSNE for many of them."""
    from sklearn.manifold import TSNE

    progress("map", 0, 1)
    perplexity = min(NEIGHBOURS, len(vectors) - 1) / 3  # it looks at 3 times as many
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
    """Return the symmetric graph of neighbours, with weights that add up to 1."""
    n, k = near.numbers.shape
    exists = near.numbers.ravel() >= 0
    rows = np.repeat(np.arange(n), k)[exists]
    columns = near.numbers.ravel()[exists]
    one_way = coo_array((np.ones(len(rows)), (rows, columns)), shape=(n, n))
    both = csr_matrix(one_way + one_way.T)
    return both / both.sum()


def _nearest_vectors(vectors: Array) -> Neighbours:
    """Return the nearest of each vector by the cosine, without itself."""
    unit = l2_normalize(vectors.astype(np.float32))
    similarity, numbers = _search(unit, unit, NEIGHBOURS + 1)
    numbers = np.where(numbers == np.arange(len(unit))[:, None], -1, numbers)
    return Neighbours(numbers, similarity)


def _place_others(
    vectors: Array, chosen: Array, places: Array, progress: Progress
) -> Array:
    """Return places (n, 2) of all contents: others are put among the nearest chosen ones."""
    unit = l2_normalize(vectors.astype(np.float32))
    all_places = np.empty((len(unit), 2), dtype=np.float32)
    all_places[chosen] = places
    others = np.setdiff1d(np.arange(len(unit)), chosen)
    noise = np.random.default_rng(SEED).normal(scale=SPREAD, size=(len(others), 2))
    k = min(NEIGHBOURS_IN_SAMPLE, len(chosen))
    for start in range(0, len(others), BLOCK_ROWS):
        progress("placing", start, len(others))
        rows = others[start : start + BLOCK_ROWS]
        similarity, numbers = _search(unit[chosen], unit[rows], k)
        around = places[numbers]  # (m, k, 2)
        # neighbours may be on several islands: only those near the nearest one count
        gap = np.linalg.norm(around - around[:, :1], axis=2)
        weight = np.maximum(similarity, 1e-3) * (gap < MAX_GAP)
        weighted_sum = (around * weight[:, :, None]).sum(axis=1)
        mean = weighted_sum / weight.sum(axis=1)[:, None]
        all_places[rows] = mean + noise[start : start + BLOCK_ROWS]
    return np.clip(all_places, 0, 1)


def _search(among: Array, queries: Array, k: int) -> tuple[Array, Array]:
    """Return similarities and numbers (m, k) of the nearest unit vectors."""
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
    k_means = KMeans(min(wanted, different), n_init=4, random_state=SEED)
    group = k_means.fit_predict(places)
    order = np.argsort(-np.bincount(group), kind="stable")
    numbers: Array = np.argsort(order)[group]
    return numbers


def class_names(photos: Searcher, cluster: Array, n: int) -> list[str]:
    """Return the classes of the network that are more frequent in each cluster than elsewhere."""
    totals: Array = np.zeros((n, 0))  # of probabilities
    for numbers, (p,) in read_blocks(photos.store, photos.contents.keys, [P]):
        if not totals.size:
            totals = np.zeros((n, p.shape[1]))
        np.add.at(totals, cluster[numbers], p)
    if not totals.size:
        return [f"group {number + 1}" for number in range(n)]
    names = [f"class {number}" for number in range(totals.shape[1])]
    if len(names) == IMAGENET_CLASSES:
        names = imagenet_names()
    share = totals / totals.sum(axis=1, keepdims=True)
    overall = totals.sum(axis=0) / totals.sum()
    weight = share * np.log(np.maximum(share, 1e-9) / np.maximum(overall, 1e-9))
    if n == 1:  # there is no other cluster
        weight = share
    largest = np.argsort(-weight, axis=1)[:, :2]
    return [", ".join(np.array(names)[classes]) for classes in largest]

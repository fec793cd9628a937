"""Stage 7, search: an index over many images, for candidates that are then compared exactly.

Comes in: features of all images of a store. Goes out: for a query, the numbers of the images that
may be nearest. Images are short vectors whose dot product is nearly the recipe's kernel, two
numbers in four bits, in lists around centres (FAISS, IVF with a product quantiser that is scanned
in registers); a query looks into the lists next to it. Where comparing an image takes long, the
candidates are first put in order by vectors in six bits a number.

The vectors: with landmark images L and the eigenvectors V, w of their Gram matrix,
phi(a) = w^(-1/2) V^T k(L, a) has the dot product of the kernel's projection onto its leading axes
(Nystroem, kernel PCA). It needs `gram` only, so gradients, sums and products are all alike to it.
An image that the landmarks describe badly has a short vector and would never be proposed; dividing
by the norm makes up for that.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from deepfishing.kernels import Comparable, gram
from deepfishing.progress import Progress
from deepfishing.rank_one import Array, l2_normalize
from deepfishing.search.compare import SEED, Features, Query, sample

LANDMARKS, DIMENSIONS = 2048, 768  # of the embedding
LIST_IMAGES = 512  # on average
MAX_LISTS = 512
TRAIN_PER_LIST = 40  # fewer, and FAISS complains
ROUNDS = 8  # of k-means
QUANTISED = 2  # numbers in four bits
QUANTISED_IMAGES = 50_000  # fewer are kept in a byte per number, which is precise and little
BLOCK_IMAGES = 4096
PROBES = 32  # lists that a query looks into
CANDIDATES = 500  # that are compared
COARSE = 3  # times as many are taken by vectors of four bits, and compared or refined
GROWTH = 4  # times what it was made for, and an index is made again


@dataclass(frozen=True, eq=False)
class Embedding:
    """phi: features of the landmarks, and w^(-1/2) V^T as `root` (landmarks, m)."""

    landmarks: Comparable
    root: Array

    @classmethod
    def fit(cls, landmarks: Comparable, m: int) -> Embedding:
        """At most m leading axes of the landmarks' kernel.

        >>> phi = Embedding.fit(np.eye(2), m=2)
        >>> (phi(np.eye(2)) @ phi(np.eye(2)).T).round(3).tolist()
        [[1.0, 0.0], [0.0, 1.0]]
        """
        values, axes = np.linalg.eigh(gram(landmarks))
        values, axes = values[::-1][:m], axes[:, ::-1][:, :m]
        # what is below the rounding of single precision is noise that 1/sqrt would blow up
        kept = values > values.max(initial=0.0) * 10 * np.finfo(np.float32).eps
        kept[0] = True
        root = axes[:, kept] / np.sqrt(np.maximum(values[kept], 1e-12))
        return cls(landmarks, np.ascontiguousarray(root, dtype=np.float32))

    def __call__(self, features: Comparable) -> Array:
        """Vectors (n, m) of norm 1."""
        return l2_normalize(self.linear(features))

    def linear(self, features: Comparable) -> Array:
        """The same without the last division, so that a weighted sum of examples can be made."""
        vectors: Array = gram(features, self.landmarks, "float32") @ self.root
        return vectors


@dataclass(frozen=True, eq=False)
class Index:
    """Vectors of the first n contents, and the map that made them.

    `vectors` is of FAISS, its ids the contents' numbers; `made_for` is how many contents there were
    when centres and landmarks were chosen.
    """

    embedding: Embedding
    vectors: Any
    made_for: int

    def __len__(self) -> int:
        return int(self.vectors.ntotal)

    @property
    def is_coarse(self) -> bool:
        """Whether it takes `COARSE` times as many candidates, since nothing refines its vectors."""
        return hasattr(self.vectors, "pq")

    @classmethod
    def build(cls, features: Features, progress: Progress) -> Index:
        """Choose landmarks and centres among all contents, and add all of them."""
        import faiss  # takes a while to load

        n = len(features)
        embedding = Embedding.fit(features.of(sample(n, LANDMARKS)), DIMENSIONS)
        parts, coded = embedding.root.shape[1] // QUANTISED, "SQ8"
        if n >= QUANTISED_IMAGES and parts:
            root = np.ascontiguousarray(embedding.root[:, : parts * QUANTISED])
            embedding, coded = replace(embedding, root=root), f"PQ{parts}x4fsr"
            coded += "" if features.is_quick else ",Refine(SQ6)"
        m = embedding.root.shape[1]
        lists = max(1, min(MAX_LISTS, n // LIST_IMAGES))
        vectors = faiss.index_factory(m, f"IVF{lists},{coded}", faiss.METRIC_INNER_PRODUCT)
        centres = _lists_of(vectors).cp
        centres.niter, centres.seed = ROUNDS, SEED + 1
        chosen = sample(n, max(TRAIN_PER_LIST * lists, LANDMARKS))
        blocks = np.array_split(chosen, max(1, len(chosen) // BLOCK_IMAGES))
        progress("training", 0, 1)
        vectors.train(np.concatenate([embedding(features.of(block)) for block in blocks]))
        progress("training", 1, 1)
        index = cls(embedding, vectors, n)
        index.extend(features, progress)
        return index

    def extend(self, features: Features, progress: Progress) -> None:
        """Add the contents that are not in it yet: those with the highest numbers."""
        begin, n = len(self), len(features)
        for start in range(begin, n, BLOCK_IMAGES):
            numbers = np.arange(start, min(start + BLOCK_IMAGES, n))
            self.vectors.add(self.embedding(features.of(numbers)))
            progress("indexing", int(numbers[-1]) + 1 - begin, n - begin)

    def candidates(
        self, query: Query, n: int, allowed: Array | None = None, probes: int = PROBES
    ) -> Array:
        """At most n numbers of contents that may be nearest, among the allowed ones (a mask)."""
        if allowed is not None:
            # the rarer they are, the more lists it takes to find enough of them
            probes = probes * len(allowed) // max(int(allowed.sum()), 1)
        # a sum of examples is linear too
        vector = query.weights.astype(np.float32)[None] @ self.embedding.linear(query.examples)
        numbers = self.nearest(vector, n, probes, allowed)[0]
        return np.sort(numbers[numbers >= 0])

    def nearest(self, vectors: Array, k: int, probes: int, allowed: Array | None = None) -> Array:
        """Numbers (n, k) of the contents next to each of n vectors; -1 where there are too few."""
        import faiss  # takes a while to load

        lists = _lists_of(self.vectors)
        options: dict[str, Any] = {"nprobe": min(probes, lists.nlist)}
        if allowed is not None:
            bits = np.packbits(allowed, bitorder="little")
            options["sel"] = faiss.IDSelectorBitmap(bits)
        params = faiss.SearchParametersIVF(**options)
        if hasattr(self.vectors, "refine_index"):
            params = faiss.IndexRefineSearchParameters(k_factor=COARSE, base_index_params=params)
        numbers: Array = self.vectors.search(vectors, k, params=params)[1]
        numbers[numbers >= len(self)] = -1  # a damaged index may name any image
        return numbers


def _lists_of(vectors: Any) -> Any:
    """The lists of an index, which may be refined by other vectors."""
    import faiss

    refined = hasattr(vectors, "refine_index")
    return faiss.downcast_index(vectors.base_index) if refined else vectors

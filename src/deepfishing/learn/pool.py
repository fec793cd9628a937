"""Unlabelled photos that recipes learn prototypes and neighbours from."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from deepfishing.core.neighbours import COPY
from deepfishing.core.rank_one import Array, l2_normalize
from deepfishing.core.recipes import Arrays, Fitted, Recipe
from deepfishing.learn.folds import find_embedding

BLOCK_ROWS = 1024


@dataclass(frozen=True, eq=False)
class Pool:
    """Factors of the photos of a collection, labelled or not, and what recipes learnt from them.

    What one recipe has learnt is not learnt again for the next one that has the same part.

    Examples
    --------
    >>> import numpy as np
    >>> from deepfishing.core.recipes import parse_recipe
    >>> pool = Pool({"x7": np.random.default_rng(0).normal(size=(40, 3))})
    >>> fitted = pool.fit(parse_recipe("smooth(x7)+own(x7,4)"), {"x7": np.eye(3)})
    >>> len(pool), sorted(pool.learnt)
    (40, ['own(x7,4)/0', 'own(x7,4)/1', 'smooth(x7)/0'])
    """

    factors: Arrays
    learnt: dict[str, Array] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(next(iter(self.factors.values())))

    def has(self, recipe: Recipe) -> bool:
        """Whether all factors that a recipe learns from are there."""
        return set(recipe.pool_columns) <= set(self.factors)

    def fit(self, recipe: Recipe, train: Arrays) -> Fitted:
        """Fit a recipe: prototypes and neighbours to the pool, the rest to training images."""
        return recipe.fit(train, self.factors, self.learnt)

    def without(self, factors: Arrays) -> Pool:
        """Return the pool without the photos that have these factors, and their copies.

        A photo that is in the pool is nearer to its prototypes and neighbours than a new one. So
        an estimate for new photos holds the photos out of the pool, too.

        >>> import numpy as np
        >>> pool = Pool({"x7": np.array([[1.0, 0.0], [2.0, 0.0], [0.0, 1.0], [1.0, 1.0]])})
        >>> pool.without({"x7": np.array([[3.0, 0.0]])}).factors["x7"].tolist()
        [[0.0, 1.0], [1.0, 1.0]]
        """
        x = find_embedding(self.factors)
        absent = l2_normalize(find_embedding(factors).astype(np.float32))
        is_kept = np.ones(len(x), dtype=bool)
        for start in range(0, len(x), BLOCK_ROWS):
            rows = slice(start, start + BLOCK_ROWS)
            similarity = l2_normalize(x[rows].astype(np.float32)) @ absent.T
            is_kept[rows] = similarity.max(axis=1) < COPY
        return Pool({name: values[is_kept] for name, values in self.factors.items()})

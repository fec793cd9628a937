"""Unlabelled photos that recipes learn prototypes and neighbours from."""

from __future__ import annotations

from dataclasses import dataclass, field

from deepfishing.core.rank_one import Array
from deepfishing.core.recipes import Arrays, Fitted, Recipe


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

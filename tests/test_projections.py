import numpy as np
import pytest

from deepfishing.kernels import trace_kernel
from deepfishing.projections import projection_matrix, two_sided


@pytest.mark.parametrize("P", [None, 3])
def test_the_projection_is_that_of_the_dense_gradient(random_rank_one, P):
    g = random_rank_one(4, d=11, D=9, P=P)
    R, S = projection_matrix(5, 11, 7), projection_matrix(6, 9, 8)
    dense = np.einsum("ad,nde,be->nab", R, g.dense(), S).reshape(4, -1)
    np.testing.assert_allclose(two_sided(g, 5, 6, seed=7), dense, rtol=1e-10)


def test_dot_products_are_the_trace_kernel_on_average_over_seeds(random_rank_one):
    g = random_rank_one(3, d=40, D=30, P=4).normalize()
    draws = np.array([v @ v.T for v in (two_sided(g, 8, 8, seed=s) for s in range(0, 2000, 2))])
    spread = draws.std(axis=0) / np.sqrt(len(draws))
    assert np.all(np.abs(draws.mean(axis=0) - trace_kernel(g, g)) < 4 * spread)


def test_the_error_falls_with_the_dimension(random_rank_one):
    g = random_rank_one(20, d=60, D=50).normalize()
    exact = trace_kernel(g, g)

    def error(m):
        v = two_sided(g, m, m)
        return np.sqrt(np.mean((v @ v.T - exact) ** 2))

    small, medium, large = error(4), error(32), error(256)
    assert small > 2 * medium > 4 * large
    assert large < 0.1


def test_a_seed_gives_the_same_numbers_and_another_seed_others():
    np.testing.assert_array_equal(projection_matrix(3, 4, 1), projection_matrix(3, 4, 1))
    assert np.abs(projection_matrix(3, 4, 1) - projection_matrix(3, 4, 2)).max() > 0.1

import runpy
from pathlib import Path

import pytest
import torch

from deepfishing.extraction.tap import tap
from deepfishing.networks.objectives import cross_entropy

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
delta_recursion = runpy.run_path(str(BENCHMARKS / "closed_form.py"))["delta_recursion"]
LABELS = ["uniform", "predicted", 3, [0.5, 0.1, 0.0, 0.2, 0.2, 0.0]]
PATHS = ["0", "3", "5"]


@pytest.mark.parametrize(
    "label", LABELS, ids=["uniform", "predicted", "one-hot", "vector"]
)
@pytest.mark.parametrize("tau", [0.5, 1.0, 2.0, 4.0])
def test_recursion_autograd_and_per_sample_gradients_agree(
    head, batch, per_sample_gradient, tau, label
):
    objective = cross_entropy(tau, label)
    taps = tap(head, batch, gradients=PATHS, objective=objective)
    W = [head[int(path)].weight.T for path in PATHS]
    calls = [taps.calls[path][0] for path in PATHS]
    recursion = delta_recursion([call.y for call in calls], W, tau, label)
    for path, call, delta in zip(PATHS, calls, recursion, strict=True):
        torch.testing.assert_close(delta, call.delta, rtol=0, atol=1e-10)
        dense = torch.einsum("nd,ne->ned", call.x, delta)  # as `weight`: (D, d)
        slow = per_sample_gradient(head, batch, path, objective)
        torch.testing.assert_close(dense, slow, rtol=0, atol=1e-10)


def test_the_last_delta_is_the_shifted_probability_of_the_paper(head, batch):
    y8 = head.eval()(batch)
    (delta8,) = delta_recursion([y8], [None], tau=2.0)
    # eq:y_derivative, but for sign and 1 / tau
    paper = 1 / 6 - torch.softmax(y8 / 2, dim=1)
    torch.testing.assert_close(-2 * delta8, paper)


def test_one_hot_gradients_sum_to_the_uniform_gradient(head, batch):
    # eq:fisherizing: E with label g is the sum of the classes' embeddings weighted by g
    def delta(label):
        return (
            tap(head, batch, (), ["3"], cross_entropy(label=label)).calls["3"][0].delta
        )

    uniform = delta("uniform")
    per_class = [delta(j) for j in range(6)]
    torch.testing.assert_close(torch.stack(per_class).mean(dim=0), uniform)

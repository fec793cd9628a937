import subprocess
import sys

import torch
from torch import nn

from deepfishing.extraction.peak import peak_bytes


def chain(steps):
    return nn.Sequential(*(nn.Sigmoid() for _ in range(steps)))


def test_a_chain_without_a_graph_needs_two_tensors_at_a_time():
    x = torch.ones(250)
    with torch.no_grad():
        assert peak_bytes(lambda: chain(10)(x)) == 2 * x.nbytes


def test_a_chain_with_a_graph_keeps_every_output():
    x = torch.ones(250, requires_grad=True)
    assert peak_bytes(lambda: chain(10)(x)) == 10 * x.nbytes


def test_weights_inputs_and_views_are_not_counted():
    layer, x = nn.Linear(1000, 4), torch.ones(2, 1000)
    with torch.no_grad():
        need = peak_bytes(lambda: layer(x.view(2, 10, 100).flatten(1)).t())
    assert need == 2 * 4 * 4


def test_what_is_left_is_forgotten_when_it_dies():
    need = peak_bytes(lambda: [torch.ones(100) for _ in range(3)] and None)
    assert need == 3 * 400
    assert peak_bytes(lambda: [torch.ones(100).sum().item() for _ in range(3)]) == 404


def test_measuring_does_not_load_the_compiler_of_torch():
    code = (
        "import sys, torch; from deepfishing.extraction.peak import peak_bytes;"
        "peak_bytes(lambda: torch.ones(2) + 1); print('torch._dynamo' in sys.modules)"
    )
    ran = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    assert ran.stdout.strip() == "False"

import contextlib

import pytest
import torch
from torch import nn

from deepfishing.errors import LayerError
from deepfishing.gradients.tap import tap
from deepfishing.objectives import cross_entropy


def only(taps, path):
    (call,) = taps.calls[path]
    return call


def test_per_sample_gradients_sum_to_the_gradient_of_the_batch(head, batch):
    taps = tap(head, batch, gradients=["0"], objective=cross_entropy())
    ours = only(taps, "0").delta.T @ only(taps, "0").x
    head.eval()
    cross_entropy()(head(batch)).backward()
    torch.testing.assert_close(ours, head[0].weight.grad)


def test_an_in_place_relu_does_not_change_y_or_delta(head, batch):
    expected = tap(head, batch, read=["3"], gradients=["0"], objective=cross_entropy())
    head[1].inplace = head[4].inplace = True
    for asked in (["0"], ["0", "3"]):
        taps = tap(head, batch, read=["3"], gradients=asked, objective=cross_entropy())
        torch.testing.assert_close(only(taps, "0").delta, only(expected, "0").delta)
        torch.testing.assert_close(only(taps, "0").y, only(expected, "0").y)
        torch.testing.assert_close(only(taps, "3").y, only(expected, "3").y)
    assert (only(expected, "0").y < 0).any()


def test_the_trunk_below_the_lowest_layer_has_no_graph(head, batch):
    seen = {}
    head[0].register_forward_hook(lambda m, i, y: seen.update(trunk=y.requires_grad))
    head[4].register_forward_hook(lambda m, i, y: seen.update(head=y.requires_grad))
    tap(head, batch, gradients=["3"], objective=cross_entropy())
    assert seen == {"trunk": False, "head": True}
    tap(head, batch, read=["3"])
    assert seen == {"trunk": False, "head": False}


def test_the_module_is_left_as_it_was_found_even_after_an_error(head, batch):
    head.train()
    head[0].weight.requires_grad_(False)
    wants = [p.requires_grad for p in head.parameters()]

    def explode(y):
        raise RuntimeError("boom")

    for objective in (cross_entropy(), explode):
        with contextlib.suppress(RuntimeError):
            tap(head, batch, gradients=["3"], objective=objective)
        assert all(m.training for m in head.modules())
        assert [p.requires_grad for p in head.parameters()] == wants
        assert not any(m._forward_hooks for m in head.modules())
        assert torch.is_grad_enabled()
    assert all(p.grad is None for p in head.parameters())


def test_dropout_and_batch_norm_run_in_eval_mode(head, batch):
    head.train()
    first, again = (tap(head, batch, (), ["0"], cross_entropy()) for _ in range(2))
    torch.testing.assert_close(only(first, "0").delta, only(again, "0").delta, rtol=0, atol=0)


def test_unknown_and_unused_layers_are_named(head, batch):
    with pytest.raises(LayerError, match="got '7'"):
        tap(head, batch, read=["7"])
    head.spare = nn.Linear(2, 2)
    head.forward = lambda x: head[0](x)
    with pytest.raises(LayerError, match="spare did not run"):
        tap(head, batch, read=["spare"])


def test_a_layer_that_the_output_does_not_depend_on_is_named(head, batch):
    head.forward = lambda x: (head[0](x), head[5](x[:, :8]))[1]
    with pytest.raises(LayerError, match="does not depend on layer 0"):
        tap(head, batch, gradients=["0"], objective=cross_entropy())


def test_a_layer_under_no_grad_or_inference_mode_is_named(head, batch):
    def without_graph(mode):
        def forward(x):
            with mode():
                hidden = head[1](head[0](x))
            return head[5](head[4](head[3](hidden)))

        return forward

    for mode, words in [
        (torch.no_grad, "computed without a graph"),
        (torch.inference_mode, "inference_mode"),
    ]:
        head.forward = without_graph(mode)
        with pytest.raises(LayerError, match=f"layer 0.*{words}"):
            tap(head, batch, gradients=["0"], objective=cross_entropy())
    head.forward = without_graph(torch.no_grad)  # a frozen trunk below the layer does no harm
    assert only(tap(head, batch, (), ["3"], cross_entropy()), "3").delta.abs().sum() > 0


def test_a_layer_without_tensors_is_refused(head, batch):
    class Pair(nn.Module):
        def forward(self, x):
            return x, x

    head.pair = Pair()
    head.forward = lambda x: head.pair(x)[0]
    with pytest.raises(LayerError, match="output of layer pair must be one tensor, got tuple"):
        tap(head, batch, read=["pair"])

import contextlib

import pytest
import torch
from torch import nn

from deepfishing.errors import LayerError
from deepfishing.extraction.tap import tap
from deepfishing.networks.objectives import cross_entropy


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
    torch.testing.assert_close(
        only(first, "0").delta, only(again, "0").delta, rtol=0, atol=0
    )


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
    # a frozen trunk below the layer does no harm
    head.forward = without_graph(torch.no_grad)
    assert only(tap(head, batch, (), ["3"], cross_entropy()), "3").delta.abs().sum() > 0


def test_a_layer_without_tensors_is_refused(head, batch):
    class Pair(nn.Module):
        def forward(self, x):
            return x, x

    head.pair = Pair()
    head.forward = lambda x: head.pair(x)[0]
    with pytest.raises(
        LayerError, match="output of layer pair must be one tensor, got tuple"
    ):
        tap(head, batch, read=["pair"])


class MapsOfTokens(nn.Module):
    """A convolution and a batch norm whose map is read as tokens, as the stem of many transformers.

    Of one image, torch's own backward pass of the batch norm takes channels for places.
    """

    def __init__(self, norm):
        super().__init__()
        self.conv, self.norm, self.fc = nn.Conv2d(3, 6, 3), norm, nn.Linear(6, 4)

    def forward(self, x):
        tokens = self.norm(self.conv(x)).flatten(2).transpose(1, 2)
        return self.fc(torch.tanh(tokens.contiguous())).mean(1)


@pytest.mark.parametrize(
    "norm",
    [nn.BatchNorm2d(6), nn.InstanceNorm2d(6)],
    ids=["batch norm", "instance norm"],
)
def test_the_gradient_of_one_image_is_right_below_a_norm_that_is_read_as_tokens(norm):
    torch.manual_seed(0)
    module = MapsOfTokens(norm).double().eval()
    one, objective = torch.rand(1, 3, 6, 5).double(), cross_entropy()
    delta = (
        tap(module, one, gradients=["conv"], objective=objective).calls["conv"][0].delta
    )
    step = 1e-6 * torch.randn(delta.shape, dtype=torch.float64)
    errors = []
    for sign in (1, -1):
        hook = module.conv.register_forward_hook(
            lambda _m, _x, y, by=sign * step: y + by
        )
        errors.append(objective(module(one)).item())
        hook.remove()
    assert float((delta * step).sum()) == pytest.approx(
        (errors[0] - errors[1]) / 2, rel=1e-5
    )


def test_a_layer_that_is_called_by_keyword_is_read():
    class Keyword(nn.Module):
        def __init__(self):
            super().__init__()
            self.fc = nn.Linear(3, 2)

        def forward(self, x):
            return self.fc(input=x)

    call = tap(
        Keyword(), torch.ones(2, 3), gradients=["fc"], objective=cross_entropy()
    ).calls["fc"]
    assert torch.equal(call[0].x, torch.ones(2, 3))


def test_complex_numbers_are_refused():
    module = nn.Sequential(nn.Linear(3, 2, dtype=torch.complex64))
    with pytest.raises(LayerError, match=r"must be real, got torch\.complex64"):
        tap(module, torch.ones(2, 3, dtype=torch.complex64), ["0"])


def test_a_backward_pass_that_torch_refuses_is_one_line():
    class Checkpoint(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b = nn.Linear(3, 3), nn.Linear(3, 2)

        def forward(self, x):
            return torch.utils.checkpoint.checkpoint(
                self.b, self.a(x), use_reentrant=True
            )

    with pytest.raises(
        LayerError, match="torch cannot compute the gradient of layer a"
    ):
        tap(Checkpoint(), torch.ones(2, 3), gradients=["a"], objective=cross_entropy())


def test_a_view_of_the_trunk_may_be_written_to_by_a_layer_with_a_gradient():
    class Ghost(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b, self.fc = nn.Linear(6, 6), nn.Linear(6, 3), nn.Linear(3, 2)

        def forward(self, x):
            main = self.a(x)[:, :3]
            main += self.b(x)
            return self.fc(main)

    taps = tap(Ghost(), torch.ones(2, 6), gradients=["b"], objective=cross_entropy())
    assert only(taps, "b").delta.shape == (2, 3)

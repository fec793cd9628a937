"""Architectures of timm with random weights: every factor equals one backward pass per image."""

import numpy as np
import pytest
import torch

from deepfishing.core.features import Factor, parse_factor
from deepfishing.core.projections import TwoSided
from deepfishing.core.rank_one import RankOne
from deepfishing.extraction.extract import Extractor
from deepfishing.images.preprocess import Preprocess
from deepfishing.networks.libraries.packages import import_package
from deepfishing.networks.network import wrap

# name: its arguments, image size, gradient layers, and outputs with their channels' axis
SWIN = {
    "img_size": 56,
    "embed_dim": 12,
    "num_heads": (1, 2, 2, 4),
    "depths": (2, 1, 1, 1),
}
NETWORKS = {
    "resnet18": (
        {},
        64,
        ["conv1", "layer3.0.downsample.0", "layer4.1.conv2"],
        {"layer2": 1, "layer4.1.bn1": 1, "layer4.1.act2": 1, "maxpool": 1},
    ),
    "convnext_atto": (  # depthwise convolutions, channels first
        {},
        64,
        [
            "stages.1.blocks.0.conv_dw",
            "stages.3.blocks.1.conv_dw",
            "stages.3.blocks.1.mlp.fc1",
        ],
        {"stages.3": 1, "stages.2.blocks.0.norm": 1, "stages.3.blocks.1.mlp.fc1": 1},
    ),
    "convnext_atto, channels last": (
        {"conv_mlp": False},
        96,
        [
            "stages.2.blocks.1.conv_dw",
            "stages.3.blocks.1.mlp.fc1",
            "stages.3.blocks.0.mlp.fc2",
        ],
        {
            "stages.3.blocks.1.mlp.fc1": 3,
            "stages.3.blocks.1.mlp": 3,
            "stages.3": 1,
            "stem": 1,
        },
    ),
    "swin_tiny_patch4_window7_224": (  # windows as rows, maps channels last
        SWIN,
        56,
        [
            "layers.0.blocks.0.attn.qkv",
            "layers.0.blocks.1.attn.proj",
            "layers.0.blocks.1.mlp.fc1",
        ],
        {"layers.3": 3, "norm": 3, "layers.0.blocks.1": 3, "layers.1.downsample": 3},
    ),
    "vit_tiny_patch16_224": (
        {"img_size": 48, "depth": 2, "embed_dim": 24},
        48,
        ["patch_embed.proj", "blocks.0.attn.qkv", "blocks.1.mlp.fc2"],
        {"blocks.0": 2, "blocks.1.mlp.act": 2, "norm": 2, "blocks.0.attn": 2},
    ),
    "mobilenetv3_small_100": (  # depthwise convolutions, squeeze and excitation
        {},
        64,
        [
            "blocks.1.0.conv_dw",
            "blocks.4.2.conv_dw",
            "blocks.4.2.se.conv_reduce",
            "conv_head",
        ],
        {"blocks.4": 1, "blocks.4.2.bn1": 1, "blocks.3.0.se": 1},
    ),
    "resnext50_32x4d": ({}, 32, ["layer3.0.conv2"], {"layer3": 1}),
    "mixer_s32_224": (  # its first layers are wide along the tokens
        {"img_size": 96},
        96,
        ["blocks.0.mlp_tokens.fc1", "blocks.1.mlp_channels.fc2"],
        {"blocks.0": 2, "blocks.0.mlp_tokens.fc1": 2, "stem": 2, "blocks.1.norm1": 2},
    ),
}
N = 3


@pytest.fixture(scope="module", params=NETWORKS)
def case(request):
    """A network in double precision, images, their pixels, and what to look at."""
    arguments, size, gradients, outputs = NETWORKS[request.param]
    torch.manual_seed(0)
    model = import_package("timm").create_model(
        request.param.partition(",")[0], num_classes=7, **arguments
    )
    for weight in model.parameters():
        # random biases and scales, too: zeros would hide mistakes
        torch.nn.init.normal_(weight, weight.mean().item(), 0.1)
    preprocess = Preprocess(size, size, mean=(127.0,) * 3, std=(128.0,) * 3)
    network = wrap(model.double(), preprocess=preprocess)
    random = np.random.default_rng(0)
    images = [
        random.integers(0, 256, (size, size, 3), dtype=np.uint8) for _ in range(N)
    ]
    pixels = torch.from_numpy(
        np.stack([preprocess(image) for image in images])
    ).double()
    return network, images, pixels, gradients, outputs


def gradients_one_by_one(network, pixels, paths):
    weights = [network.module.get_submodule(path).weight for path in paths]
    rows = []
    for image in pixels:
        error = -torch.log_softmax(network.module.eval()(image[None]) / 2, dim=1).mean()
        rows.append([g.numpy() for g in torch.autograd.grad(error, weights)])
    return dict(zip(paths, map(np.stack, zip(*rows, strict=True)), strict=True))


def block_diagonal(gradient, groups):
    """(n, D, d / groups, ...) as the whole matrix (n, d, D), zero where groups do not meet."""
    n, D = gradient.shape[:2]
    blocks = gradient.reshape(n, groups, D // groups, -1)
    d_g = blocks.shape[-1]
    whole = np.zeros((n, groups * d_g, D))
    for g in range(groups):
        whole[:, g * d_g : (g + 1) * d_g, g * D // groups : (g + 1) * D // groups] = (
            blocks[:, g].swapaxes(1, 2)
        )
    return whole


def test_gradients_equal_one_backward_pass_per_image(case):
    network, images, pixels, paths, _ = case
    kinds = ("in:{}@exact", "delta:{}@exact", "in:{}", "delta:{}", "dW:{}@5x4")
    names = [kind.format(path) for path in paths for kind in kinds]
    (batch,) = Extractor(network, [parse_factor(name) for name in names])(images)
    for path, true in gradients_one_by_one(network, pixels, paths).items():
        x, delta, mean_x, sum_delta, projected = (
            batch.factors[k.format(path)] for k in kinds
        )
        size = np.abs(true).max()
        assert size > 0
        groups = getattr(network.module.get_submodule(path), "groups", 1)
        if groups > 1:  # the whole gradient, times 1
            np.testing.assert_allclose(
                RankOne(x, delta).dense()[..., 0],
                true.reshape(N, -1),
                rtol=0,
                atol=1e-9 * size,
            )
        else:
            x, delta = (v if v.ndim == 3 else v[:, None] for v in (x, delta))
            dense = np.einsum("npd,npe->ned", x, delta).reshape(true.shape)
            np.testing.assert_allclose(dense, true, rtol=0, atol=1e-9 * size)
            np.testing.assert_allclose(mean_x, x.mean(axis=1), rtol=0, atol=1e-9)
            np.testing.assert_allclose(sum_delta, delta.sum(axis=1), rtol=0, atol=1e-12)
        whole = block_diagonal(true, groups)
        drawn = TwoSided.draw(*whole.shape[1:], 5, 4)  # in single precision
        expected = (drawn.R @ whole @ drawn.S.T).reshape(N, -1)
        np.testing.assert_allclose(
            projected, expected, rtol=0, atol=1e-6 * np.abs(expected).max()
        )


def test_outputs_are_averaged_over_positions_image_by_image(case):
    network, images, pixels, _, outputs = case
    (batch,) = Extractor(network, [Factor("output", path) for path in outputs])(images)
    seen = {}
    for path in outputs:
        network.module.get_submodule(path).register_forward_hook(
            lambda _m, _x, y, path=path: seen.update(
                {path: y.clone()}
            )  # before it is overwritten
        )
    for number, image in enumerate(pixels):
        with torch.no_grad():
            network.module.eval()(image[None])
        for path, axis in outputs.items():
            y = seen[path]
            expected = y.movedim(axis, -1).reshape(-1, y.shape[axis]).mean(dim=0)
            np.testing.assert_allclose(
                batch.factors[f"x:{path}"][number], expected, atol=1e-9
            )

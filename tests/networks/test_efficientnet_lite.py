from pathlib import Path

import efficientnet_lite_pytorch
import pytest
import skimage
import torch

from deepfishing.networks.architectures import SameConv2d
from deepfishing.networks.load import load_network
from deepfishing.networks.weights import read_weights
from deepfishing.networks.zoo import find_weights, record


@pytest.mark.parametrize(
    "name", [f"efficientnet-lite{version}" for version in (0, 1, 2)]
)
def test_efficientnet_lite_gives_the_outputs_of_its_publishers_code(name):
    net = load_network(name, dtype="float64")
    theirs = efficientnet_lite_pytorch.EfficientNet.from_name(name).eval().double()
    theirs.load_state_dict(read_weights(find_weights(record(name))))
    size = net.preprocess.size
    images = torch.rand(1, 3, size, size, dtype=torch.float64) * 2 - 1
    with torch.inference_mode():
        torch.testing.assert_close(
            net.module(images), theirs(images), rtol=1e-9, atol=1e-9
        )


@pytest.mark.parametrize("stride", [1, 2, 3])
@pytest.mark.parametrize("kernel", [1, 3, 5])
@pytest.mark.parametrize("size", [(7, 8), (9, 5), (2, 1)])
def test_same_padding_is_tensorflows_rule_pixel_by_pixel(stride, kernel, size):
    conv = SameConv2d(2, 3, kernel, stride=stride, bias=False).double()
    image = torch.randn(2, *size, dtype=torch.float64)
    out = conv(image[None])[0]
    rows, columns = (-(-n // stride) for n in size)
    assert out.shape == (3, rows, columns)
    tops = [
        max((m - 1) * stride + kernel - n, 0) // 2
        for m, n in zip((rows, columns), size, strict=True)
    ]
    for r in range(rows):
        for c in range(columns):
            expected = torch.zeros(3, dtype=torch.float64)
            for i in range(kernel):
                for j in range(kernel):
                    y, x = r * stride + i - tops[0], c * stride + j - tops[1]
                    if 0 <= y < size[0] and 0 <= x < size[1]:
                        expected += conv.weight[:, :, i, j] @ image[:, y, x]
            torch.testing.assert_close(out[:, r, c], expected, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize(
    ("photo", "classes"),
    [
        ("chelsea.png", {281, 282, 285}),  # tabby, tiger cat, Egyptian cat
        ("coffee.png", {504, 967, 968}),  # coffee mug, espresso, cup
        ("rocket.jpg", {657, 744, 812}),  # missile, projectile, space shuttle
        ("motorcycle_left.png", {665, 670}),  # moped, motor scooter
    ],
)
def test_lite0_knows_what_real_photographs_show(photo, classes):
    net = load_network()
    path = Path(skimage.__file__).parent / "data" / photo
    scores = net.module(torch.from_numpy(net.preprocess(path))[None])[0]
    assert classes & set(scores.topk(5).indices.tolist())
    assert int(scores.argmax()) in classes

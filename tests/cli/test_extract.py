import json

import numpy as np
import pyarrow.parquet as pq
import pytest

from deepfishing.gradients.extract import extract
from deepfishing.kernels import gram
from deepfishing.networks.load import load_network


def rows(store):
    table = pq.read_table(store / "shard-000000.parquet").to_pydict()
    order = np.argsort(table["path"])
    return {name: np.array(values)[order] for name, values in table.items()}


def unit(values):
    return values / np.linalg.norm(values, axis=1, keepdims=True)


def test_a_folder_of_images_becomes_a_store(deepfish, shapes, tmp_path):
    ran = deepfish("extract", shapes, "s", "--features", "x7,dW8")
    assert ran.code == 0, ran.err
    assert "24 images, 24 computed now" in ran.out
    again = json.loads(deepfish("extract", shapes, "s", "--features", "x7,dW8", "--json").out)
    assert again["computed"] == 0
    assert again["factors"] == ["x7", "delta8"]
    paths = sorted(shapes.rglob("*.jpg"))
    expected = extract(load_network(), paths, "x7")["x7"]
    np.testing.assert_allclose(rows(tmp_path / "s")["x7"], expected, atol=1e-3)


def test_unreadable_images_are_listed_and_left_out(deepfish, shapes):
    (shapes / "broken.jpg").write_bytes(b"\xff\xd8\xff")
    ran = deepfish("extract", shapes, "s", "--features", "x7")
    assert ran.code == 0
    assert "25 images, 24 computed now, 1 left out" in ran.out
    assert "broken.jpg" in ran.err


def test_other_settings_are_refused_and_named(deepfish, shapes):
    deepfish("extract", shapes / "train/dark", "s", "--features", "x7")
    ran = deepfish("extract", shapes / "train/dark", "s", "--features", "x7", "--tau", "3")
    assert ran.code == 1
    assert "was made with tau = 2.0, now it is 3.0" in ran.err


@pytest.mark.parametrize(
    ("network", "layer"),
    [
        ("timm:resnet18", "layer4.0.downsample.0"),
        ("timm:vit_tiny_patch16_224", "blocks.11.mlp.fc2"),
        ("timm:mobilenetv3_small_100", "conv_head"),
        ("timm:vgg11", "pre_logits.fc2"),
        ("torchvision:resnet18", "layer4.1.conv2"),
    ],
)
def test_a_named_layer_of_a_timm_model_equals_the_per_sample_reference(
    deepfish, shapes, tmp_path, network, layer, per_sample_gradient
):
    few = tmp_path / "few.txt"
    few.write_text("\n".join(str(p) for p in sorted((shapes / "train/dark").glob("*.jpg"))[:3]))
    ran = deepfish(
        *("extract", few, "s", "--network", network, "--weights", "random"),
        *("--features", f"dW:{layer}@exact", "--precision", "float32", "--dtype", "float64"),
    )
    assert ran.code == 0, ran.err
    stored = rows(tmp_path / "s")
    net = load_network(network, "random", dtype="float64")
    slow = per_sample_gradient(net, [str(p) for p in stored["path"]], layer)
    n, (D, d) = len(slow), slow.reshape(len(slow), slow.shape[1], -1).shape[1:]
    x = stored[f"in:{layer}@exact"].reshape(n, -1, d)
    delta = stored[f"delta:{layer}@exact"].reshape(n, -1, D)
    ours = np.einsum("npd,npe->ned", x, delta).reshape(n, -1)
    np.testing.assert_allclose(unit(ours), unit(slow.reshape(n, -1)), atol=1e-6)


@pytest.fixture
def per_sample_gradient():
    """dE/dW of each image, one backward pass at a time through the whole network."""
    import torch

    def compute(net, paths, layer):
        weight = net.module.get_submodule(layer).weight.requires_grad_(True)
        gradients = []
        for path in paths:
            image = torch.from_numpy(net.preprocess(path))[None].to(net.dtype)
            y = net.module.eval()(image)
            error = -torch.log_softmax(y / 2, dim=1).mean(dim=1).sum()
            gradients.append(torch.autograd.grad(error, weight)[0].numpy())
        return np.stack(gradients)

    return compute


def test_a_projected_gradient_is_one_small_column(deepfish, shapes, tmp_path):
    ran = deepfish("extract", shapes, "s", "--features", "dW7@16x8,dW7@exact")
    assert ran.code == 0, ran.err
    stored = rows(tmp_path / "s")
    assert stored["dW7@16x8"].shape == (24, 128)
    exact = extract(load_network(), sorted(shapes.rglob("*.jpg")), "dW7@exact")["dW7@exact"]
    approximate = stored["dW7@16x8"] @ stored["dW7@16x8"].T
    assert np.corrcoef(gram(exact).ravel(), approximate.ravel())[0, 1] > 0.8


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--network", "timm:resnet81"], "did you mean resnet"),
        (["--network", "torchvision:alexnett"], "did you mean alexnet"),
        (["--network", "none.caffemodel"], "none.caffemodel"),
        (["--network", "vgg16", "--prototxt", "a.prototxt"], "prototxt and mean go with"),
        (["--precision", "float8"], "float16 or float32"),
        (["--features", "dW7@0x8"], "feature must be"),
    ],
)
def test_bad_input_is_one_line(deepfish, shapes, arguments, words):
    ran = deepfish("extract", shapes, "s", *arguments)
    assert ran.code == 1
    assert words in ran.err
    assert ran.err.count("\n") == 1

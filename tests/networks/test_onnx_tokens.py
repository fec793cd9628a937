"""Vision transformers in .onnx files: their class token, and what is known of DINOv2."""

import warnings
from collections import OrderedDict

import numpy as np
import pytest
import torch
from PIL import Image
from torch import nn

from deepfishing import Preprocess, extract, wrap
from deepfishing.errors import NetworkError, OptionError
from deepfishing.networks import known_files
from deepfishing.networks.known_files import KnownFile
from deepfishing.networks.libraries.packages import import_package
from deepfishing.networks.onnx.load import load_onnx
from deepfishing.networks.reference import sha256_of

SIDE, PATCH = 28, 14
PIXELS = Preprocess(SIDE, SIDE, mean=(0.4,) * 3, std=(0.3,) * 3, scale=1 / 255)


class Scale(nn.Module):
    """Layer scale, as timm calls it."""

    def __init__(self):
        super().__init__()
        self.gamma = nn.Parameter(torch.full((16,), 0.5))

    def forward(self, x):
        return x * self.gamma


class Tower(nn.Module):
    """Patches, a class token in front or not, one block, a norm; tokens or a map come out."""

    def __init__(self, has_token=True, has_scale=True, patch=PATCH):
        super().__init__()
        torch.manual_seed(0)
        self.patch_embed = nn.Conv2d(3, 16, patch, stride=patch)
        self.cls_token = nn.Parameter(torch.randn(1, 1, 16))
        self.has_token = has_token
        block = [("norm1", nn.LayerNorm(16)), ("mlp", nn.Linear(16, 16))]
        block += [("ls1", Scale())] if has_scale else []
        self.block = nn.Sequential(OrderedDict(block))
        self.norm = nn.LayerNorm(16)

    def tokens(self, x):
        x = self.patch_embed(x).flatten(2).transpose(1, 2)
        if self.has_token:
            token = self.cls_token.expand(x.shape[0], -1, -1)
            x = torch.cat([token, x], dim=1)
        return self.norm(x + self.block(x))

    def forward(self, x):
        return self.tokens(x)


class Decoder(Tower):
    """Numbers from 0 to 1 of each pixel, which are no embedding."""

    def forward(self, x):
        patches = self.tokens(x)[:, 1:].mean(dim=2).unflatten(1, (1, 2, 2))
        return patches.repeat_interleave(PATCH, 3).sigmoid()


def save(module, path):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that the exporter is the old one
        torch.onnx.export(
            module.eval(),
            (torch.zeros(1, 3, SIDE, SIDE),),
            path,
            dynamo=False,
            opset_version=17,
            input_names=["images"],
            dynamic_axes={"images": {0: "n"}},
        )
    return path


@pytest.fixture
def images(rng):
    return [rng.integers(0, 256, (50, 40, 3), dtype=np.uint8) for _ in range(4)]


@pytest.mark.parametrize("module", [Tower(), Decoder()], ids=["tokens", "map"])
def test_the_class_token_after_the_last_norm_is_x7(module, images, tmp_path, capfd):
    network = load_onnx(save(module, tmp_path / "net.onnx"), PIXELS)
    assert network.embedding.startswith("the class token after the last norm, since")
    assert network.source.embedding.endswith("@class")
    x = np.stack([PIXELS(Image.fromarray(image)) for image in images])
    with torch.no_grad():
        expected = module.eval().tokens(torch.from_numpy(x))[:, 0].numpy()
    expected /= np.linalg.norm(expected, axis=1, keepdims=True)
    for engine in ("torch", "onnxruntime", "openvino"):
        found = extract(network, images, "x7", engine=engine)["x7"]
        np.testing.assert_allclose(found, expected, atol=1e-6, err_msg=engine)
    assert capfd.readouterr().err == ""  # onnxruntime's own messages are not shown


def test_no_token_is_guessed_where_the_file_has_none(tmp_path):
    file = save(Tower(has_token=False), tmp_path / "net.onnx")
    with pytest.raises(NetworkError, match="pass --embedding TENSOR"):
        load_onnx(file, PIXELS)


def test_dinov2_brings_its_pixels(tmp_path):
    network = load_onnx(save(Tower(), tmp_path / "net.onnx"))
    transformers = import_package("transformers")
    processor = transformers.BitImageProcessorPil(
        size={"shortest_edge": 32},  # 256 / 224 of the centre
        crop_size={"height": SIDE, "width": SIDE},
        resample=3,
        image_mean=[0.485, 0.456, 0.406],
        image_std=[0.229, 0.224, 0.225],
    )
    noise = np.random.default_rng(0).integers(0, 256, (61, 47, 3), dtype=np.uint8)
    image = Image.fromarray(noise)
    expected = np.asarray(processor(images=image)["pixel_values"][0])
    np.testing.assert_allclose(network.preprocess(image), expected, atol=1e-5)
    assert "pixels as DINOv2 takes them" in network.notes[-1]
    assert load_onnx(tmp_path / "net.onnx", PIXELS).preprocess == PIXELS


@pytest.mark.parametrize(
    "module",
    [Tower(has_scale=False), Tower(patch=7), Tower(has_token=False)],
    ids=["no layer scale", "other patches", "no class token"],
)
def test_pixels_of_other_files_are_not_guessed(module, tmp_path):
    file = save(module, tmp_path / "net.onnx")
    with pytest.raises(OptionError, match="how it wants its pixels; pass --preprocess"):
        load_onnx(file)


def test_pixels_of_a_published_file_are_known_by_its_checksum(tmp_path, monkeypatch):
    file = save(Tower(patch=7), tmp_path / "net.onnx")
    known = KnownFile(title="A tower", preprocess=PIXELS, pixels="a square of 28")
    monkeypatch.setitem(known_files.KNOWN_FILES, sha256_of(file), known)
    network = load_onnx(file)
    assert network.preprocess == PIXELS
    assert network.notes[-1] == "A tower, by its checksum: a square of 28"


def test_the_same_tower_in_torch_gives_the_same(images, tmp_path):
    network = load_onnx(save(Tower(), tmp_path / "net.onnx"), PIXELS)
    plain = wrap(Tower(), preprocess=PIXELS, embedding=True, tokens="class")
    expected = extract(plain, images, "x7")["x7"]
    np.testing.assert_allclose(
        extract(network, images, "x7")["x7"], expected, atol=1e-6
    )

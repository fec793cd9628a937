"""Compare preprocessing and embeddings of networks of other libraries with the libraries' own.

    python benchmarks/equality.py            # print the table
    python benchmarks/equality.py --write    # and put it into EQUALITY.md

Every network has random weights and a small configuration, so that nothing is downloaded. Pixels
are compared on pictures of odd sizes, grey, with transparency and with an EXIF rotation; embeddings
on the same pictures, with the library's own forward pass of its own pixels. The tests run each row
(tests/benchmarks/test_equality.py).
"""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import torch
from PIL import Image, ImageOps
from torch import nn

from deepfishing import extract, load_network, wrap
from deepfishing.networks.libraries.packages import import_package
from deepfishing.networks.network import Network

PAGE = Path(__file__).parent / "EQUALITY.md"
PACKAGES = ("torch", "torchvision", "timm", "transformers", "open_clip_torch", "pillow")
ENGINES = ("onnxruntime", "openvino")
START, END = "<!-- table -->", "<!-- end of the table -->"

Pixels = Callable[[Image.Image], Any]  # of an RGB image, (3, S, S)
Embed = Callable[[torch.Tensor], torch.Tensor]  # (n, 3, S, S) to (n, d)


@dataclass(frozen=True)
class Case:
    """One network: ours, and the library's own pixels and embedding."""

    network: Network
    pixels: Pixels
    embed: Embed
    other_pixels: Pixels | None = None  # of a second processor that the library has


@dataclass(frozen=True)
class Row:
    """Largest differences of one network."""

    library: str
    name: str
    size: int
    pixels: float
    embedding: float
    other_pixels: float | None
    # of embeddings, by onnxruntime and OpenVINO, from those by torch
    engines: float | None


def pictures(folder: Path) -> list[Path]:
    """Write pictures of the kinds that preprocessing may treat differently."""
    rng = np.random.default_rng(0)

    def noise(width: int, height: int, channels: int) -> Any:
        values = rng.integers(
            0, 256, (height // 7 + 2, width // 7 + 2, channels), dtype=np.uint8
        )
        return values.squeeze()

    def made(width: int, height: int, channels: int = 3) -> Image.Image:
        coarse = Image.fromarray(noise(width, height, channels))
        return coarse.resize((width, height), Image.Resampling.BICUBIC)

    turned = Image.Exif()
    turned[0x0112] = 6
    made(301, 223).save(folder / "odd.png")
    made(97, 411).save(folder / "tall.png")
    made(640, 227).save(folder / "wide.png")
    made(61, 53).save(folder / "small.png")
    made(251, 333, 1).save(folder / "grey.png")
    made(277, 199, 4).save(folder / "alpha.png")
    made(333, 241).save(folder / "turned.jpg", exif=turned, quality=90)
    return sorted(folder.iterdir())


def opened(path: Path) -> Image.Image:
    """The picture as RGB: turned as EXIF says, transparency over white."""
    image = ImageOps.exif_transpose(Image.open(path))
    if image.mode == "RGBA":
        white = Image.new("RGBA", image.size, "white")
        image = Image.alpha_composite(white, image)
    return image.convert("RGB")


def measure(library: str, name: str, folder: Path, *, engines: bool = True) -> Row:
    """Measure one row; with `engines` also what they make of x7."""
    paths = pictures(folder)
    with CASES[library, name]() as case:
        preprocess = case.network.preprocess
        ours = np.stack([preprocess(path) for path in paths])
        theirs = np.stack([np.asarray(case.pixels(opened(path))) for path in paths])
        other = None
        if case.other_pixels is not None:
            others = np.stack(
                [np.asarray(case.other_pixels(opened(path))) for path in paths]
            )
            other = float(np.abs(others - ours).max())
        found = extract(case.network, paths, "x7", engine="torch")["x7"]
        apart = None
        if engines:
            others = (
                extract(case.network, paths, "x7", engine=e)["x7"] for e in ENGINES
            )
            apart = max(float(np.abs(value - found).max()) for value in others)
        with torch.inference_mode():
            expected = case.embed(torch.from_numpy(theirs)).numpy()
    expected = expected / np.linalg.norm(expected, axis=1, keepdims=True)
    pixels, embedding = np.abs(ours - theirs).max(), np.abs(found - expected).max()
    return Row(
        library, name, preprocess.size, float(pixels), float(embedding), other, apart
    )


def _timm(name: str, **options: Any) -> Callable[[], Any]:
    @contextmanager
    def make() -> Iterator[Case]:
        timm = import_package("timm")
        torch.manual_seed(0)
        module = timm.create_model(name, num_classes=0, **options).eval()
        settings = timm.data.resolve_model_data_config(module)
        transform = timm.data.create_transform(**settings, is_training=False)
        yield Case(wrap(module), transform, module)

    return make


def _timm_by_name(name: str) -> Callable[[], Any]:
    """A network with a classifier, by its name: x7 is what the classifier takes."""

    @contextmanager
    def make() -> Iterator[Case]:
        timm = import_package("timm")
        network = load_network(f"timm:{name}", "random")
        module: Any = network.module.eval()
        settings = timm.data.resolve_model_data_config(module)
        transform = timm.data.create_transform(**settings, is_training=False)

        def embed(pixels: torch.Tensor) -> torch.Tensor:
            features = module.forward_features(pixels)
            return module.forward_head(features, pre_logits=True)

        yield Case(network, transform, embed)

    return make


TINY = {
    "hidden_size": 32,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "intermediate_size": 64,
}


def _transformers(
    kind: str, processor: str, take: Callable[[Any], torch.Tensor], **options: Any
) -> Callable[[], Any]:
    """A model in a folder, with the processor that its publisher uses, in its usual settings."""

    @contextmanager
    def make() -> Iterator[Case]:
        transformers = import_package("transformers")
        with tempfile.TemporaryDirectory() as folder:
            torch.manual_seed(0)
            config = getattr(transformers, f"{kind}Config")(**options)
            model = transformers.AutoModel.from_config(config).eval()
            model.save_pretrained(folder)
            settings = {"image_processor_type": processor}
            Path(folder, "preprocessor_config.json").write_text(json.dumps(settings))
            network = load_network(f"hf:{folder}")
            pil, fast = (
                transformers.AutoImageProcessor.from_pretrained(folder, backend=backend)
                for backend in ("pil", "torchvision")
            )

            def embed(pixels: torch.Tensor) -> torch.Tensor:
                return take(_run(model, pixels))

            yield Case(network, _processed(pil), embed, _processed(fast))

    return make


def _run(model: Any, pixels: torch.Tensor) -> Any:
    if hasattr(model, "get_image_features"):
        return model.get_image_features(pixel_values=pixels)
    return model(pixel_values=pixels)


def _processed(processor: Any) -> Pixels:
    return lambda image: np.asarray(
        processor(images=image, return_tensors="np").pixel_values[0]
    )


def _class_token(output: Any) -> torch.Tensor:
    return output.last_hidden_state[:, 0]


def _pooled(output: Any) -> torch.Tensor:
    return output.pooler_output.flatten(1)


def _open_clip(vision: dict[str, Any]) -> Callable[[], Any]:
    """A small configuration that open_clip is told of, since it makes models by name only."""

    @contextmanager
    def make() -> Iterator[Case]:
        open_clip = import_package("open_clip")
        text = {
            "context_length": 8,
            "vocab_size": 99,
            "width": 16,
            "heads": 1,
            "layers": 1,
        }
        config = {"embed_dim": 32, "vision_cfg": vision, "text_cfg": text}
        with mock.patch.dict(open_clip.factory._MODEL_CONFIGS, {"tiny": config}):
            network = load_network("open_clip:tiny", "random")
            with torch.random.fork_rng(devices=()):
                torch.manual_seed(0)
                model = open_clip.create_model("tiny", load_weights=False).eval()
            settings = open_clip.transform.PreprocessCfg(**model.visual.preprocess_cfg)
            transform = open_clip.transform.image_transform_v2(settings, is_train=False)
            yield Case(network, transform, model.encode_image)

    return make


def _torchvision(
    name: str, classifier: str, build: Callable[[Any], nn.Module] | None = None
) -> Callable[[], Any]:
    """A model by name; `build` makes a smaller one of the same code in its place."""

    @contextmanager
    def make() -> Iterator[Case]:
        models = import_package("torchvision").models
        usual = models.get_model

        def get_model(name: str, weights: Any = None, **options: Any) -> nn.Module:
            return build(models) if build else usual(name, weights=weights, **options)

        with mock.patch.object(models, "get_model", get_model):
            network = load_network(f"torchvision:{name}", "random")
            with torch.random.fork_rng(devices=()):
                torch.manual_seed(0)
                module = get_model(name).eval()
        module.set_submodule(classifier, nn.Identity())
        transform = models.get_model_weights(name).DEFAULT.transforms()
        yield Case(network, transform, module)

    return make


def _small_vit(models: Any) -> nn.Module:
    return models.VisionTransformer(224, 32, 1, 2, 32, 64)


def _small_swin(models: Any) -> nn.Module:
    return models.SwinTransformer([4, 4], 24, [1, 1, 1, 1], [1, 2, 2, 2], [7, 7])


SMALL_VIT = {"embed_dim": 32, "depth": 1, "num_heads": 2}
VISION = {**TINY, "image_size": 224, "patch_size": 32}
TOWERS = {
    "vision_config": VISION,
    "text_config": {**TINY, "vocab_size": 99, "max_position_embeddings": 8},
}
STAGES = {"depths": [1, 1, 1, 1], "hidden_sizes": [16, 16, 32, 32]}
CASES: dict[tuple[str, str], Callable[[], Any]] = {
    ("timm", "ViT"): _timm("vit_tiny_patch16_224", **SMALL_VIT),
    ("timm", "DINOv2"): _timm("vit_small_patch14_dinov2", **SMALL_VIT),
    ("timm", "DINOv2 with registers"): _timm(
        "vit_small_patch14_reg4_dinov2", **SMALL_VIT
    ),
    ("timm", "Swin"): _timm(
        "swin_tiny_patch4_window7_224",
        embed_dim=24,
        depths=(1, 1, 1, 1),
        num_heads=(1, 2, 2, 2),
    ),
    ("timm", "ConvNeXt"): _timm_by_name("convnext_atto"),
    ("timm", "EVA"): _timm(
        "eva02_tiny_patch14_224", embed_dim=48, depth=1, num_heads=2
    ),
    ("timm", "SigLIP"): _timm("vit_base_patch16_siglip_224", **SMALL_VIT),
    ("timm", "MobileNetV4"): _timm_by_name("mobilenetv4_conv_small_050"),
    ("transformers", "ViT"): _transformers(
        "ViT", "ViTImageProcessor", _class_token, **TINY, patch_size=32
    ),
    ("transformers", "DINOv2"): _transformers(
        "Dinov2",
        "BitImageProcessor",
        _pooled,
        hidden_size=32,
        num_hidden_layers=1,
        num_attention_heads=2,
        image_size=224,
        patch_size=14,
    ),
    ("transformers", "Swin"): _transformers(
        "Swin",
        "ViTImageProcessor",
        _pooled,
        embed_dim=24,
        depths=[1, 1, 1, 1],
        num_heads=[1, 2, 2, 2],
    ),
    ("transformers", "ConvNeXt"): _transformers(
        "ConvNext", "ConvNextImageProcessor", _pooled, **STAGES
    ),
    ("transformers", "CLIP"): _transformers(
        "CLIP", "CLIPImageProcessor", _pooled, **TOWERS
    ),
    ("transformers", "SigLIP"): _transformers(
        "Siglip", "SiglipImageProcessor", _pooled, **TOWERS
    ),
    ("transformers", "BEiT"): _transformers(
        "Beit", "BeitImageProcessor", _pooled, **TINY, patch_size=32
    ),
    ("transformers", "ResNet"): _transformers(
        "ResNet", "ConvNextImageProcessor", _pooled, **STAGES, embedding_size=16
    ),
    ("open_clip", "ViT-B-32"): _open_clip(
        {
            "image_size": 224,
            "layers": 1,
            "width": 32,
            "patch_size": 32,
            "head_width": 16,
        }
    ),
    ("open_clip", "RN50"): _open_clip(
        {"image_size": 224, "layers": [1, 1, 1, 1], "width": 8, "patch_size": None}
    ),
    ("open_clip", "ConvNeXt"): _open_clip(
        {
            "timm_model_name": "convnext_atto",
            "timm_model_pretrained": False,
            "timm_pool": "",
            "timm_proj": "linear",
            "image_size": 224,
        }
    ),
    ("torchvision", "ResNet"): _torchvision("resnet18", "fc"),
    ("torchvision", "ViT"): _torchvision("vit_b_32", "heads.head", _small_vit),
    ("torchvision", "Swin"): _torchvision("swin_t", "head", _small_swin),
    ("torchvision", "EfficientNet"): _torchvision("efficientnet_b0", "classifier.1"),
}


def table(rows: list[Row]) -> str:
    """The table as Markdown."""
    lines = [
        "| library | network | px | pixels | pixels, torchvision backend | x7 | x7, engines |",
        "|---|---|---|---|---|---|---|",
    ]
    for row in rows:
        other = "" if row.other_pixels is None else f"{row.other_pixels:.3f}"
        lines.append(
            f"| {row.library} | {row.name} | {row.size} | {row.pixels:.1e} | {other} | "
            f"{row.embedding:.1e} | {row.engines:.1e} |"
        )
    versions = [f"{name} {importlib.metadata.version(name)}" for name in PACKAGES]
    return "\n".join([*lines, "", f"Measured with {', '.join(versions)}."])


def main() -> None:
    """Print the table, and write it into the page."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument(
        "--write", action="store_true", help="put the table into EQUALITY.md"
    )
    write = parser.parse_args().write
    rows = []
    for library, name in CASES:
        with tempfile.TemporaryDirectory() as folder:
            rows.append(measure(library, name, Path(folder)))
    text = table(rows)
    print(text)
    if write:
        before, _, rest = PAGE.read_text("utf-8").partition(START)
        after = rest.partition(END)[2]
        PAGE.write_text(f"{before}{START}\n\n{text}\n\n{END}{after}", "utf-8")


if __name__ == "__main__":
    main()

"""Compare x7 of many architectures with what the head of their own library takes.

    python benchmarks/architectures.py            # print the table
    python benchmarks/architectures.py --write    # and put it into EQUALITY.md

Every network has random weights, so that nothing is downloaded; those of transformers have small
configurations, those of the others are whole. equality.py has fewer kinds, and compares pixels and
engines, too.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from deepfishing import extract, load_network
from deepfishing.networks.libraries.packages import import_package
from deepfishing.networks.network import Network

PAGE = Path(__file__).parent / "EQUALITY.md"
START, END = "<!-- architectures -->", "<!-- end of the architectures -->"
TIMM = [
    "cait_xxs24_224",
    "coat_tiny",
    "convit_tiny",
    "convnextv2_atto",
    "csatv2",
    "davit_tiny",
    "densenet121",
    "edgenext_xx_small",
    "efficientformerv2_s0",
    "efficientvit_m0",
    "fastvit_mci0",
    "fastvit_t8",
    "flexivit_small",
    "focalnet_tiny_srf",
    "ghostnet_100",
    "hgnetv2_b0",
    "hiera_tiny_224",
    "inception_v3",
    "lcnet_050",
    "levit_128s",
    "mambaout_femto",
    "maxvit_rmlp_pico_rw_256",
    "mobilenetv4_hybrid_medium",
    "mobilevit_xxs",
    "mobilevitv2_050",
    "mvitv2_tiny",
    "poolformer_s12",
    "pvt_v2_b0",
    "rdnet_tiny",
    "regnety_002",
    "repvit_m0_9",
    "resmlp_12_224",
    "shvit_s1",
    "starnet_s1",
    "swiftformer_xs",
    "swinv2_cr_tiny_ns_224",
    "tiny_vit_5m_224",
    "vit_little_patch16_reg4_gap_256",
    "vit_small_patch16_dinov3",
    "vit_tiny_r_s16_p8_224",
    "vit_wee_patch16_reg1_gap_256",
    "volo_d1_224",
    "xcit_nano_12_p16_224",
]
TORCHVISION = [
    "alexnet",
    "convnext_tiny",
    "densenet121",
    "googlenet",
    "inception_v3",
    "mnasnet0_5",
    "mobilenet_v2",
    "mobilenet_v3_small",
    "regnet_y_400mf",
    "shufflenet_v2_x0_5",
    "swin_v2_t",
    "vit_b_16",
]
OPEN_CLIP = [
    "EVA02-B-16",
    "MobileCLIP2-S0",
    "PE-Core-T-16-384",
    "ViT-B-32-SigLIP2-256",
    "coca_ViT-B-32",
]

LAYERS = {"num_hidden_layers": 1, "num_attention_heads": 2}
VIT = {**LAYERS, "hidden_size": 32, "intermediate_size": 64}
VIT |= {"image_size": 64, "patch_size": 16}
TEXT = {**LAYERS, "hidden_size": 32, "intermediate_size": 64, "vocab_size": 99}
TEXT |= {"max_position_embeddings": 8}
TOWERS = {"vision_config": VIT, "text_config": TEXT, "projection_dim": 16}
STAGES = {"depths": [1, 1, 1, 1], "hidden_sizes": [16, 16, 32, 32]}
SWIN = {"image_size": 64, "embed_dim": 24, "depths": [1, 1], "num_heads": [1, 2]}
PYRAMID = {**STAGES, "num_attention_heads": [1, 1, 2, 2]}
# of transformers: classes of models, and what their configurations have
TRANSFORMERS: dict[str, dict[str, Any]] = {
    "ViTMSNModel": VIT,
    "IJepaModel": VIT,
    "DeiTModel": VIT,
    "DeiTForImageClassificationWithTeacher": VIT,
    "Dinov2WithRegistersModel": VIT,
    "DINOv3ViTModel": {**VIT, "num_register_tokens": 4},
    "DINOv3ConvNextModel": STAGES,
    "HieraForImageClassification": {
        **{"image_size": [64, 64], "embed_dim": 16, "depths": [1, 1, 1, 1]},
        "num_heads": [1, 1, 2, 2],
    },
    "Swinv2Model": {**SWIN, "window_size": 4},
    "Swinv2ForImageClassification": {**SWIN, "window_size": 4},
    "ConvNextV2Model": STAGES,
    "RegNetModel": {**STAGES, "embedding_size": 16, "groups_width": 8},
    "BitForImageClassification": {**STAGES, "embedding_size": 16, "num_groups": 8},
    "MobileViTForImageClassification": {
        **{"image_size": 64, "hidden_sizes": [24, 32, 40]},
        "neck_hidden_sizes": [8, 8, 16, 16, 24, 24, 64],
    },
    "MobileNetV2Model": {"depth_multiplier": 0.35},
    "PoolFormerForImageClassification": STAGES,
    "PvtForImageClassification": {"image_size": 64},
    "PvtV2ForImageClassification": {"image_size": 64, **PYRAMID},
    "SegformerForImageClassification": PYRAMID,
    "LevitModel": {"image_size": 64},
    "CvtForImageClassification": {},
    "Data2VecVisionForImageClassification": VIT,
    "SiglipVisionModel": VIT,
    "SiglipForImageClassification": {
        "vision_config": VIT,
        "text_config": {**TEXT, "projection_size": 32},
    },
    "CLIPVisionModelWithProjection": {**VIT, "projection_dim": 16},
    "CLIPForImageClassification": TOWERS,
    "ChineseCLIPModel": TOWERS,
    "CLIPSegModel": TOWERS,
    "BlipModel": {**TOWERS, "text_config": {**TEXT, "encoder_hidden_size": 32}},
    "MetaClip2Model": TOWERS,
    "Aimv2Model": TOWERS,
}


@dataclass(frozen=True)
class Case:
    """A network, and what its own library makes of pixels (1, 3, S, S)."""

    name: str
    network: Network
    theirs: Callable[[torch.Tensor], torch.Tensor]


def timm_cases(names: list[str]) -> Iterator[Case]:
    """Yield models of timm."""
    for name in names:
        network = load_network(f"timm:{name}", "random")
        module: Any = network.module

        def theirs(pixels: torch.Tensor, module: Any = module) -> torch.Tensor:
            features = module.forward_features(pixels)
            taken = module.forward_head(features, pre_logits=True)
            return taken[0] if isinstance(taken, tuple) else taken

        yield Case(name, network, theirs)


def torchvision_cases(names: list[str]) -> Iterator[Case]:
    """Yield models of torchvision."""
    for name in names:
        network = load_network(f"torchvision:{name}", "random")
        yield Case(name, network, _before_the_head(network.module))


def open_clip_cases(names: list[str]) -> Iterator[Case]:
    """Yield models of open_clip."""
    open_clip = import_package("open_clip")
    for name in names:
        network = load_network(f"open_clip:{name}", "random")
        with torch.random.fork_rng(devices=()):
            torch.manual_seed(0)
            model = open_clip.create_model(name, load_weights=False).eval()
        yield Case(name, network, model.encode_image)


def transformers_cases(names: list[str]) -> Iterator[Case]:
    """Yield models of transformers, from a folder in which they were saved."""
    transformers = import_package("transformers")
    for name in names:
        kind = getattr(transformers, name)
        torch.manual_seed(0)
        model = kind(kind.config_class(**TRANSFORMERS[name])).eval()
        for parameter in model.parameters():
            if parameter.ndim > 1:  # of its small random weights nothing would be left
                nn.init.kaiming_normal_(parameter)
        with tempfile.TemporaryDirectory() as folder:
            model.save_pretrained(folder)
            side = {"height": 64, "width": 64}
            settings = {"image_processor_type": "ViTImageProcessor", "size": side}
            Path(folder, "preprocessor_config.json").write_text(json.dumps(settings))
            yield Case(name, load_network(f"hf:{folder}"), _transformers_output(model))


def _transformers_output(model: Any) -> Callable[[torch.Tensor], torch.Tensor]:
    """Return what makes of pixels that which a head on top of a model takes."""
    if "ForImageClassification" in type(model).__name__:
        return _before_the_head(model)

    def theirs(pixels: torch.Tensor) -> torch.Tensor:
        if hasattr(model, "get_image_features"):
            found = model.get_image_features(pixel_values=pixels)
            return getattr(found, "pooler_output", found)
        output = model(pixel_values=pixels)
        if output.get("image_embeds") is not None:
            return output.image_embeds
        # the heads of ViT and DeiT take the class token, beside the pooler
        has_dense = hasattr(getattr(model, "pooler", None), "dense")
        if output.get("pooler_output") is not None and not has_dense:
            return output.pooler_output
        tokens = output.last_hidden_state
        is_joint = type(model).__name__ == "IJepaModel"  # no class token
        return tokens.mean(dim=1) if is_joint else tokens[:, 0]

    return theirs


def _before_the_head(model: nn.Module) -> Callable[[torch.Tensor], torch.Tensor]:
    """Return what makes of pixels the input of a model's last fully connected layer."""
    layers = [m for m in model.modules() if isinstance(m, nn.Linear)]

    def theirs(pixels: torch.Tensor) -> torch.Tensor:
        inputs: list[torch.Tensor] = []
        keep = layers[-1].register_forward_pre_hook(lambda _, x: inputs.append(x[0]))
        model(pixels)
        keep.remove()
        return inputs[-1]

    return theirs


CASES: dict[str, tuple[list[str], Callable[[list[str]], Iterator[Case]]]] = {
    "timm": (TIMM, timm_cases),
    "transformers": (list(TRANSFORMERS), transformers_cases),
    "torchvision": (TORCHVISION, torchvision_cases),
    "open_clip": (OPEN_CLIP, open_clip_cases),
}


def difference(case: Case) -> float:
    """Return the largest difference of x7, of length 1, from the library's."""
    noise = np.random.default_rng(0).integers(0, 256, (83, 75, 3), dtype=np.uint8)
    found = extract(case.network, [noise], "x7", engine="torch")["x7"]
    pixels = torch.from_numpy(case.network.preprocess(noise)[None])
    with torch.inference_mode():
        expected = case.theirs(pixels).flatten(1).numpy()
    expected = expected / np.linalg.norm(expected, axis=1, keepdims=True)
    if found.shape != expected.shape:
        raise SystemExit(f"{case.name}: {found.shape} instead of {expected.shape}")
    return float(np.abs(found - expected).max())


def table() -> str:
    """Measure all architectures and return the table as Markdown."""
    lines = ["| library | architectures | x7 | names |", "|---|---|---|---|"]
    for library, (names, cases) in CASES.items():
        worst = 0.0
        for case in cases(names):
            apart = difference(case)
            print(f"{library:<12} {case.name:<40} {apart:.1e}", flush=True)
            worst = max(worst, apart)
        text = ", ".join(names)
        lines.append(f"| {library} | {len(names)} | {worst:.1e} | {text} |")
    return "\n".join(lines)


def main() -> None:
    """Print the table, and write it into the page."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument(
        "--write", action="store_true", help="put the table into EQUALITY.md"
    )
    write = parser.parse_args().write
    text = table()
    print(text)
    if write:
        before, _, rest = PAGE.read_text("utf-8").partition(START)
        after = rest.partition(END)[2]
        PAGE.write_text(f"{before}{START}\n\n{text}\n\n{END}{after}", "utf-8")


if __name__ == "__main__":
    main()

"""Tiny models of two towers, for images and for texts, in a folder as libraries keep them."""

import json

import numpy as np
import torch
from PIL import Image

from deepfishing.core.features import needed_factors, parse_features
from deepfishing.extraction.settings import Settings
from deepfishing.extraction.to_store import extract_to_store
from deepfishing.images.sources import find_images
from deepfishing.networks.libraries.packages import import_package
from deepfishing.networks.load import load_network
from deepfishing.store import Store

COLOURS = {
    "red": (220, 30, 30),
    "green": (30, 200, 40),
    "blue": (30, 40, 220),
    "yellow": (230, 220, 40),
}
WORDS = ("a", "photo", "of", "the", "bicycle", *COLOURS)
SIDE = 16
EOS = len(WORDS) + 3


def coloured(rng, name, side=SIDE):
    """A picture of noise around a colour."""
    noise = rng.normal(0, 25, (side, side, 3))
    return np.clip(np.array(COLOURS[name]) + noise, 0, 255).astype(np.uint8)


def write_clip(folder, model_type="clip"):
    """Write a tiny CLIP or SigLIP with its processor and a tokenizer of a few words."""
    transformers = import_package("transformers")
    torch.manual_seed(0)
    text = {
        "vocab_size": 20,
        "max_position_embeddings": 8,
        "bos_token_id": 1,
        "eos_token_id": EOS,
    }
    sizes = {
        "hidden_size": 16,
        "intermediate_size": 32,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "projection_dim": 8,
    }
    vision = {**sizes, "image_size": SIDE, "patch_size": 8}
    configs = {"clip": transformers.CLIPConfig, "siglip": transformers.SiglipConfig}
    config = configs[model_type](
        text_config={**sizes, **text, "pad_token_id": 0, "projection_size": 16},
        vision_config=vision,
        projection_dim=8,
    )
    model = transformers.AutoModel.from_config(config).eval()
    model.save_pretrained(folder)
    write_tokenizer(folder)
    kinds = {"clip": "CLIPImageProcessor", "siglip": "SiglipImageProcessor"}
    size = (
        {"shortest_edge": SIDE}
        if model_type == "clip"
        else {"height": SIDE, "width": SIDE}
    )
    facts = {"image_processor_type": kinds[model_type], "size": size, "resample": 3}
    if model_type == "clip":
        facts |= {"crop_size": {"height": SIDE, "width": SIDE}, "do_center_crop": True}
    (folder / "preprocessor_config.json").write_text(json.dumps(facts))
    return model


def write_tokenizer(folder):
    """Write a tokenizer that cuts at blanks."""
    tokenizers = import_package("tokenizers")
    transformers = import_package("transformers")
    known = ("<pad>", "<bos>", "<unk>", *WORDS, "<eos>")
    numbers = {word: number for number, word in enumerate(known)}
    made = tokenizers.Tokenizer(tokenizers.models.WordLevel(numbers, unk_token="<unk>"))
    made.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    made.post_processor = tokenizers.processors.TemplateProcessing(
        single="<bos> $A <eos>", special_tokens=[("<bos>", 1), ("<eos>", EOS)]
    )
    transformers.PreTrainedTokenizerFast(
        tokenizer_object=made,
        pad_token="<pad>",
        bos_token="<bos>",
        eos_token="<eos>",
        unk_token="<unk>",
    ).save_pretrained(folder)


def train(model, tokenizer, pixels_of, rng, steps=60):
    """Train both towers so that a picture of a colour is near the colour's name."""
    names = list(COLOURS)
    phrases = (
        "{}",
        "a {} bicycle",
        "a photo of the {} bicycle",
        "the photo of a {} bicycle",
    )
    optimizer = torch.optim.Adam(model.parameters(), 3e-3)
    target = torch.arange(len(names))
    for step in range(steps):
        texts = [phrases[step % len(phrases)].format(name) for name in names]
        tokens = tokenizer(texts, padding=True, return_tensors="pt")
        tokens = {name: tokens[name] for name in ("input_ids", "attention_mask")}
        pixels = pixels_of([coloured(rng, name) for name in names])
        scores = model(pixel_values=pixels, **tokens).logits_per_image
        loss = torch.nn.functional.cross_entropy(scores, target)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return float(loss.detach())


def extract(folder, images, name="store"):
    """A store with x7 of images, beside the folder of a model."""
    network = load_network(f"hf:{folder}")
    settings = Settings.from_network(network)
    store = Store(folder.parent / name, settings.as_dict(), "float32")
    factors = needed_factors(parse_features("x7", network.layers))
    extract_to_store(
        store, find_images(images), factors, settings=settings, network=network
    )
    return store


def write_photos(folder, count=3):
    """Write pictures of each colour, such as red0.png."""
    folder.mkdir()
    rng = np.random.default_rng(1)
    for name in COLOURS:
        for number in range(count):
            Image.fromarray(coloured(rng, name)).save(folder / f"{name}{number}.png")
    return folder


def write_trained(folder):
    """Write a CLIP that knows colours."""
    transformers = import_package("transformers")
    model = write_clip(folder)
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    preprocess = load_network(f"hf:{folder}").preprocess

    def pixels_of(images):
        return torch.from_numpy(
            np.stack([preprocess(Image.fromarray(i)) for i in images])
        )

    train(model, tokenizer, pixels_of, np.random.default_rng(2))
    model.save_pretrained(folder)
    return folder

"""Models of libraries whose x7 or pixels are not those of the usual case."""

import json
import logging
import socket

import numpy as np
import pytest
import torch
from PIL import Image

from deepfishing import extract
from deepfishing.errors import DeepFishingError, NetworkError, WeightsError
from deepfishing.networks.libraries import torchvision_models
from deepfishing.networks.libraries.connection import hub_or_cache, without_log
from deepfishing.networks.libraries.packages import import_package
from deepfishing.networks.load import load_network
from deepfishing.networks.network import wrap

SMALL = {
    "hidden_size": 32,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "intermediate_size": 64,
    "image_size": 64,
    "patch_size": 16,
}
SQUARE = {"image_processor_type": "ViTImageProcessor"}
SQUARE |= {"size": {"height": 64, "width": 64}}


@pytest.fixture
def saved(tmp_path):
    """Return a function that saves a model of transformers with random weights."""
    transformers = import_package("transformers")

    def save(kind, config, processor=SQUARE, **options):
        torch.manual_seed(0)
        settings = getattr(transformers, config)(**{**SMALL, **options})
        model = getattr(transformers, kind)(settings).eval()
        for parameter in model.parameters():
            if parameter.ndim > 1:  # random weights of 0.02 leave nothing of deep ones
                torch.nn.init.normal_(parameter, std=0.2)
        model.save_pretrained(tmp_path)
        (tmp_path / "preprocessor_config.json").write_text(json.dumps(processor))
        return model

    return save


@pytest.fixture
def pixels(rng):
    image = rng.integers(0, 256, (83, 75, 3), dtype=np.uint8)
    return lambda network: torch.from_numpy(network.preprocess(image)[None])


def embedding(network, pixels):
    with torch.inference_mode():
        return network.pick(network.module(pixels(network)))


@pytest.mark.parametrize(
    ("kind", "config", "take", "words"),
    [
        (
            "CLIPVisionModelWithProjection",
            "CLIPVisionConfig",
            lambda output: output.image_embeds,
            "image projection",
        ),
        (
            "ViTMSNModel",
            "ViTMSNConfig",
            lambda output: output.last_hidden_state[:, 0],
            "class token of last_hidden_state, since the model has no pooler",
        ),
        (
            "IJepaModel",
            "IJepaConfig",
            lambda output: output.last_hidden_state.mean(1),
            "mean of the patch tokens of last_hidden_state",
        ),
    ],
)
def test_x7_is_what_the_publishers_class_gives(
    saved, pixels, tmp_path, kind, config, take, words
):
    model = saved(kind, config)
    network = load_network(f"hf:{tmp_path}")
    with torch.inference_mode():
        expected = take(model(pixel_values=pixels(network)))
    torch.testing.assert_close(embedding(network, pixels), expected)
    assert words in network.embedding


def test_a_masked_autoencoder_sees_the_whole_picture(saved, pixels, tmp_path):
    masked = saved("ViTMAEModel", "ViTMAEConfig")
    network = load_network(f"hf:{tmp_path}")
    transformers = import_package("transformers")
    plain = transformers.ViTModel(transformers.ViTConfig(**SMALL)).eval()
    plain.load_state_dict(masked.state_dict(), strict=False)
    with torch.inference_mode():
        expected = plain(pixel_values=pixels(network)).last_hidden_state[:, 0]
    torch.testing.assert_close(embedding(network, pixels), expected)


def test_a_distilled_classifier_keeps_both_of_its_heads(saved, pixels, tmp_path):
    model = saved("DeiTForImageClassificationWithTeacher", "DeiTConfig", num_labels=7)
    network = load_network(f"hf:{tmp_path}")
    with torch.inference_mode():
        expected = model(pixel_values=pixels(network)).logits
    torch.testing.assert_close(embedding(network, pixels), expected)
    assert network.layers == {8: "distillation_classifier"}
    (note,) = network.notes
    assert "cls_classifier and distillation_classifier" in note


@pytest.mark.parametrize(
    "processor",
    [
        {
            "image_processor_type": "MobileViTImageProcessor",
            "size": {"shortest_edge": 72},
            "crop_size": {"height": 64, "width": 64},
        },
        {
            "image_processor_type": "LevitImageProcessor",
            "size": {"shortest_edge": 64},
            "crop_size": {"height": 64, "width": 64},
        },
        {
            "image_processor_type": "EfficientNetImageProcessor",
            "size": {"height": 64, "width": 64},
            "rescale_offset": True,
            "include_top": True,
        },
    ],
    ids=lambda processor: processor["image_processor_type"],
)
def test_unusual_processors_give_their_own_pixels(saved, tmp_path, rng, processor):
    saved("ViTModel", "ViTConfig", processor)
    network = load_network(f"hf:{tmp_path}")
    theirs = import_package("transformers").AutoImageProcessor.from_pretrained(
        tmp_path, backend="pil"
    )
    image = Image.fromarray(rng.integers(0, 256, (83, 175, 3), dtype=np.uint8))
    expected = np.asarray(theirs(images=image)["pixel_values"][0])
    np.testing.assert_allclose(network.preprocess(image), expected, atol=1e-5)


def test_a_network_that_keeps_a_product_of_its_weights_can_be_extracted(
    saved, tmp_path, rng
):
    sizes = {"hidden_sizes": [8, 8, 8], "num_attention_heads": [1, 1, 1]}
    sizes |= {"depths": [1, 1, 1], "key_dim": [4, 4, 4]}
    saved("LevitModel", "LevitConfig", **sizes)
    network = load_network(f"hf:{tmp_path}")
    image = rng.integers(0, 256, (83, 75, 3), dtype=np.uint8)
    pixels = torch.from_numpy(network.preprocess(image)[None])
    with torch.inference_mode():
        expected = torch.nn.functional.normalize(network.module(pixels).pooler_output)
    np.testing.assert_allclose(
        extract(network, [image], "x7")["x7"], expected, atol=1e-5
    )


def test_a_processor_without_one_size_is_refused_in_one_line(saved, tmp_path):
    saved("ViTModel", "ViTConfig", {"image_processor_type": "Siglip2ImageProcessor"})
    with pytest.raises(NetworkError, match="must resize images to one size") as caught:
        load_network(f"hf:{tmp_path}")
    assert "\n" not in str(caught.value)


def test_weights_that_a_folder_lacks_are_never_random_ones(saved, tmp_path):
    from safetensors.torch import load_file, save_file

    saved("ViTModel", "ViTConfig")
    weights = load_file(tmp_path / "model.safetensors")
    save_file(
        {name: t for name, t in weights.items() if "layernorm" not in name},
        tmp_path / "model.safetensors",
        metadata={"format": "pt"},
    )
    with pytest.raises(WeightsError, match=r"lacks .*layernorm.*get its files again"):
        load_network(f"hf:{tmp_path}")


def test_scores_of_patches_beside_the_classifier_hide_it_not(pixels):
    timm = import_package("timm")
    torch.manual_seed(0)
    module = timm.models.volo.VOLO(
        (1, 1, 1, 1),
        img_size=64,
        num_classes=5,
        embed_dims=(24, 32, 32, 32),
        num_heads=(2, 2, 2, 2),
    )
    settings = timm.get_pretrained_cfg("volo_d1_224").to_dict()
    module.pretrained_cfg = {**settings, "input_size": (3, 64, 64)}
    network = wrap(module.eval())
    assert network.layers == {8: "head"}
    assert "head and aux_head; layer 8 is head" in network.notes[0]


def test_of_cocas_output_the_image_projection_is_taken(monkeypatch, pixels):
    open_clip = import_package("open_clip")
    vision = {"image_size": 64, "layers": 1, "width": 32, "patch_size": 16}
    vision |= {"head_width": 16, "attentional_pool": True, "attn_pooler_heads": 2}
    text = {"context_length": 8, "vocab_size": 99, "width": 16, "heads": 1, "layers": 1}
    config = {"embed_dim": 32, "vision_cfg": {**vision, "output_tokens": True}}
    config |= {"text_cfg": text, "multimodal_cfg": text, "custom_text": True}
    monkeypatch.setitem(open_clip.factory._MODEL_CONFIGS, "coca_tiny", config)
    network = load_network("open_clip:coca_tiny", "random")
    with torch.random.fork_rng(devices=()):
        torch.manual_seed(0)
        model = open_clip.create_model("coca_tiny", load_weights=False).eval()
    with torch.inference_mode():
        expected = model.encode_image(pixels(network))
    found = torch.nn.functional.normalize(embedding(network, pixels))
    torch.testing.assert_close(found, torch.nn.functional.normalize(expected))


@pytest.mark.parametrize("library", ["timm", "hf"])
def test_a_folder_of_timm_is_loaded_as_such(library, tmp_path):
    timm = import_package("timm")
    module = timm.create_model("test_vit", num_classes=5)
    timm.models.save_for_hf(module, tmp_path)
    network = load_network(f"{library}:{tmp_path}")
    assert network.layers == {8: "head"}
    torch.testing.assert_close(network.module.head.weight, module.head.weight.data)


def test_whose_pixels_a_file_of_weights_gets_is_said_or_known(tmp_path, monkeypatch):
    file = tmp_path / "mine.pth"
    module = load_network("torchvision:mobilenet_v2", "random").module
    torch.save(module.state_dict(), file)
    network = load_network("torchvision:mobilenet_v2", file)
    assert network.preprocess.short_side == 232
    assert "IMAGENET1K_V2: short side 232" in network.notes[-1]
    other = load_network("torchvision:mobilenet_v2/IMAGENET1K_V1", file)
    assert (other.preprocess.short_side, other.notes) == (256, ())
    # as for a file whose checksum is that of the publisher
    tagged = "mobilenet_v2/IMAGENET1K_V1"
    monkeypatch.setattr(torchvision_models, "find_tag", lambda *_: tagged)
    known = load_network("torchvision:mobilenet_v2", file)
    assert known.preprocess.short_side == 256
    assert "IMAGENET1K_V1, by their checksum" in known.notes[-1]


def test_torchvisions_files_are_known_by_the_checksum_in_their_names():
    first, second = "b0353104" + "0" * 56, "7ebf99e0" + "0" * 56
    assert torchvision_models.find_tag("mobilenet_v2", first).endswith("IMAGENET1K_V1")
    assert torchvision_models.find_tag("mobilenet_v2", second).endswith("IMAGENET1K_V2")
    assert torchvision_models.find_tag("mobilenet_v2", "0" * 64) == ""
    with pytest.raises(NetworkError, match="it has IMAGENET1K_V1, IMAGENET1K_V2"):
        load_network("torchvision:mobilenet_v2/V7", "random")


@pytest.fixture
def unreachable(monkeypatch, tmp_path):
    """A hub that cannot be reached, an empty cache, and the times that somebody waits."""

    def refuse(*address):
        raise OSError("no connection")

    waits = []
    constants = import_package("huggingface_hub.constants")
    monkeypatch.setattr(socket, "create_connection", refuse)
    monkeypatch.setattr("urllib.request.getproxies", dict)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr("time.sleep", waits.append)
    return waits


def test_without_a_connection_a_network_comes_from_the_cache(
    saved, tmp_path, pixels, unreachable
):
    saved("ViTModel", "ViTConfig")
    kept = tmp_path / "cache" / "models--org--model"
    snapshot = kept / "snapshots" / "0123456789"
    snapshot.mkdir(parents=True)
    (kept / "refs").mkdir()
    (kept / "refs" / "main").write_text("0123456789")
    for file in ("config.json", "preprocessor_config.json", "model.safetensors"):
        (tmp_path / file).rename(snapshot / file)
    network = load_network("hf:org/model")
    assert embedding(network, pixels).shape == (1, 32)
    assert unreachable == []


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("hf:org/model", "into a folder and give hf:FOLDER"),
        ("timm:resnet18", "huggingface.co/timm/resnet18.a1_in1k elsewhere"),
        ("open_clip:ViT-B-32/openai", "open_clip_model.safetensors of huggingface.co"),
    ],
)
def test_without_a_connection_one_line_says_at_once_what_is_missing(
    name, words, unreachable, caplog, capfd
):
    with pytest.raises(DeepFishingError) as caught:
        load_network(name)
    message = str(caught.value)
    assert words in message
    assert "not in the cache, and huggingface.co cannot be reached" in message
    assert "\n" not in message
    assert unreachable == []
    assert (caplog.text, capfd.readouterr().err) == ("", "")
    assert import_package("huggingface_hub.constants").HF_HUB_OFFLINE is False


def test_a_hub_behind_a_proxy_is_asked(monkeypatch):
    monkeypatch.setattr("urllib.request.getproxies", lambda: {"https": "proxy:1"})
    constants = import_package("huggingface_hub.constants")
    with hub_or_cache():
        assert constants.HF_HUB_OFFLINE is False


def test_the_log_is_as_before_after_a_library_was_quiet(caplog):
    with without_log():
        logging.getLogger().error("hidden")
    logging.getLogger().error("shown")
    assert [record.message for record in caplog.records] == ["shown"]

"""Weights of files whose names differ from those of the code, or that lack a classifier."""

import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from deepfishing.errors import WeightsError
from deepfishing.networks.load import load_network, load_reference
from deepfishing.networks.state_dicts import match_by_order, missing_layers

MOBILE = "torchvision:mobilenet_v3_small"


@pytest.fixture(scope="module")
def mobile():
    return load_network(MOBILE, "random").module.state_dict()


def embedding(network):
    pixels = torch.linspace(-2, 2, 2 * 3 * 64 * 64).reshape(2, 3, 64, 64).sin()
    with torch.no_grad():
        return network.pick(network.module.eval()(pixels))


def test_a_trunk_has_the_input_of_the_classifier_as_its_embedding(mobile, tmp_path):
    whole = load_network(MOBILE, "random")
    trunk = {n: t for n, t in mobile.items() if not n.startswith("classifier.")}
    torch.save(trunk, tmp_path / "trunk.pt")
    network = load_network(MOBILE, tmp_path / "trunk.pt")
    assert network.layers == {8: "-"}
    assert "lacks classifier.0 and classifier.3" in network.notes[-1]
    below = []
    with whole.module.classifier[0].register_forward_pre_hook(
        lambda _, x: below.append(x[0])
    ):
        embedding(whole)
    found = embedding(network)
    assert found.shape == (2, 576)
    torch.testing.assert_close(found, nn.functional.hardswish(below[0]))
    reference = network.reference()
    assert load_reference(reference).reference() == reference


def test_without_its_top_layer_a_network_ends_at_the_layer_below(mobile, tmp_path):
    file = tmp_path / "trunk.pt"
    torch.save(
        {n: t for n, t in mobile.items() if not n.startswith("classifier.3.")}, file
    )
    network = load_network(MOBILE, file)
    assert embedding(network).shape == (2, 1024)
    assert network.layers == {7: "classifier.0", 8: "-"}


def test_timm_is_asked_for_a_network_without_a_classifier(tmp_path):
    module = load_network("timm:mobilenetv3_small_050", "random").module
    state = {
        n: t for n, t in module.state_dict().items() if not n.startswith("classifier.")
    }
    torch.save(state, tmp_path / "trunk.pt")
    network = load_network("timm:mobilenetv3_small_050", tmp_path / "trunk.pt")
    assert network.embedding == "the pooled output, which timm's own head would take"
    module.classifier = nn.Identity()
    expected = module.eval()(torch.ones(1, 3, 64, 64))
    torch.testing.assert_close(
        network.module.eval()(torch.ones(1, 3, 64, 64)), expected
    )


def test_other_names_are_matched_by_order_and_shape(mobile, tmp_path):
    renamed = {
        f"backbone.{n.replace('features.', 'blocks-')}": t for n, t in mobile.items()
    }
    torch.save(renamed, tmp_path / "renamed.pt")
    network = load_network(MOBILE, tmp_path / "renamed.pt")
    assert (
        "weights matched by order and shape, such as backbone.blocks-0"
        in network.notes[-1]
    )
    torch.testing.assert_close(network.module.state_dict(), mobile)


def test_the_tensors_below_one_prefix_are_taken(mobile, tmp_path):
    inside = {f"encoder.backbone.{n}": t for n, t in mobile.items()}
    both = {**{f"student.{n}": t for n, t in mobile.items()},
            **{f"teacher.{n}": t + 1 for n, t in mobile.items()}}  # fmt: skip
    save_file(inside, tmp_path / "sorted.safetensors")
    network = load_network(MOBILE, tmp_path / "sorted.safetensors")
    assert network.notes[-1] == "weights are those below encoder.backbone."
    torch.testing.assert_close(network.module.state_dict(), mobile)
    torch.save({**inside, "loss.weight": torch.ones(2)}, tmp_path / "larger.pt")
    network = load_network(MOBILE, tmp_path / "larger.pt")
    assert network.notes[-1].endswith("1 other tensors are left out")
    torch.testing.assert_close(network.module.state_dict(), mobile)
    torch.save(both, tmp_path / "both.pt")
    with pytest.raises(WeightsError, match="missing"):
        load_network(MOBILE, tmp_path / "both.pt")


def test_weights_under_any_one_key_are_found(mobile, tmp_path):
    torch.save({"network": mobile, "epoch": 3}, tmp_path / "one.pt")
    network = load_network(MOBILE, tmp_path / "one.pt")
    torch.testing.assert_close(network.module.state_dict(), mobile)
    torch.save({"student": mobile, "teacher": mobile}, tmp_path / "two.pt")
    with pytest.raises(
        WeightsError, match="of one network, got those of student, teac"
    ):
        load_network(MOBILE, tmp_path / "two.pt")


def test_what_fits_in_part_is_refused(mobile, tmp_path):
    renamed = {n.replace("features.", "blocks."): t for n, t in mobile.items()}
    renamed = {n.replace("classifier.", "top."): t for n, t in renamed.items()}
    first, second = list(renamed)[:2]
    swapped = {second: renamed.pop(second), first: renamed.pop(first), **renamed}
    middle = {n: t for n, t in mobile.items() if not n.startswith("features.3.")}
    for state, problem in (
        (swapped, "unexpected"),
        (middle, r"missing: features\.3\."),
    ):
        torch.save(state, tmp_path / "wrong.pt")
        with pytest.raises(WeightsError, match=problem):
            load_network(MOBILE, tmp_path / "wrong.pt")


def test_tensors_of_the_same_names_are_not_matched_by_order():
    module = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    state = {"1.weight": torch.ones(2, 2), "1.bias": torch.ones(2)}
    assert match_by_order(module, state) == (state, "")
    assert missing_layers(module, state) == {"0"}


@pytest.mark.filterwarnings("ignore::FutureWarning")
def test_names_of_torch_hub_and_the_authors_weights_are_taken_by_timm(
    tmp_path, monkeypatch
):
    from deepfishing.networks.libraries import timm_models

    timm = timm_models.import_package("timm")
    made = []

    def small(model, pretrained, **options):
        made.append(model)
        return timm.models.VisionTransformer(
            img_size=28,
            patch_size=14,
            embed_dim=12,
            depth=1,
            num_heads=2,
            num_classes=0,
        )

    monkeypatch.setattr(timm, "create_model", small)
    monkeypatch.setattr(
        timm_models, "describe", lambda module: timm_models.ModelFacts(embeds=True)
    )
    state = dict(small("", False).state_dict())
    # as the authors of DINOv2 publish it
    published = {"mask_token": torch.zeros(1, 12), **state}
    torch.save(published, tmp_path / "dinov2.pth")
    module = timm_models.load("dinov2_vits14_reg", False)
    assert made[-1] == "vit_small_patch14_reg4_dinov2"
    torch.testing.assert_close(dict(timm_models.convert(module, published)), state)
    other = {"nothing.weight": torch.zeros(1)}
    assert set(timm_models.convert(module, other)) == {"nothing.weight"}

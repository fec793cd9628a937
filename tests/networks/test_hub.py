import importlib

import pytest

from deepfishing.errors import MissingDependencyError, NetworkError, WeightsError
from deepfishing.networks.load import import_hub, load_network


def test_a_missing_package_names_its_pip_command(monkeypatch):
    def missing(name):
        raise ModuleNotFoundError(name)

    monkeypatch.setattr(importlib, "import_module", missing)
    for package in ("timm", "torchvision"):
        with pytest.raises(MissingDependencyError, match=f"pip install {package}"):
            import_hub(package)


def test_preprocessing_comes_from_the_models_own_configuration():
    timm = import_hub("timm")
    model = load_network("timm:mobilenetv3_small_100", "random")
    config = timm.data.resolve_model_data_config(timm.create_model("mobilenetv3_small_100"))
    ours = model.preprocess
    assert (ours.size, ours.mean, ours.std) == (224, config["mean"], config["std"])
    assert ours.short_side == 256  # 224 / 0.875
    assert ours.resample == config["interpolation"]
    theirs = load_network("torchvision:squeezenet1_1", "random").preprocess
    assert (theirs.size, theirs.short_side, theirs.resample) == (224, 256, "bilinear")


def test_random_weights_are_the_same_each_time():
    first, second = (load_network("timm:mobilenetv3_small_100", "random") for _ in range(2))
    assert first.weights_sha256 == second.weights_sha256
    assert first.layers == {8: "classifier"}


def test_unknown_models_and_unreachable_weights_are_one_line(monkeypatch):
    with pytest.raises(NetworkError, match=r"timm must know the model.*did you mean resnet18"):
        load_network("timm:resnet-18", "random")
    timm = import_hub("timm")

    def offline(*arguments, **options):
        raise OSError("cannot connect")

    monkeypatch.setattr(timm, "create_model", offline)
    with pytest.raises(WeightsError, match=r"cannot connect.*--weights FILE"):
        load_network("timm:resnet18")


def test_weights_from_a_file_are_loaded_strictly(tmp_path):
    import torch

    net = load_network("timm:mobilenetv3_small_100", "random")
    state = {name: tensor + 1 for name, tensor in net.module.state_dict().items()}
    torch.save(state, tmp_path / "w.pth")
    loaded = load_network("timm:mobilenetv3_small_100", tmp_path / "w.pth")
    torch.testing.assert_close(loaded.module.classifier.bias, net.module.classifier.bias + 1)
    del state["classifier.bias"]
    torch.save(state, tmp_path / "w.pth")
    with pytest.raises(WeightsError, match=r"classifier\.bias"):
        load_network("timm:mobilenetv3_small_100", tmp_path / "w.pth")

import importlib

import pytest
import torch
from torch import nn

from deepfishing.errors import MissingDependencyError, NetworkError, WeightsError
from deepfishing.images.preprocess import Preprocess
from deepfishing.networks import library_models, zoo
from deepfishing.networks.libraries import connection
from deepfishing.networks.libraries.facts import ModelFacts
from deepfishing.networks.libraries.packages import import_package
from deepfishing.networks.load import load_network


def test_a_missing_package_names_its_pip_command(monkeypatch):
    def missing(name):
        raise ModuleNotFoundError(name)

    monkeypatch.setattr(importlib, "import_module", missing)
    for package in ("timm", "torchvision"):
        with pytest.raises(MissingDependencyError, match=r"pip install .*\[hub\]"):
            import_package(package)


def test_preprocessing_comes_from_the_models_own_configuration():
    timm = import_package("timm")
    model = load_network("timm:mobilenetv3_small_100", "random")
    config = timm.data.resolve_model_data_config(
        timm.create_model("mobilenetv3_small_100")
    )
    ours = model.preprocess
    assert (ours.size, ours.mean, ours.std) == (224, config["mean"], config["std"])
    assert ours.short_side == 256  # 224 / 0.875
    assert ours.resample == config["interpolation"]
    theirs = load_network("torchvision:squeezenet1_1", "random").preprocess
    assert (theirs.size, theirs.short_side, theirs.resample) == (224, 256, "bilinear")


def test_random_weights_are_the_same_each_time():
    first, second = (
        load_network("timm:mobilenetv3_small_100", "random") for _ in range(2)
    )
    assert first.weights_sha256 == second.weights_sha256
    assert first.layers == {8: "classifier"}


def test_unknown_models_and_unreachable_weights_are_one_line(monkeypatch):
    with pytest.raises(
        NetworkError, match=r"timm must know the model.*did you mean resnet18"
    ):
        load_network("timm:resnet-18", "random")
    timm = import_package("timm")

    def offline(*arguments, **options):
        raise OSError("cannot connect")

    monkeypatch.setattr(timm, "create_model", offline)
    monkeypatch.setattr(connection, "_is_reachable", lambda address: True)
    with pytest.raises(WeightsError, match=r"cannot connect.*--weights FILE"):
        load_network("timm:resnet18")


def test_weights_from_a_file_are_loaded_strictly(tmp_path):
    net = load_network("timm:mobilenetv3_small_100", "random")
    state = {name: tensor + 1 for name, tensor in net.module.state_dict().items()}
    torch.save(state, tmp_path / "w.pth")
    loaded = load_network("timm:mobilenetv3_small_100", tmp_path / "w.pth")
    torch.testing.assert_close(
        loaded.module.classifier.bias, net.module.classifier.bias + 1
    )
    del state["classifier.bias"]
    torch.save(state, tmp_path / "w.pth")
    with pytest.raises(WeightsError, match=r"classifier\.bias"):
        load_network("timm:mobilenetv3_small_100", tmp_path / "w.pth")


class Tied(nn.Module):
    """Two layers with one weight, a table that is not among the weights, and a classifier."""

    def __init__(self, num_classes):
        super().__init__()
        self.a, self.b, self.fc = (
            nn.Linear(12, 12),
            nn.Linear(12, 12),
            nn.Linear(12, num_classes),
        )
        self.b.weight = self.a.weight
        self.register_buffer("table", torch.eye(12), persistent=False)

    def forward(self, x):
        x = self.a(x.flatten(1) @ self.table).relu()
        return self.fc(self.b(x).relu())


@pytest.fixture
def toy(monkeypatch):
    """A hub of one model, as timm's and torchvision's are made."""
    pixels = Preprocess(size=2, short_side=2, mean=(127.0,) * 3, std=(128.0,) * 3)

    def create(model, pretrained, num_classes):
        return Tied(num_classes or 7), ModelFacts(preprocess=pixels)

    monkeypatch.setitem(library_models.LIBRARY_MODELS, "toy", create)
    monkeypatch.setitem(zoo.LIBRARIES, "toy", "toy:NAME")


def test_the_number_of_classes_is_that_of_the_weights(toy, tmp_path):
    torch.save(Tied(3).state_dict(), tmp_path / "mine.pth")
    network = load_network("toy:net", tmp_path / "mine.pth")
    assert network.module.fc.out_features == 3
    torch.save({"fc.weight": torch.ones(3, 11)}, tmp_path / "other.pth")
    with pytest.raises(
        WeightsError, match=r"fc\.weight must be \(7, 12\), got \(3, 11\)"
    ):
        load_network("toy:net", tmp_path / "other.pth")


@pytest.mark.parametrize("weights", ["random", "mine.pth"])
def test_shared_weights_stay_shared_and_tables_get_the_dtype(toy, tmp_path, weights):
    torch.save(Tied(7).state_dict(), tmp_path / "mine.pth")
    given = "random" if weights == "random" else tmp_path / weights
    for dtype in ("float64", "float32", "float16"):
        module = load_network("toy:net", given, dtype=dtype).module
        assert module.a.weight is module.b.weight
        assert module.table.dtype == module.a.weight.dtype == getattr(torch, dtype)


def test_what_the_caller_draws_does_not_depend_on_a_network_being_loaded(toy):
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    load_network("toy:net", "random")
    assert torch.equal(torch.rand(3), expected)

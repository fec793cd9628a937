"""TorchScript programs are loaded where the user asks for them, and nowhere else."""

import json
from dataclasses import replace

import numpy as np
import pytest
import torch
from PIL import Image
from torch import nn

from deepfishing import Preprocess, extract, load_network, wrap
from deepfishing.errors import LayerError, NetworkError, OptionError, WeightsError
from deepfishing.networks import known_files
from deepfishing.networks.known_files import KnownFile
from deepfishing.networks.load import load_reference
from deepfishing.networks.reference import sha256_of
from deepfishing.networks.zoo import TORCHSCRIPT
from deepfishing.store import Store

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")
PIXELS = Preprocess(12, 12, mean=(0.4,) * 3, std=(0.3,) * 3, scale=1 / 255)
JSON = json.dumps({"mean": [0.4] * 3, "std": [0.3] * 3, "scale": 1 / 255, "size": 12})


class Tower(nn.Module):
    """An embedding of 9 numbers; scripted, it also writes a file."""

    def __init__(self, path: str):
        super().__init__()
        torch.manual_seed(0)
        self.conv = nn.Conv2d(3, 9, 3, stride=2)
        self.path = path

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        torch.save(x, self.path)
        return self.conv(x).relu().mean(dim=(2, 3))


class Tokens(nn.Module):
    """A tuple of a number per image and tokens."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.conv = nn.Conv2d(3, 9, 3, stride=2)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        tokens = self.conv(x).flatten(2).transpose(1, 2)
        return tokens.sum(dim=(1, 2)), tokens


@pytest.fixture
def program(tmp_path):
    """A program that writes `written` whenever it runs."""
    tower = Tower(str(tmp_path / "written"))
    torch.jit.script(tower).save(tmp_path / "net.pt")
    return tmp_path / "net.pt"


@pytest.fixture
def photos(tmp_path, rng):
    (tmp_path / "photos").mkdir()
    for number in range(9):
        values = rng.integers(0, 256, (20, 16, 3), dtype=np.uint8)
        Image.fromarray(values).save(tmp_path / "photos" / f"{number}.png")
    Image.fromarray(values.transpose(1, 0, 2)).save(tmp_path / "new.png")
    return tmp_path / "photos"


def named(path):
    return f"{TORCHSCRIPT}:{path}"


def test_its_output_is_x7(program, photos):
    network = load_network(named(program), preprocess=JSON)
    assert "TorchScript" in network.embedding
    module = Tower(str(program.parent / "elsewhere")).eval()
    images = sorted(photos.iterdir())
    expected = extract(wrap(module, preprocess=PIXELS), images, "x7")["x7"]
    np.testing.assert_allclose(
        extract(network, images, "x7")["x7"], expected, atol=1e-6
    )


@pytest.mark.parametrize("option", ["--network", "--weights"])
def test_a_file_without_the_word_says_what_to_type(program, photos, deepfish, option):
    options = ["--network", "torchvision:mobilenet_v2"] if option == "--weights" else []
    ran = deepfish("extract", photos, "store", *options, option, program)
    assert ran.code == 1
    assert f"--network torchscript:{program}" in ran.err
    assert not (program.parent / "written").exists()


def test_the_command_line_runs_one_that_is_asked_for(program, photos, deepfish):
    (photos.parent / "pixels.json").write_text(JSON)
    asked = ("--network", named(program), "--preprocess", photos.parent / "pixels.json")
    ran = deepfish("extract", photos, "store", *asked)
    assert ran.code == 0, ran.err
    assert (program.parent / "written").exists()
    assert Store.open("store").factors() == ["x7"]
    for command in (
        ("search", "store", photos.parent / "new.png"),
        ("extract", photos, "store"),
        ("models", named(program), *asked[2:]),
    ):
        ran = deepfish(*command)
        assert ran.code == 0, ran.err


def test_a_store_of_somebody_else_does_not_run_one(program, photos, deepfish, tmp_path):
    (photos.parent / "pixels.json").write_text(JSON)
    asked = ("--network", named(program), "--preprocess", photos.parent / "pixels.json")
    assert deepfish("extract", photos, "store", *asked).code == 0
    program.with_name("written").unlink()
    (tmp_path / "home" / "trusted_programs.txt").unlink()
    ran = deepfish("search", "store", photos.parent / "new.png")
    assert ran.code == 1
    assert f"run `deepfish models torchscript:{program}` once" in ran.err
    assert not program.with_name("written").exists()


def test_another_program_in_its_place_is_not_run(program, photos, deepfish):
    (photos.parent / "pixels.json").write_text(JSON)
    asked = ("--network", named(program), "--preprocess", photos.parent / "pixels.json")
    assert deepfish("extract", photos, "store", *asked).code == 0
    torch.jit.script(Tower(str(program.with_name("other")))).save(program)
    ran = deepfish("search", "store", photos.parent / "new.png")
    assert ran.code == 1
    assert "sha256" in ran.err
    assert not program.with_name("other").exists()


def test_a_reference_alone_is_not_asking(program, tmp_path, monkeypatch):
    reference = load_network(named(program), preprocess=JSON).reference()
    assert load_reference(reference).name == "torchscript:net.pt"
    monkeypatch.setenv("DEEPFISHING_HOME", str(tmp_path / "elsewhere"))
    with pytest.raises(WeightsError, match="can do all that you can"):
        load_reference(reference)


def test_a_part_of_the_output_and_its_tokens_are_chosen(photos, tmp_path):
    torch.jit.script(Tokens()).save(tmp_path / "tokens.pt")
    name, images = named(tmp_path / "tokens.pt"), sorted(photos.iterdir())
    with pytest.raises(LayerError, match="which part of the output"):
        load_network(name, preprocess=JSON)
    with pytest.raises(LayerError, match="one vector per image, got 25 tokens"):
        load_network(name, preprocess=JSON, embedding="1")
    for tokens in ("class", "patches", "mean"):
        network = load_network(name, preprocess=JSON, embedding=f"1@{tokens}")
        plain = wrap(Tokens(), preprocess=PIXELS, embedding=1, tokens=tokens)
        expected = extract(plain, images, "x7")["x7"]
        found = extract(network, images, "x7")["x7"]
        np.testing.assert_allclose(found, expected, atol=1e-6)
        again = load_reference(network.reference())
        assert again.reference() == network.reference()


def test_pixels_are_asked_for_or_known_by_the_checksum(program, monkeypatch):
    with pytest.raises(OptionError, match="how it wants its pixels; pass --preprocess"):
        load_network(named(program))
    known = KnownFile(title="A tower", preprocess=PIXELS, pixels="a square of 12")
    monkeypatch.setitem(known_files.KNOWN_FILES, sha256_of(program), known)
    network = load_network(named(program))
    assert network.preprocess == PIXELS
    assert network.notes[-1] == "A tower, by its checksum: a square of 12"
    monkeypatch.setitem(
        known_files.KNOWN_FILES, sha256_of(program), replace(known, preprocess=None)
    )
    with pytest.raises(OptionError, match="--preprocess"):
        load_network(named(program))


@pytest.mark.parametrize("content", [b"", b"PK\x03\x04 no archive", b"text"])
def test_what_is_no_program_is_refused_in_one_line(tmp_path, content):
    (tmp_path / "net.pt").write_bytes(content)
    with pytest.raises(
        NetworkError, match="cannot be loaded as TorchScript"
    ) as refused:
        load_network(named(tmp_path / "net.pt"), preprocess=JSON)
    assert "\n" not in str(refused.value)
    with pytest.raises(NetworkError, match="not found"):
        load_network(named(tmp_path / "none.pt"), preprocess=JSON)


def test_weights_alone_say_that_a_network_is_missing(tmp_path, monkeypatch):
    file = tmp_path / "weights.pth"
    torch.save(nn.Linear(2, 2).state_dict(), file)
    with pytest.raises(NetworkError, match=r"--network torchvision:NAME, .* --weights"):
        load_network(str(file))
    known = KnownFile(title="A trunk", network="torchvision:none")
    monkeypatch.setitem(known_files.KNOWN_FILES, sha256_of(file), known)
    with pytest.raises(
        NetworkError, match="torchvision must know the model, got 'none'"
    ):
        load_network(str(file))

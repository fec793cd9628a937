import os

import numpy as np
import pytest
import torch
from torch import nn

from deepfishing.core.features import needed_factors
from deepfishing.core.recipes import parse_recipes
from deepfishing.extraction import compute, engines, record
from deepfishing.extraction.encoder import BY_START_TIME, make_encoder
from deepfishing.extraction.extract import Extractor
from deepfishing.extraction.options import Resources
from deepfishing.extraction.program import Program
from deepfishing.extraction.settings import Settings
from deepfishing.images.preprocess import Preprocess
from deepfishing.networks.load import load_network, random_network
from deepfishing.networks.network import Network

INSTALLED = [name for name in BY_START_TIME if not engines.missing_packages(name)]
TORCH = Resources(engine="torch", batch_size=1)
pytestmark = pytest.mark.skipif(
    not INSTALLED, reason="no engine besides torch is installed"
)


@pytest.fixture(autouse=True)
def home(tmp_path, monkeypatch):
    monkeypatch.setenv("DEEPFISHING_HOME", str(tmp_path / "home"))
    return tmp_path / "home"


@pytest.fixture
def images(rng):
    return [rng.integers(0, 256, (40, 60, 3), dtype=np.uint8) for _ in range(3)]


@pytest.fixture
def tiny(monkeypatch):
    """A network that is found by name, as small as can be."""
    torch.manual_seed(0)
    below = nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.AdaptiveAvgPool2d(1)
    above = nn.Flatten(), nn.Linear(4, 6), nn.ReLU(inplace=True), nn.Linear(6, 3)
    preprocess = Preprocess(16, 16, mean=(127.0,) * 3, std=(128.0,) * 3)
    return random_named(
        nn.Sequential(*below, *above).eval(), {7: "5", 8: "7"}, preprocess
    )


def random_named(module, layers, preprocess):
    source = random_network("alexnet-torchvision", widths={6: 2, 7: 2, 8: 2}).source
    return Network("tiny", module, layers, preprocess, "random-0", source=source)


def needed(network, features):
    return needed_factors(parse_recipes(features, network.layers))


def describe(network, factors, **options):
    settings = Settings.from_network(network, **options)
    return make_encoder(settings, factors, lambda: network, resources=TORCH)


def values(describe, images):
    batches = list(describe(images))
    return {
        n: np.concatenate([b.factors[n] for b in batches]) for n in batches[0].factors
    }


def assert_same(got, expected):
    assert got.keys() == expected.keys()
    for name, b in expected.items():
        np.testing.assert_allclose(
            got[name], b, atol=2e-5 * np.abs(b).max(), rtol=0, err_msg=name
        )


def both(network, images, features, **options):
    """What torch says, and what the program says that the first run has kept."""
    factors = needed(network, features)
    first = describe(network, factors, **options)
    assert not isinstance(first, Program)
    second = describe(network, factors, **options)
    assert isinstance(second, Program)
    return values(second, images), values(first, images)


@pytest.mark.usefixtures("small_input")
def test_a_program_gives_every_factor_of_the_default_network(images):
    features = ["all", "y7", "dW7@exact", "dW7@4x4"]
    assert_same(*both(load_network(), images, features, views="flip"))


@pytest.mark.parametrize("name", ["alexnet-caffe", "alexnet-torchvision"])
def test_a_program_gives_every_factor_of_fully_connected_layers(name, images):
    assert_same(
        *both(random_network(name, widths={6: 8, 7: 8, 8: 5}), images[:2], "all")
    )


@pytest.mark.parametrize("engine", INSTALLED)
@pytest.mark.parametrize("label", ["uniform", 1])
def test_a_program_runs_in_every_engine(engine, label, tiny, images, monkeypatch):
    monkeypatch.setattr("deepfishing.extraction.encoder.BY_START_TIME", (engine,))
    assert_same(*both(tiny, images, "all", label=label, tau=3.0))


def test_an_unreadable_image_is_reported_in_its_place(tiny, images):
    factors = needed(tiny, "x7")
    describe(tiny, factors)
    found = list(describe(tiny, factors)([images[0], "nowhere.jpg", images[1]]))
    assert [b.indices for b in found] == [[0], [], [2]]
    assert "nowhere.jpg" in found[1].failures[1]


def test_other_settings_other_positions_and_other_code_have_programs_of_their_own(
    tiny, home, monkeypatch
):
    programs = home / "engines"
    for n, (features, options) in enumerate(
        [("x7", {}), ("x7", {"tau": 3.0}), ("dW8@2x2", {}), ("dW8", {"views": "flip"})],
        start=1,
    ):
        describe(tiny, needed(tiny, features), **options)
        assert len(list(programs.iterdir())) == n
    monkeypatch.setattr("deepfishing.extraction.encoder._source", lambda: "changed")
    assert not isinstance(describe(tiny, needed(tiny, "x7")), Program)
    monkeypatch.setattr("deepfishing.extraction.encoder.version_of", lambda name: "9.9")
    assert not isinstance(describe(tiny, needed(tiny, "x7")), Program)


def test_one_program_serves_all_feature_sets_of_the_table(tiny, images, home):
    notices = []
    settings = Settings.from_network(tiny)
    for features in ("x7", "dW8", "dW7,x6", "y8,x8", "all"):
        factors = needed(tiny, features)
        made = make_encoder(
            settings, factors, lambda: tiny, resources=TORCH, notice=notices.append
        )
        expected = values(
            Extractor(tiny, factors, settings=settings, resources=TORCH), images
        )
        assert_same(values(made, images), expected)
        assert isinstance(made, Program) == (features != "x7")
    assert len(list((home / "engines").iterdir())) == 1
    assert notices == [
        "preparing tiny for single photos: some seconds, once on this machine"
    ]


def test_the_first_run_has_one_thread_and_compiles_no_trunk(tiny, monkeypatch):
    started = []
    start_engine = compute.start_engine

    def note(name, *arguments):
        started.append((name, torch.get_num_threads()))
        return start_engine(name, *arguments)

    monkeypatch.setattr(compute, "start_engine", note)
    torch.set_num_threads(2)
    try:
        make_encoder(
            Settings.from_network(tiny),
            needed(tiny, "x7"),
            lambda: tiny,
            resources=Resources(),
        )
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(1)
    assert started == [("torch", 1)]


def test_a_damaged_program_is_told_and_made_again(tiny, images, home):
    factors = needed(tiny, "dW8")
    expected = values(describe(tiny, factors), images)
    (file,) = (home / "engines").iterdir()
    file.write_bytes(file.read_bytes()[:-9])
    with pytest.warns(UserWarning, match=rf"{file.name} was damaged; it is made again"):
        again = describe(tiny, factors)
    assert not isinstance(again, Program)
    assert_same(values(describe(tiny, factors), images), expected)


def test_a_network_that_is_no_program_stays_in_torch_and_is_tried_once(
    tiny, images, monkeypatch, capfd
):
    class Strange(nn.Module):  # a step that ONNX does not have
        def forward(self, x):
            return torch.erfinv(x.clamp(-0.5, 0.5))

    tiny.module[6] = Strange()
    factors = needed(tiny, "all")
    expected = values(
        Extractor(tiny, factors, settings=Settings.from_network(tiny)), images
    )
    assert_same(values(describe(tiny, factors), images), expected)
    assert capfd.readouterr().out == ""
    monkeypatch.setattr(record, "make_program", lambda *_: pytest.fail("tried again"))
    assert isinstance(describe(tiny, factors), Extractor)


def test_a_program_that_differs_from_torch_is_not_kept(tiny, monkeypatch):
    step = torch.ops.aten.threshold_backward.default
    plain = record.get_decompositions(record.STEPS)
    wrong = {**plain, step: lambda g, x, low: g * 2}
    monkeypatch.setattr(record, "get_decompositions", lambda steps: wrong)
    factors = needed(tiny, "all")
    describe(tiny, factors)
    assert isinstance(describe(tiny, factors), Extractor)


def test_a_given_network_is_the_one_that_runs(tiny, home):
    settings, factors = Settings.from_network(tiny), needed(tiny, "x7")
    made = make_encoder(settings, factors, lambda: tiny, resources=TORCH, own=True)
    assert isinstance(made, Extractor)
    assert not home.exists()


def test_models_that_were_not_used_for_longest_leave_first(home, monkeypatch):
    monkeypatch.setattr(engines, "MAX_CACHE_BYTES", 25)
    for n, key in enumerate("abc"):
        engines.write_cached(key, key.encode() * 10)
        (path,) = (home / "engines").glob(f"{key}-*")
        os.utime(path, (n, n))
    assert engines.read_cached("b") == b"b" * 10  # used now
    assert engines.read_cached("a") is None
    engines.write_cached("d", b"d" * 10)
    assert [engines.read_cached(key) is None for key in "bcd"] == [False, True, False]

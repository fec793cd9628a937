import io
import json
import subprocess
import sys
import tarfile

import numpy as np
import pytest

from deepfishing.core.kernels import gram
from deepfishing.extraction.extract import extract
from deepfishing.extraction.pipeline import extract_to
from deepfishing.networks.libraries.packages import import_package
from deepfishing.networks.load import load_network
from deepfishing.store import Store
from deepfishing.web.gallery import Gallery


def rows(folder):
    """Paths in order, and per factor the unit vectors that are on disk."""
    store = Store.open(folder)
    images = sorted(store.rows().values(), key=lambda row: row.path)
    keys = [row.sha256 for row in images]
    table = {name: store.read(keys, name) for name in store.factors()}
    flat = {name: unit(values.reshape(len(keys), -1)) for name, values in table.items()}
    return {"path": [row.path for row in images], **flat}


def events_of(ran):
    """The JSON events, without those of progress, which depend on the clock."""
    events = map(json.loads, ran.out.splitlines())
    return [event for event in events if event["event"] != "progress"]


def unit(values):
    return values / np.linalg.norm(values, axis=1, keepdims=True)


def test_a_folder_of_images_becomes_a_store(deepfish, shapes, tmp_path):
    ran = deepfish(
        "extract", shapes, "s", "--features", "x7,dW8", "--precision", "float16"
    )
    assert ran.code == 0, ran.err
    assert "24 images, 24 computed now" in ran.out
    again = deepfish("extract", shapes, "s", "--features", "x7,dW8", "--json")
    start, end = events_of(again)
    assert start == {"event": "start", "images": 24, "to_compute": 0}
    assert (end["event"], end["computed"]) == ("end", 0)
    assert end["factors"] == ["x7", "delta8"]
    paths = sorted(shapes.rglob("*.jpg"))
    expected = extract(load_network(), paths, "x7")["x7"]
    np.testing.assert_allclose(rows(tmp_path / "s")["x7"], expected, atol=1e-3)


def test_labels_from_folders_are_reported_and_albums_give_none(deepfish, shapes):
    labelled = deepfish("extract", shapes, "s", "--features", "x7")
    assert "labels: 24 images of 2 classes: dark, light\n" in labelled.out
    assert "names of folders; if they are albums, add --albums\n" in labelled.out
    albums = deepfish("extract", shapes, "s", "--features", "x7", "--albums")
    assert "labels" not in albums.out
    assert "albums" not in albums.out
    rows = Store.open("s").labelled_rows()
    assert {row.labels for row in rows} == {None}


def test_images_of_the_same_content_are_counted(deepfish, shapes):
    few = shapes / "train/dark"
    first, second, *_ = sorted(few.iterdir())
    for name, path in (("a.jpg", first), ("b.jpg", first), ("c.jpg", second)):
        (few / name).write_bytes(path.read_bytes())
    ran = deepfish("extract", few, "s", "--features", "x7")
    assert "9 images, 6 computed now, 3 the same as others\n" in ran.out


def test_unreadable_images_are_listed_and_left_out_and_strict_stops_before_the_work(
    deepfish, shapes, tmp_path
):
    few = shapes / "train/dark"
    (few / "broken.jpg").write_bytes(b"\xff\xd8\xff")
    ran = deepfish("extract", few, "s", "--features", "x7")
    assert ran.code == 0
    assert "7 images, 6 computed now, 1 left out" in ran.out
    assert "broken.jpg" in ran.err
    for store in ("s", "new"):  # told by what the store knows, or by decoding
        strict = deepfish("extract", few, store, "--features", "x7", "--strict")
        assert strict.code == 1
        assert "1 of 7 images cannot be used, the first: " in strict.err
        assert "broken.jpg" in strict.err
        assert strict.err.count("\n") == 1
        assert strict.out == ""
    assert not list((tmp_path / "new").rglob("*shard*"))  # before the work
    events = deepfish("extract", few, "s", "--features", "x7", "--retry", "--json")
    start, failure, end = events_of(events)
    assert start["to_compute"] == 1
    assert (failure["event"], failure["id"]) == ("failure", "broken.jpg")
    assert list(end["failures"]) == ["broken.jpg"]


def test_removed_images_are_reported_and_dropped_on_demand(deepfish, shapes, tmp_path):
    few = shapes / "train/dark"
    deepfish("extract", few, "s", "--features", "x7")
    (few / "3.jpg").unlink()
    ran = deepfish("extract", few, "s", "--features", "x7")
    assert "s: 5 images, 0 computed now; the store holds 6 now\n" in ran.out
    assert "prune" not in ran.out + ran.err
    assert len(Store.open(tmp_path / "s").rows()) == 6
    assert (
        "1 dropped: 3.jpg"
        in deepfish("extract", few, "s", "--features", "x7", "--prune").out
    )
    assert len(Store.open(tmp_path / "s").rows()) == 5


def test_a_second_folder_is_added_and_the_store_says_what_it_holds(
    deepfish, shapes, tmp_path
):
    dark, light = shapes / "train/dark", shapes / "train/light"
    deepfish("extract", dark, "s", "--features", "x7")
    for path in sorted(light.iterdir())[:4]:
        path.rename(path.with_name(f"light{path.name}"))
    ran = deepfish("extract", light, "s", "--features", "x7")
    assert "s: 6 images, 6 computed now; the store holds 10 now\n" in ran.out
    # of one name in both folders
    assert "2 replaced by other files: 4.jpg, 5.jpg\n" in ran.out
    end = events_of(deepfish("extract", light, "s", "--features", "x7", "--json"))[-1]
    assert (end["stored"], end["replaced"]) == (10, [])
    moved = light.rename(shapes / "moved")
    assert "replaced" not in deepfish("extract", moved, "s", "--features", "x7").out


def test_a_folder_in_which_nothing_is_usable_ends_with_1(deepfish, tmp_path):
    (tmp_path / "photos").mkdir()
    for name in ("a.jpg", "b.png"):
        (tmp_path / "photos" / name).write_bytes(b"")
    ran = deepfish("extract", "photos", "s", "--features", "x7")
    assert ran.code == 1
    assert ran.err.splitlines()[-1] == "deepfish: none of 2 images can be used"
    assert deepfish("extract", "photos", "s", "--features", "x7", "--json").code == 1


def test_files_that_are_no_pictures_are_counted(deepfish, shapes):
    few = shapes / "train/dark"
    for name in ("a.txt", "b.txt", "IMG_1.DNG"):
        (few / name).write_bytes(b"")
    ran = deepfish("extract", few, "s", "--features", "x7")
    assert "passed over: 2 .txt, 1 .dng\n" in ran.err
    end = events_of(deepfish("extract", few, "s", "--features", "x7", "--json"))[-1]
    assert end["passed_over"] == {".dng": 1, ".txt": 2}


def test_without_options_a_store_has_all_that_search_serve_and_train_need(
    deepfish, shapes, tmp_path
):
    ran = deepfish("extract", shapes / "train", "s", "--weights", "random")
    assert ran.code == 0, ran.err
    assert ran.err == "next: deepfish serve s, or deepfish train s model\n"
    labels = {row.labels for row in Store.open(tmp_path / "s").rows().values()}
    assert labels == {("dark",), ("light",)}
    assert deepfish("search", "s", "dark/0.jpg").code == 0
    assert set(Gallery(tmp_path / "s").collection.label_counts()) == {"dark", "light"}
    ran = deepfish("train", "s", "model")
    assert ran.code == 0, ran.err
    assert ran.err == "next: deepfish predict model PHOTO.jpg\n"


def test_a_tar_gives_the_features_of_its_images(deepfish, shapes, tmp_path):
    folder = shapes / "train/dark"
    with tarfile.open(tmp_path / "p.tar", "w") as tar:
        for path in sorted(folder.iterdir()):
            tar.add(path, path.name)
            info = tarfile.TarInfo(f"{path.stem}.cls")
            info.size = 4
            tar.addfile(info, io.BytesIO(b"dark"))
    for source, store in (("p.tar", "t"), (folder, "f")):
        ran = deepfish("extract", source, store, "--features", "x7,dW8")
        assert ran.code == 0, ran.err
    tarred, plain = rows(tmp_path / "t"), rows(tmp_path / "f")
    np.testing.assert_array_equal(tarred["x7"], plain["x7"])
    stored = Store.open(tmp_path / "t").rows()
    assert {row.labels for row in stored.values()} == {("dark",)}
    assert next(iter(stored)) == "p.tar/0.jpg"


@pytest.mark.usefixtures("full_input")
def test_a_complete_store_is_found_complete_without_torch(deepfish, shapes, tmp_path):
    few = shapes / "train/dark"
    arguments = ["extract", str(few), "s", "--features", "x7"]
    assert deepfish(*arguments).code == 0
    code = (
        "import sys; from deepfishing.cli.app import root; "
        f"root.main({arguments!r}, standalone_mode=False); print('torch' in sys.modules)"
    )
    ran = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        check=True,
        cwd=tmp_path,
    )
    assert "6 images, 0 computed now" in ran.stdout
    assert ran.stdout.splitlines()[-1] == "False"


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["nowhere", "s"], "nowhere, which does not exist"),
        (["shapes", "s", "--tau", "0"], "tau must be"),
        (["shapes", "s", "--batch-size", "0"], "batch size"),
        (
            ["shapes", "s", "--precision", "float8"],
            "one of int8, int4, float16, float32",
        ),
        (["shapes", "s", "--weights", "none.pth"], "none.pth"),
        (["shapes", "file/s"], "store cannot be made: file/s"),
        (["shapes", "s", "--network", "timm:resnet81"], "did you mean resnet"),
        (["shapes", "s", "--network", "torchvision:alexnett"], "did you mean alexnet"),
        (["shapes", "s", "--network", "none.caffemodel"], "none.caffemodel"),
        (
            ["shapes", "s", "--network", "vgg16", "--preprocess", "1,2,3"],
            "preprocess goes with a .caffemodel",
        ),
        (["shapes", "s", "--network", "none.prototxt"], "none.prototxt must have its"),
        (["shapes", "s", "--features", "dW7@0x8"], "feature must be"),
    ],
)
def test_bad_input_is_one_line_and_makes_no_store(
    deepfish, shapes, tmp_path, arguments, words
):
    (tmp_path / "file").write_text("")
    ran = deepfish("extract", *arguments)
    assert ran.code == 1
    assert words in ran.err
    assert ran.err.count("\n") == 1
    assert not (tmp_path / "s").exists()


def test_a_second_process_on_a_store_is_told_in_one_line(deepfish, shapes, tmp_path):
    few = shapes / "train/dark"
    deepfish("extract", few, "s", "--features", "x7")
    with Store.open(tmp_path / "s").writing():
        ran = deepfish("extract", few, "s", "--features", "x7")
    assert ran.code == 1
    assert "another process works on s" in ran.err
    assert ran.err.count("\n") == 1


def test_other_settings_are_refused_and_named(deepfish, shapes):
    deepfish("extract", shapes / "train/dark", "s", "--features", "x7")
    ran = deepfish(
        "extract", shapes / "train/dark", "s", "--features", "x7", "--tau", "3"
    )
    assert ran.code == 1
    assert "was made with tau = 2.0, now it is 3.0" in ran.err


@pytest.mark.parametrize(
    ("network", "layer"),
    [
        ("timm:resnet18", "layer4.0.downsample.0"),
        ("timm:vit_tiny_patch16_224", "blocks.11.mlp.fc2"),
        ("timm:mobilenetv3_small_100", "conv_head"),
        ("timm:vgg11", "pre_logits.fc1"),
        ("torchvision:resnet18", "layer4.1.conv2"),
    ],
)
def test_a_named_layer_of_a_timm_model_equals_the_per_sample_reference(
    shapes, tmp_path, network, layer, per_sample_gradient, narrow_vgg
):
    extract_to(
        tmp_path / "s",
        sorted((shapes / "train/dark").glob("*.jpg"))[:3],
        features=f"dW:{layer}@exact",
        precision="float32",
        network=network,
        weights="random",
        dtype="float64",
    )
    stored = rows(tmp_path / "s")
    net = load_network(network, "random", dtype="float64")
    slow = per_sample_gradient(net, [str(p) for p in stored["path"]], layer)
    n, (D, d) = len(slow), slow.reshape(len(slow), slow.shape[1], -1).shape[1:]
    x = stored[f"in:{layer}@exact"].reshape(n, -1, d)
    delta = stored[f"delta:{layer}@exact"].reshape(n, -1, D)
    ours = np.einsum("npd,npe->ned", x, delta).reshape(n, -1)
    np.testing.assert_allclose(unit(ours), unit(slow.reshape(n, -1)), atol=1e-6)


@pytest.fixture
def narrow_vgg(monkeypatch):
    """timm's VGG11 with few channels below its fully connected layers."""
    import_package("timm")
    from timm.models import vgg

    channels = [8 if isinstance(width, int) else width for width in vgg.cfgs["vgg11"]]
    monkeypatch.setitem(vgg.cfgs, "vgg11", channels)


@pytest.fixture
def per_sample_gradient():
    """dE/dW of each image, one backward pass at a time through the whole network."""
    import torch

    def compute(net, paths, layer):
        weight = net.module.get_submodule(layer).weight.requires_grad_(True)
        gradients = []
        for path in paths:
            image = torch.from_numpy(net.preprocess(path))[None].to(net.dtype)
            y = net.module.eval()(image)
            error = -torch.log_softmax(y / 2, dim=1).mean(dim=1).sum()
            gradients.append(torch.autograd.grad(error, weight)[0].numpy())
        return np.stack(gradients)

    return compute


def test_a_projected_gradient_is_one_small_column(deepfish, shapes, tmp_path):
    ran = deepfish("extract", shapes, "s", "--features", "dW7@16x8,dW7@exact")
    assert ran.code == 0, ran.err
    stored = rows(tmp_path / "s")
    assert stored["dW7@16x8"].shape == (24, 128)
    exact = extract(load_network(), sorted(shapes.rglob("*.jpg")), "dW7@exact")[
        "dW7@exact"
    ]
    approximate = stored["dW7@16x8"] @ stored["dW7@16x8"].T
    assert np.corrcoef(gram(exact).ravel(), approximate.ravel())[0, 1] > 0.8


def test_views_and_recipes_decide_what_is_in_the_store(deepfish, shapes, tmp_path):
    few = str(shapes / "train/dark")
    recipe = "(2*low+1)*dW8"
    done = deepfish("extract", few, "s", "--features", recipe, "--views", "flip")
    assert done.code == 0, done.err
    assert set(Store.open(tmp_path / "s").factors()) == {"x6", "x7", "delta8"}
    other = deepfish("extract", few, "s", "--features", recipe, "--views", "centre")
    assert other.code == 1
    assert "was made with views = 'flip', now it is 'centre'" in other.err
    # with the store's own
    assert deepfish("extract", few, "s", "--features", recipe).code == 0
    for option, text in (("--views", "flop"), ("--batch-size", "many")):
        wrong = deepfish("extract", few, "t", option, text)
        assert wrong.code == 1
        assert text in wrong.err
        assert not (tmp_path / "t").exists()


def test_a_dry_run_estimates_the_disk_of_the_run_and_stores_nothing(
    deepfish, shapes, tmp_path
):
    options = ("--features", "x7,dW8")
    ran = deepfish("extract", shapes, "s", *options, "--dry-run", "--json")
    assert ran.code == 0, ran.err
    found = json.loads(ran.out)
    assert found["images"] == found["to_compute"] == len(list(shapes.rglob("*.jpg")))
    assert found["seconds"] > 0
    assert not (tmp_path / "s").exists()
    deepfish("extract", shapes, "s", *options)
    shards = list((tmp_path / "s").rglob("shard-*"))
    overhead = 2000 * len(shards)  # the Parquet footer of a file, whatever its length
    assert found["bytes"] == pytest.approx(
        sum(path.stat().st_size for path in shards), abs=overhead
    )
    again = deepfish("extract", shapes, "s", *options, "--dry-run")
    assert (
        again.out == f"s: nothing to compute, all {found['images']} images are stored\n"
    )


def test_a_dry_run_takes_the_settings_of_the_store_and_counts_new_images_alone(
    deepfish, shapes, tmp_path
):
    deepfish("extract", shapes / "train/dark", "s", "--features", "x7", "--tau", "3")
    before = sorted(path.name for path in (tmp_path / "s").rglob("*"))
    ran = deepfish("extract", shapes / "train", "s", "--features", "x7", "--dry-run")
    # ids are paths below the folder
    assert ran.out.startswith("s: 12 of 12 images to compute\n")
    assert "disk    about " in ran.out
    refused = deepfish(
        "extract", shapes / "train", "s", "--network", "vgg16", "--dry-run"
    )
    assert refused.code == 1
    assert "the store was made with network = efficientnet-lite0" in refused.err
    assert sorted(path.name for path in (tmp_path / "s").rglob("*")) == before


def test_a_dry_run_of_unusable_images_or_on_a_cluster_is_one_line(
    deepfish, shapes, tmp_path
):
    (tmp_path / "bad").mkdir()
    (tmp_path / "bad/a.jpg").write_bytes(b"no picture")
    ran = deepfish("extract", "bad", "s", "--features", "x7", "--dry-run")
    assert (ran.code, ran.err.count("\n")) == (1, 1)
    assert "not an image that Pillow can read: bad/a.jpg" in ran.err
    ran = deepfish("extract", shapes, "s", "--dry-run", "--on", "ray")
    assert (
        ran.err
        == "deepfish: --dry-run measures this machine, got --on ray; leave --on out\n"
    )

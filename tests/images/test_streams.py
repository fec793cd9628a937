"""Images that Python has: Hugging Face, torch, tars, generators; never all at once."""

import io
import json
import tarfile

import datasets
import numpy as np
import pandas as pd
import pytest
import torch
from PIL import Image

from deepfishing import Store, extract, extract_to
from deepfishing.errors import DatasetError, ImageError, OptionError, StoreError
from deepfishing.images import streams


@pytest.fixture
def pictures(rng):
    return [
        Image.fromarray(a) for a in rng.integers(0, 255, (7, 20, 24, 3), dtype=np.uint8)
    ]


@pytest.fixture
def expected(toy_network, pictures):
    return extract(toy_network, pictures, "x7")["x7"]


def png(picture):
    content = io.BytesIO()
    picture.save(content, "PNG")
    return content.getvalue()


@pytest.fixture
def hugging(pictures):
    kinds = datasets.Features(
        {"image": datasets.Image(), "label": datasets.ClassLabel(names=["cat", "dog"])}
    )
    rows = {"image": pictures, "label": [i % 2 for i in range(7)]}
    return datasets.Dataset.from_dict(rows, features=kinds, split="train")


class Torch(torch.utils.data.Dataset):
    """As torchvision's: (image, number of the class), and no IndexError at the end."""

    classes = ("cat", "dog")

    def __init__(self, images):
        self.images = images

    def __len__(self):
        return len(self.images)

    def __getitem__(self, i):
        return self.images[i % len(self)], i % 2


def tensor(picture):
    return torch.from_numpy(np.array(picture)).permute(2, 0, 1)


def each_kind(pictures, hugging):
    whole = [tensor(p) for p in pictures]
    floats = [tensor(p) / 255 for p in pictures]
    return {
        "datasets": hugging,
        "datasets in another format": hugging.with_format("torch"),
        "streamed datasets": hugging.to_iterable_dataset(),
        "torch dataset": Torch(pictures),
        "torch dataset of tensors": Torch(whole),
        "torch dataset of floats": Torch(floats),
        "loader": torch.utils.data.DataLoader(Torch(whole), batch_size=3),
        "generator": (p for p in pictures),
        "pairs": ((p, "cat") for p in pictures),
        "samples of webdataset": (
            {"__key__": "a", "png": png(p), "cls": 1} for p in pictures
        ),
    }


@pytest.mark.parametrize("kind", each_kind([], datasets.Dataset.from_dict({"x": [1]})))
def test_extract_takes_images_from_wherever_python_has_them(
    kind, toy_network, pictures, hugging, expected
):
    found = extract(toy_network, each_kind(pictures, hugging)[kind], "x7")["x7"]
    np.testing.assert_allclose(found, expected, atol=1e-6)


@pytest.mark.parametrize("kind", each_kind([], datasets.Dataset.from_dict({"x": [1]})))
def test_a_store_of_them_has_their_order_and_labels_and_is_not_computed_twice(
    kind, toy_network, pictures, hugging, expected, tmp_path
):
    def run():
        source = each_kind(pictures, hugging)[kind]
        return extract_to(
            tmp_path / "s",
            source,
            network=toy_network,
            features="x7",
            precision="float32",
        )

    assert run().computed == 7
    assert run().computed == 0
    store = Store.open(tmp_path / "s")
    np.testing.assert_allclose(store.feature("x7"), expected, atol=1e-5)
    labels = [row.labels for row in store.usable()]
    numbered = [("cat",), ("dog",)] * 3 + [("cat",)]
    assert labels in ([None] * 7, [("cat",)] * 7, [("1",)] * 7, numbered)
    assert (labels == numbered) == (kind[:5] in ("datas", "strea", "torch", "loade"))
    prefix = "train" if kind.startswith("datasets") else "image"
    assert [row.id for row in store.usable()] == [f"{prefix}/{i:07d}" for i in range(7)]


def test_a_long_stream_is_held_a_block_at_a_time(
    toy_network, pictures, expected, tmp_path, monkeypatch
):
    monkeypatch.setattr(streams, "BLOCK_BYTES", 2900)  # two pictures
    largest = 0

    def stream():
        nonlocal largest
        for number, picture in enumerate(pictures):
            done = (
                Store.open(tmp_path / "s").rows()
                if (tmp_path / "s/store.json").exists()
                else ()
            )
            largest = max(largest, number - len(done))
            yield picture

    extract_to(
        tmp_path / "s",
        stream(),
        network=toy_network,
        features="x7",
        precision="float32",
    )
    store = Store.open(tmp_path / "s")
    np.testing.assert_allclose(store.feature("x7"), expected, atol=1e-5)
    assert largest == 1  # all others were on disk when the next one was asked for


def test_an_endless_stream_is_read_no_further_than_the_work_needs(
    toy_network, pictures
):
    asked = 0

    def endless():
        nonlocal asked
        while True:
            asked += 1
            if asked > 200:
                raise RuntimeError("too far")
            yield pictures[0] if asked < 60 else "no such file"

    with pytest.raises(ImageError, match="not found"):
        extract(toy_network, endless(), "x7", batch_size=8)
    assert asked < 120


def test_a_tar_and_a_folder_are_read_by_their_paths(
    toy_network, pictures, expected, tmp_path
):
    (tmp_path / "photos").mkdir()
    with tarfile.open(tmp_path / "photos.tar", "w") as tar:
        for number, picture in enumerate(pictures):
            picture.save(tmp_path / "photos" / f"{number}.png")
            for name, content in (
                ("png", png(picture)),
                ("json", json.dumps({"label": "a"}).encode()),
            ):
                info = tarfile.TarInfo(f"{number}.{name}")
                info.size = len(content)
                tar.addfile(info, io.BytesIO(content))
    for path in (tmp_path / "photos.tar", str(tmp_path / "photos")):
        np.testing.assert_array_equal(extract(toy_network, path, "x7")["x7"], expected)
    paths = [str(path) for path in sorted((tmp_path / "photos").iterdir())]
    assert (
        extract_to(tmp_path / "s", paths, network=toy_network, features="x7").computed
        == 7
    )


def test_other_images_under_the_same_ids_are_refused_and_a_name_helps(
    toy_network, pictures, tmp_path
):
    run = {"network": toy_network, "features": "x7"}
    extract_to(tmp_path / "s", pictures[:3], **run)
    with pytest.raises(
        StoreError, match=r"image/0000000 is another image in .* pass name="
    ):
        extract_to(tmp_path / "s", pictures[3:], **run)
    extract_to(tmp_path / "s", pictures[3:], **run, name="more")
    assert len(Store.open(tmp_path / "s").usable()) == 7


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda p: datasets.DatasetDict(train=p), "one split, got several: train"),
        (lambda p: [torch.zeros(3, 4, 4) - 1], "leave out Normalize"),
        (lambda p: [torch.zeros(2, 3, 4, 4)], "leave out Normalize"),
        (lambda p: [{"text": "a"}], "must have an image, got text"),
        (lambda p: [(1, 2, 3)], r"\(image, label\), got 3 values"),
        (lambda p: datasets.Dataset.from_dict({"text": ["a"]}), "type Image, got text"),
    ],
)
def test_what_is_no_image_is_one_line(make, said, toy_network, hugging):
    with pytest.raises((DatasetError, ImageError), match=said):
        extract(toy_network, make(hugging), "x7")


def test_a_table_is_no_list_of_images(toy_network, tmp_path):
    table = pd.DataFrame({"path": ["a.jpg"]})
    with pytest.raises(
        OptionError, match=r"must be a list of images, got one DataFrame; .*column"
    ):
        extract(toy_network, table, "x7")
    with pytest.raises(OptionError, match="must be a list of images"):
        extract_to(tmp_path / "s", table, network=toy_network, features="x7")


@pytest.mark.parametrize(
    "as_given",
    [
        lambda picture: picture,
        np.asarray,
        lambda picture: np.asarray(picture) / 255,
        lambda picture: np.asarray(picture).astype(np.float32),
        tensor,
        lambda picture: tensor(picture) / 255,
        png,
    ],
    ids=[
        "PIL",
        "array",
        "floats to 1",
        "floats to 255",
        "tensor",
        "floats of torch",
        "bytes",
    ],
)
def test_one_image_and_arrays_of_floats_are_taken(
    as_given, toy_network, pictures, expected, tmp_path
):
    one = as_given(pictures[0])
    np.testing.assert_allclose(
        extract(toy_network, one, "x7")["x7"], expected[:1], atol=1e-6
    )
    listed = extract(toy_network, [as_given(picture) for picture in pictures], "x7")[
        "x7"
    ]
    np.testing.assert_allclose(listed, expected, atol=1e-6)
    assert (
        extract_to(tmp_path / "s", one, network=toy_network, features="x7").computed
        == 1
    )


@pytest.mark.parametrize("given", [5, None, [5]])
def test_what_is_no_image_at_all_is_one_line(given, toy_network):
    with pytest.raises((OptionError, ImageError), match=r"got (int|NoneType)"):
        extract(toy_network, given, "x7")


@pytest.mark.parametrize(
    "values", [-1.0, 256.0, np.nan], ids=["normalised", "large", "NaN"]
)
def test_floats_that_are_no_pixels_are_refused_with_their_range(values, toy_network):
    image = np.full((9, 9, 3), 0.5)
    image[0, 0, 0] = values
    with pytest.raises(ImageError, match=r"floats from 0 to 1, .* got float64 .* from"):
        extract(toy_network, image, "x7")


def test_a_column_of_paths_and_tensors_of_any_precision_are_taken(
    toy_network, pictures, expected, tmp_path
):
    for number, picture in enumerate(pictures):
        picture.save(tmp_path / f"{number}.png")
    paths = [str(tmp_path / f"{number}.png") for number in range(7)]
    for column in (pd.Series(paths), np.array(paths)):
        np.testing.assert_array_equal(
            extract(toy_network, column, "x7")["x7"], expected
        )
    grey = extract(
        toy_network, [torch.full((1, 9, 9), 0.5, dtype=torch.bfloat16)], "x7"
    )["x7"]
    same = extract(toy_network, [np.full((9, 9), 128, dtype=np.uint8)], "x7")["x7"]
    np.testing.assert_array_equal(grey, same)
    with pytest.raises(
        ImageError, match=r"or \(H, W, 4\), .* got uint8 of shape \(9, 9, 2\)"
    ):
        extract(toy_network, [torch.zeros(2, 9, 9)], "x7")


def test_minus_one_is_no_label_and_a_number_beyond_the_classes_is_refused(hugging):
    rows = hugging.remove_columns("label").add_column("label", [0, -1, 1, 0, 1, -1, 0])
    rows = rows.cast_column("label", datasets.ClassLabel(names=["cat", "dog"]))
    labels = [labels for _, labels in streams.samples(rows)]
    assert labels == [("cat",), None, ("dog",), ("cat",), ("dog",), None, ("cat",)]

    class Numbered(list):
        classes = ("cat", "dog")

    with pytest.raises(DatasetError, match="one of 2 classes, got number 2"):
        list(streams.samples(Numbered([("a.jpg", 2)])))


def test_a_vector_is_no_label(toy_network, pictures, tmp_path):
    source = [(pictures[0], torch.tensor([0, 1, 0]))]
    with pytest.raises(DatasetError, match=r"a class or its number, got \[0, 1, 0\]"):
        extract_to(tmp_path / "s", source, network=toy_network, features="x7")


def test_options_that_need_a_list_say_so(toy_network, pictures, tmp_path):
    with pytest.raises(OptionError, match="prune and on must be left out"):
        extract_to(tmp_path / "s", pictures, network=toy_network, prune=True)
    with pytest.raises(OptionError, match="at least one image"):
        extract_to(tmp_path / "s", iter(()), network=toy_network, features="x7")

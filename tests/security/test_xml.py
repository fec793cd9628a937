"""XML of a data set: entities, external files and servers, deep nesting."""

import socket
from xml.etree import ElementTree

import pytest

from deepfishing.errors import DatasetError
from deepfishing.images.sources import find_images
from deepfishing.images.voc import read_voc_layout

PLAIN = "<annotation><object><name>cat</name></object></annotation>"
SECRET = "the secret of this file"


@pytest.fixture
def read(tmp_path):
    """Read a data set whose one annotation is this, in both ways that there are."""

    def read(xml):
        for folder in ("JPEGImages", "Annotations", "ImageSets/Main"):
            (tmp_path / "voc" / folder).mkdir(parents=True, exist_ok=True)
        for name, split in (("a", "trainval"), ("b", "test")):
            (tmp_path / f"voc/JPEGImages/{name}.jpg").touch()
            (tmp_path / f"voc/ImageSets/Main/{split}.txt").write_text(name)
            (tmp_path / f"voc/Annotations/{name}.xml").write_text(PLAIN)
        content = xml if isinstance(xml, bytes) else xml.encode()
        (tmp_path / "voc/Annotations/a.xml").write_bytes(content)
        labels = [item.labels for item in find_images(tmp_path / "voc")]
        return labels, read_voc_layout(tmp_path / "voc", "voc")

    return read


def with_entities(declared, name):
    return f"<!DOCTYPE a [{declared}]><a><object><name>{name}</name></object></a>"


def laughs(levels, times=10):
    declared = '<!ENTITY e0 "ha">'
    for level in range(1, levels):
        declared += f'<!ENTITY e{level} "{f"&e{level - 1};" * times}">'
    return with_entities(declared, f"&e{levels - 1};")


def refuse(read, xml):
    """With one line, which has nothing of the content in it."""
    with pytest.raises(DatasetError, match="annotation must be plain XML") as told:
        read(xml)
    assert SECRET not in str(told.value)
    assert "haha" not in str(told.value)


@pytest.mark.parametrize(
    "xml",
    [
        laughs(4),
        laughs(12),
        laughs(12).encode("utf-16"),
        with_entities(f'<!ENTITY e "{"ha" * 50_000}">', "&e;" * 50_000),
        with_entities("<!ENTITY % p \"<!ENTITY e 'haha'>\"> %p;", "&e;"),
    ],
    ids=[
        "thousand laughs",
        "billion laughs",
        "the same in UTF-16",
        "quadratic blow-up",
        "parameter entity",
    ],
)
def test_an_entity_bomb_is_refused_before_it_grows(read, xml):
    refuse(read, xml)


def test_the_bomb_of_these_tests_is_one():
    """The standard library's reader lets a small one go off."""
    assert len(ElementTree.fromstring(laughs(4)).findtext("object/name")) == 2 * 10**3


def test_a_file_that_an_annotation_names_is_not_read(read, tmp_path):
    secret = tmp_path / "secret"
    secret.write_text(SECRET)
    for declared in (
        f'<!ENTITY e SYSTEM "{secret.as_uri()}">',
        f'<!ENTITY e SYSTEM "{secret}">',
    ):
        refuse(read, with_entities(declared, "&e;"))
    name = f'<i:include xmlns:i="http://www.w3.org/2001/XInclude" href="{secret}" parse="text"/>'
    with pytest.raises(DatasetError, match="an object must have a name") as told:
        read(f"<a><object><name>{name}</name></object></a>")
    assert SECRET not in str(told.value)


def test_a_server_that_an_annotation_names_is_not_asked(read):
    with socket.create_server(("127.0.0.1", 0)) as server:
        url = f"http://127.0.0.1:{server.getsockname()[1]}/a.dtd"
        refuse(read, with_entities(f'<!ENTITY e SYSTEM "{url}">', "&e;"))
        refuse(read, with_entities(f'<!ENTITY % p SYSTEM "{url}"> %p;', "cat"))
        read(f'<!DOCTYPE a SYSTEM "{url}">{PLAIN}')  # names one and does not need it
        server.settimeout(0.2)
        with pytest.raises(TimeoutError):
            server.accept()


def test_deep_nesting_is_no_crash(read):
    deep = 30_000
    labels, _ = read(
        f"<a><object><name>cat</name></object>{'<b>' * deep}{'</b>' * deep}</a>"
    )
    assert labels[0] == ("cat",)

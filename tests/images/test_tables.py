import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from deepfishing.errors import DatasetError
from deepfishing.images.tables import read_table


def facts(path):
    return [
        (item.id, str(item.path.relative_to(path.parent)), item.labels)
        for item in read_table(path)
    ]


@pytest.mark.parametrize(
    ("name", "text", "expected"),
    [
        ("t.csv", "path\na.jpg\nsub/b.jpg\n", [("a.jpg", "a.jpg", None)] * 1),
        ("t.csv", "id,label,path\n7,cat;x,a.jpg\n", [("7", "a.jpg", ("cat;x",))]),
        (
            "t.csv",
            '\ufeffpath,labels,n\n"a,1.jpg",cat; dog,3\n',
            [("a,1.jpg",) * 2 + (("cat", "dog"),)],
        ),
        ("t.tsv", "path\tlabel\na.jpg\t\n", [("a.jpg", "a.jpg", None)]),
        ("t.csv", "Path;Labels;x\r\na.jpg;cat;1\r\n", [("a.jpg", "a.jpg", ("cat",))]),
        (
            "t.csv",
            'path;labels\na.jpg;"cat;dog"\n',
            [("a.jpg", "a.jpg", ("cat", "dog"))],
        ),
        ("t.csv", "path\tlabel\na,b.jpg\tcat\n", [("a,b.jpg", "a,b.jpg", ("cat",))]),
        ("t.tsv", "path,LABEL\na.jpg,cat\n", [("a.jpg", "a.jpg", ("cat",))]),
        (
            "t.csv",
            "path,label\n.\\sub\\b.jpg,cat\n",
            [("./sub/b.jpg", "sub/b.jpg", ("cat",))],
        ),
    ],
)
def test_a_csv_gives_paths_ids_and_labels(tmp_path, name, text, expected):
    (tmp_path / name).write_text(text, encoding="utf-8")
    assert facts(tmp_path / name)[:1] == expected


def test_a_table_in_utf_16_is_read_as_well(tmp_path):
    (tmp_path / "t.csv").write_text("path\tlabel\nü.jpg\tcat\n", encoding="utf-16")
    assert facts(tmp_path / "t.csv") == [("ü.jpg", "ü.jpg", ("cat",))]


def test_a_file_that_has_a_backslash_in_its_name_keeps_it(tmp_path):
    (tmp_path / "a\\b.jpg").touch()
    (tmp_path / "t.csv").write_text("path\na\\b.jpg\nc\\d.jpg\n")
    assert [id_ for id_, _, _ in facts(tmp_path / "t.csv")] == ["a\\b.jpg", "c/d.jpg"]


def test_rows_of_one_image_have_all_its_labels_if_it_may_have_several(tmp_path):
    rows = "a.jpg,cat\nb.jpg,dog\na.jpg,dog;cat\nb.jpg,\n"
    (tmp_path / "t.csv").write_text("path,labels\n" + rows)
    assert facts(tmp_path / "t.csv") == [
        ("a.jpg", "a.jpg", ("cat", "dog")),
        ("b.jpg", "b.jpg", ("dog",)),
    ]
    (tmp_path / "t.csv").write_text("path,label\na.jpg,\na.jpg,cat\na.jpg,cat\n")
    assert facts(tmp_path / "t.csv") == [("a.jpg", "a.jpg", ("cat",))]


def test_a_parquet_gives_the_same_and_lists_of_labels(tmp_path):
    columns = {
        "path": ["a.jpg", "b.jpg", "c.jpg"],
        "labels": [["cat", "dog"], [], None],
    }
    pq.write_table(pa.table({**columns, "id": [5, 6, 7]}), tmp_path / "t.parquet")
    assert facts(tmp_path / "t.parquet") == [
        ("5", "a.jpg", ("cat", "dog")),
        ("6", "b.jpg", ()),
        ("7", "c.jpg", None),
    ]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("picture,label\na.jpg,cat\n", "column path, got picture, label in"),
        ("", "column path, got none"),
        ("path,label,labels\na,b,c\n", "got both"),
        ("path,label\na.jpg\n", "must have 2 values as its head, got 1 in row 1"),
        (
            "path,label\na.jpg,cat\na.jpg,dog\n",
            "'cat' and 'dog' for 'a.jpg' in row 2 .*call the ",
        ),
        (
            "path,id\na.jpg,1\nb.jpg,1\n",
            "ids of images must be unique, got '1' for .*a.jpg and",
        ),
        ("path,id\na.jpg,\n", "a path and an id, got 'a.jpg' and '' in row 1"),
    ],
)
def test_what_is_wrong_with_a_table_is_named(tmp_path, text, words):
    (tmp_path / "t.csv").write_text(text)
    with pytest.raises(DatasetError, match=words) as error:
        read_table(tmp_path / "t.csv")
    assert "t.csv" in str(error.value)


def test_damaged_tables_are_named(tmp_path):
    (tmp_path / "t.csv").write_bytes(b"path\n\xff.jpg\n")
    (tmp_path / "t.parquet").write_bytes(b"PAR1")
    pq.write_table(pa.table({"picture": ["a"]}), tmp_path / "u.parquet")
    with pytest.raises(
        DatasetError, match=r"t.csv is not UTF-8 .*; save it again as `CSV UTF-8`"
    ):
        read_table(tmp_path / "t.csv")
    for name in ("t.csv", "t.parquet"):
        with pytest.raises(DatasetError, match=f"cannot be read: .*{name}"):
            read_table(tmp_path / name)
    with pytest.raises(DatasetError, match="column path, got picture"):
        read_table(tmp_path / "u.parquet")


@pytest.mark.parametrize("name", ["filename", "File", "image"])
def test_other_names_of_the_column_of_paths_are_understood(tmp_path, name):
    (tmp_path / "t.csv").write_text(f"{name},label\na.jpg,cat\n")
    (item,) = read_table(tmp_path / "t.csv")
    assert (item.id, item.labels) == ("a.jpg", ("cat",))


def test_a_column_path_comes_before_its_other_names(tmp_path):
    (tmp_path / "t.csv").write_text("filename,path\na.jpg,b.jpg\n")
    (item,) = read_table(tmp_path / "t.csv")
    assert item.id == "b.jpg"

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from deepfishing.errors import DatasetError
from deepfishing.images.tables import read_table


def facts(path):
    return [
        (item.id, str(item.path.relative_to(path.parent)), item.labels) for item in read_table(path)
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
    ],
)
def test_a_csv_gives_paths_ids_and_labels(tmp_path, name, text, expected):
    (tmp_path / name).write_text(text, encoding="utf-8")
    assert facts(tmp_path / name)[:1] == expected


def test_a_parquet_gives_the_same_and_lists_of_labels(tmp_path):
    columns = {"path": ["a.jpg", "b.jpg", "c.jpg"], "labels": [["cat", "dog"], [], None]}
    pq.write_table(pa.table({**columns, "id": [5, 6, 7]}), tmp_path / "t.parquet")
    assert facts(tmp_path / "t.parquet") == [
        ("5", "a.jpg", ("cat", "dog")),
        ("6", "b.jpg", ()),
        ("7", "c.jpg", None),
    ]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("file,label\na.jpg,cat\n", "column path, got file, label in"),
        ("", "column path, got none"),
        ("path,label,labels\na,b,c\n", "got both"),
        ("path,label\na.jpg\n", "must have 2 values as its head, got 1 in row 1"),
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
    pq.write_table(pa.table({"file": ["a"]}), tmp_path / "u.parquet")
    for name in ("t.csv", "t.parquet"):
        with pytest.raises(DatasetError, match=f"cannot be read: .*{name}"):
            read_table(tmp_path / name)
    with pytest.raises(DatasetError, match="column path, got file"):
        read_table(tmp_path / "u.parquet")

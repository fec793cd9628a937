"""What the package's own code never does, read off its syntax, so nothing can make it do it."""

import ast
import csv
import re
from pathlib import Path

import numpy as np
import pytest

import deepfishing
from deepfishing.images.tables import read_table
from deepfishing.store import Row, Store
from deepfishing.store.export import export
from deepfishing.util.files import write_records

ROOT = Path(deepfishing.__file__).parent
TREES = {
    path.relative_to(ROOT).as_posix(): ast.parse(path.read_bytes())
    for path in ROOT.rglob("*.py")
}


def dotted(node):
    """`a.b.c` of an expression, or the last names of it that are known."""
    if isinstance(node, ast.Attribute):
        return f"{dotted(node.value)}.{node.attr}"
    return node.id if isinstance(node, ast.Name) else ""


def calls():
    for file, tree in TREES.items():
        for node in ast.walk(tree):
            if isinstance(node, ast.Call):
                yield file, dotted(node.func), node


def imports():
    """File, and each module that it imports, with the names taken from it."""
    for file, tree in TREES.items():
        for node in ast.walk(tree):
            if isinstance(node, ast.Import):
                yield from ((file, alias.name) for alias in node.names)
            elif isinstance(node, ast.ImportFrom):
                yield from (
                    (file, f"{node.module}.{alias.name}") for alias in node.names
                )


def test_nothing_that_runs_code_from_data_is_called():
    forbidden = {
        *("eval", "exec", "compile", "__import__", "input", "breakpoint"),
        *("os.system", "os.popen", "pickle.load", "pickle.loads", "pickle.Unpickler"),
        *("joblib.load", "yaml.load", "yaml.unsafe_load"),
        *("pd.read_pickle", "torch.jit.load", "torch.package", "torch.hub.load"),
        *("tempfile.mktemp", "ssl._create_unverified_context"),
        *("tarfile.extractall", "shutil.unpack_archive"),
    }
    found = [(file, name) for file, name, _ in calls() if name in forbidden]
    # programs that the user names as such, see tests/networks/test_torchscript.py
    trusted = [(f, n) for f, n in found if str(f).endswith("networks/torchscript.py")]
    assert [name for _, name in trusted] == ["torch.jit.load"]
    assert found == trusted
    last = [
        (f, n)
        for f, n, _ in calls()
        if n.rpartition(".")[2] in ("extractall", "mktemp")
    ]
    assert last == []


def test_nothing_that_runs_code_from_data_is_imported():
    forbidden = {
        *(
            "pickle",
            "marshal",
            "shelve",
            "dill",
            "cloudpickle",
            "yaml",
            "code",
            "codeop",
            "runpy",
        ),
        *("xmlrpc", "zipimport", "imaplib", "telnetlib", "ftplib"),
    }
    tops = [
        (file, name) for file, name in imports() if name.partition(".")[0] in forbidden
    ]
    assert tops == []
    zips = {(file, name) for file, name in imports() if name.startswith("zipfile")}
    # and the archive in the package itself, and those of data sets, whose members are checked
    own = {("images/published.py", "zipfile"), ("fetch/unpack.py", "zipfile")}
    # which write one
    own |= {("store/export.py", "zipfile"), ("web/model_room.py", "zipfile")}
    assert {name for _, name in zips - own} == {"zipfile.BadZipFile"}
    joblib = {name for _, name in imports() if name.startswith("joblib")}
    assert joblib <= {"joblib.Parallel", "joblib.delayed", "joblib.effective_n_jobs"}


def test_torch_reads_files_with_its_weights_only_reader():
    loads = [(file, node) for file, name, node in calls() if name == "torch.load"]
    assert [file for file, _ in loads] == ["networks/weights.py"]
    for _, node in loads:
        given = {
            keyword.arg: ast.literal_eval(keyword.value) for keyword in node.keywords
        }
        assert given["weights_only"] is True


def test_no_array_is_read_as_python_objects():
    for _, name, node in calls():
        given = {keyword.arg: keyword.value for keyword in node.keywords}
        if "trust_remote_code" in given:  # left out, a terminal would be asked
            assert ast.literal_eval(given["trust_remote_code"]) is False
        if name in ("np.load", "numpy.load") or "allow_pickle" in given:
            assert ast.literal_eval(given["allow_pickle"]) is False


def test_xml_is_read_by_the_reader_that_refuses_entities():
    readers = {name for _, name in imports() if "xml" in name.lower()}
    assert {name.partition(".")[0] for name in readers} == {"defusedxml"}


def test_no_command_is_made_of_text():
    """One program is started: this Python, with code or a module that stands in the source."""
    started = [(f, node) for f, name, node in calls() if name.startswith("subprocess.")]
    assert sorted(file for file, _ in started) == [
        "networks/network.py",
        "web/apart.py",
    ]
    for _, node in started:
        assert isinstance(node.args[0], ast.List)
        assert dotted(node.args[0].elts[0]) == "sys.executable"
        assert "shell" not in [keyword.arg for keyword in node.keywords]
    assert "os.exec" not in {name[:7] for _, name, _ in calls()}


@pytest.mark.parametrize("call", ["importlib.import_module", "import_module"])
def test_modules_are_imported_by_names_of_the_source(call):
    """A constant, or a parameter that only gets one: the functions below."""
    known = {"__init__.py", "networks/libraries/packages.py"}
    # extras by name, readers by the records of the package, commands by the list of them
    known |= {"errors.py", "images/dataset.py", "cli/command.py"}
    # tasks of the server and engines, by the lists of them
    known |= {"web/work.py", "cli/doctor.py"}
    for file, name, node in calls():
        if name == call and not isinstance(node.args[0], ast.Constant):
            assert file in known


def test_the_environment_is_asked_for_named_variables_only():
    """So no secret in it can get into a message, a store or a report."""
    asked = set()
    for file, tree in TREES.items():
        for node in ast.walk(tree):
            if isinstance(node, ast.Attribute) and dotted(node) in (
                "os.environ",
                "os.getenv",
            ):
                asked.add(file)
    places = {
        "networks/zoo.py",
        "extraction/distributed.py",
        "extraction/options.py",
        "web/server.py",
        "web/opening.py",
    }
    assert asked <= places
    names = [
        ast.literal_eval(node.args[0])
        for _, name, node in calls()
        if name in ("os.environ.get", "os.getenv")
    ]
    # where `deepfish studio` may keep features
    folders = {"XDG_DATA_HOME", "LOCALAPPDATA"}
    assert set(names) <= {
        "DEEPFISHING_DEVICE",
        "DEEPFISHING_HOME",
        "DEEPFISHING_TOKEN",
        "RAY_ADDRESS",
        *folders,
    }


def test_no_text_in_a_csv_is_a_formula(tmp_path):
    """A label that begins with = would be one to a spreadsheet; our readers get it back."""
    labels = ("=HYPERLINK(1)", "+1", "-1", "@x", "'=twice", "plain")
    store = Store(tmp_path / "s", {"network": "toy"}, "float32")
    keys = [f"{i:064x}" for i in range(len(labels))]
    store.append(keys, {"x7": np.ones((len(labels), 2))})
    store.write_rows(
        Row(label, label, key, labels=(label,), status="ok", factors=("x7",))
        for label, key in zip(labels, keys, strict=True)
    )
    export(store, tmp_path / "all.csv")
    columns = ("path", "labels")
    records = [dict.fromkeys(columns, label) for label in labels]
    write_records(tmp_path / "some.csv", records, columns)
    for name in ("all.csv", "some.csv"):
        with (tmp_path / name).open(newline="") as file:
            cells = [cell for row in csv.DictReader(file) for cell in row.values()]
        assert not [cell for cell in cells if cell[:1] in ("=", "+", "-", "@")]
        assert {item.labels for item in read_table(tmp_path / name)} == {
            (label,) for label in labels
        }
    written = {
        file for file, name, _ in calls() if re.search(r"csv\.\w*writer", name, re.I)
    }
    assert written == {"util/files.py", "store/export.py"}

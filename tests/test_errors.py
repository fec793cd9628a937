import ast
import json
import shlex
import sys
from importlib import metadata
from pathlib import Path

import pytest

import deepfishing
from deepfishing import errors
from deepfishing.errors import (
    OptionError,
    check_choice,
    did_you_mean,
    pip_install,
    version_of,
)

PACKAGE = Path(deepfishing.__file__).parent


@pytest.fixture
def own_pip(monkeypatch):
    """As in a virtual environment that is active."""
    pip = Path(sys.executable).with_name("pip")
    monkeypatch.setattr(errors.shutil, "which", lambda name: str(pip))


def installed_from(monkeypatch, url, where):
    """As if this package lay in site-packages and had come from a URL."""
    monkeypatch.setattr(
        errors, "__file__", str(where / "site-packages/deepfishing/errors.py")
    )

    class Distribution:
        def read_text(self, name):
            return (
                json.dumps({"url": url}) if url and name == "direct_url.json" else None
            )

    monkeypatch.setattr(metadata, "distribution", lambda name: Distribution())


def test_in_a_clone_an_extra_is_installed_from_the_clone(
    own_pip, monkeypatch, tmp_path
):
    clone = PACKAGE.parents[1]
    monkeypatch.chdir(clone)
    assert pip_install(extra="ray") == "pip install -e '.[ray]'"
    monkeypatch.chdir(tmp_path)  # where `.` would be another folder
    assert shlex.split(pip_install(extra="ray")) == [
        "pip",
        "install",
        "-e",
        f"{clone}[ray]",
    ]


def test_an_extra_comes_from_where_the_package_came_from(
    own_pip, monkeypatch, tmp_path
):
    installed_from(monkeypatch, None, tmp_path)
    assert pip_install(extra="video") == "pip install 'deepfishing[video]'"
    source = tmp_path / "my clone"
    source.mkdir()
    (source / "pyproject.toml").touch()
    installed_from(monkeypatch, source.as_uri(), tmp_path)
    assert shlex.split(pip_install(extra="video")) == [
        "pip",
        "install",
        f"{source}[video]",
    ]
    (source / "pyproject.toml").unlink()  # a clone that is gone
    assert pip_install(extra="video") == "pip install 'deepfishing[video]'"


def test_a_pip_of_another_python_is_not_recommended(monkeypatch, tmp_path):
    monkeypatch.setattr(errors.shutil, "which", lambda name: "/usr/bin/pip")
    monkeypatch.setattr(sys, "executable", str(tmp_path / ".venv/bin/python"))
    monkeypatch.chdir(tmp_path)
    assert pip_install("s3fs") == ".venv/bin/python -m pip install s3fs"
    monkeypatch.setattr(errors.shutil, "which", lambda name: None)
    assert pip_install("s3fs") == ".venv/bin/python -m pip install s3fs"


def test_no_hint_of_a_missing_package_is_written_elsewhere():
    found = []
    for path in PACKAGE.rglob("*.py"):
        tree = ast.parse(path.read_text())
        docs = {
            node.body[0].value
            for node in ast.walk(tree)
            if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef)
            and node.body
            and isinstance(node.body[0], ast.Expr)
        }
        for node in ast.walk(tree):
            if (
                isinstance(node, ast.Constant)
                and node not in docs
                and "pip install" in str(node.value)
            ):
                found.append((path.name, node.value))
    assert found == []


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("voc", "; did you mean voc2007 or voc2012?"),
        ("VOC2007", "; did you mean voc2007?"),
        ("v", "; did you mean voc2007, voc2012 or vgg16?"),
        ("vgg-16", "; did you mean vgg16?"),
        ("", ""),
        ("zebra", ""),
    ],
)
def test_what_begins_as_it_was_typed_is_suggested_first(name, hint):
    assert (
        did_you_mean(name, ["voc2007", "voc2012", "folder", "vgg16", "vgg19"]) == hint
    )


def test_a_package_of_another_build_has_a_version_all_the_same(monkeypatch):
    known = {"onnxruntime-gpu": "1.31.1", "numpy": "2.4.6"}

    def version(name):
        if name not in known:
            raise metadata.PackageNotFoundError(name)
        return known[name]

    monkeypatch.setattr(metadata, "version", version)
    brought = {"onnxruntime": ["onnxruntime-gpu", "onnxruntime-gpu"]}
    monkeypatch.setattr(metadata, "packages_distributions", lambda: brought)
    assert version_of("numpy") == "2.4.6"
    assert version_of("onnxruntime") == "onnxruntime-gpu 1.31.1"
    assert version_of("deepfishing") == "unknown version"


def test_choices_with_a_comma_in_them_can_be_told_apart():
    with pytest.raises(
        OptionError, match="figure must be one of accuracy, %; mAP, %, got 'area'"
    ):
        check_choice("figure", "area", ["accuracy, %", "mAP, %"])
    with pytest.raises(OptionError, match="side must be one of left, right, got 'up'"):
        check_choice("side", "up", ["left", "right"])

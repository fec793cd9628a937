"""The Python blocks of the docs and the README run as printed."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
BLOCKS = [
    pytest.param(code, id=f"{page.name}-{number}")
    for page in PAGES
    for number, code in enumerate(re.findall(r"```python\n(.*?)```", page.read_text(), re.S), 1)
]
COMMANDS = sorted(
    {c for page in PAGES for c in re.findall(r"^deepfish .*", page.read_text(), re.M)}
)


@pytest.mark.parametrize("code", BLOCKS)
def test_python_in_the_docs_runs_as_printed(code, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    exec(compile(code, "docs", "exec"), {})


@pytest.mark.parametrize("command", COMMANDS)
def test_commands_in_the_docs_have_only_options_that_exist(command):
    import shlex

    from typer.main import get_command

    from deepfishing.cli.app import app

    name, *rest = shlex.split(command)[1:]
    known = {opt for p in get_command(app).commands[name].params for opt in p.opts}
    assert {word for word in rest if word.startswith("--")} <= known


def test_every_command_is_in_the_docs():
    from typer.main import get_command

    from deepfishing.cli.app import app

    text = "\n".join(page.read_text() for page in PAGES)
    for name in get_command(app).commands:
        assert f"deepfish {name}" in text

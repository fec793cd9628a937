"""What a command loads before it does anything: people wait for it, and so does completion."""

import os
import subprocess
import sys

import pytest

from deepfishing.cli.app import root

LAZY = root.commands
# their help names networks and data sets, whose records have preprocessing in them
WITH_RECORDS = ("reproduce", "models", "fetch", "doctor")

# prints the packages that are not Python's own, and the modules of this one
LOADED = """
import sys
before = set(sys.modules)
import deepfishing.cli
try:
    deepfishing.cli.main()
except SystemExit:
    pass
new = set(sys.modules) - before
tops = {name.partition('.')[0] for name in new} - set(sys.stdlib_module_names)
print(*sorted(tops), *sorted(name for name in new if name.startswith('deepfishing.')))
"""
OURS = [
    f"deepfishing.{name}"
    for name in (
        "cli",
        "cli.app",
        "cli.command",
        "cli.printing",
        "cli.help",
        "cli.arguments",
        "cli.arguments.shared",
        "errors",
    )
]


def loaded(*words, **environment):
    """What a process of its own has imported in the end, and what it said."""
    ran = subprocess.run(
        [sys.executable, "-c", LOADED, *words],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, **environment},
    )
    *said, last = ran.stdout.splitlines()
    return set(last.split()), "\n".join(said)


@pytest.mark.parametrize(
    ("words", "environment", "answer"),
    [
        (["--version"], {}, "deepfish 0."),
        (["--help"], {}, "╭─ Your photos ─"),
        (
            [],
            {
                "_DEEPFISH_COMPLETE": "bash_complete",
                "COMP_WORDS": "deepfish extr",
                "COMP_CWORD": "1",
            },
            "extract",
        ),
        (
            [],
            {
                "_DEEPFISH_COMPLETE": "zsh_complete",
                "COMP_WORDS": "deepfish extr",
                "COMP_CWORD": "1",
            },
            "plain\nextract\nExtract features",
        ),
    ],
    ids=["version", "help", "bash", "zsh"],
)
def test_version_help_and_completion_load_click_and_nothing_else(
    words, environment, answer
):
    names, said = loaded(*words, **environment)
    assert answer in said
    assert names == {"deepfishing", "click", *OURS}


@pytest.mark.parametrize("name", LAZY)
def test_the_list_of_commands_has_the_first_line_of_their_help(name):
    first = LAZY[name].load().help.partition("\n\n")[0]
    assert " ".join(first.split()) == LAZY[name].short_help


@pytest.mark.parametrize("name", LAZY)
def test_the_help_of_a_command_does_not_load_what_its_work_needs(name):
    names, said = loaded(name, "--help")
    assert f"Usage: deepfish {name}" in said
    heavy = {
        "torch",
        "sklearn",
        "scipy",
        "pandas",
        "joblib",
        "faiss",
        "ray",
        "fastapi",
        "pydantic",
    }
    heavy |= set() if name in WITH_RECORDS else {"numpy", "PIL", "pyarrow", "rich"}
    assert names.isdisjoint(heavy), "import it in the function of the command"


@pytest.mark.usefixtures("full_input")
def test_a_second_prediction_and_a_second_search_need_neither_torch_nor_scikit_learn(
    deepfish, shapes, tmp_path, monkeypatch
):
    features = ("--features", "dW7*x7", "--weights", "random")
    assert deepfish("extract", shapes / "train/dark", "store", *features).code == 0
    assert deepfish("train", shapes, "model", *features).code == 0
    photo = shapes / "test/light/0.jpg"
    for command in (
        ["predict", "model", photo],
        ["search", "store", photo, "--features", "dW7*x7"],
    ):
        first = deepfish(*command)
        assert first.code == 0, first.err
        names, said = loaded(*map(str, command))
        assert said.split() == first.out.split()
        assert names.isdisjoint({"torch", "sklearn", "faiss", "matplotlib", "openvino"})

import re

import click
import pytest

from deepfishing.cli.app import root
from deepfishing.cli.arguments.shared import NETWORK, PANELS, PYTHON_ONLY
from deepfishing.extraction.options import OPTIONS

ROOT = {name: lazy.load() for name, lazy in root.commands.items()}
GROUPS = {name: one.commands for name, one in ROOT.items() if hasattr(one, "commands")}
COMMANDS = {
    **{(name,): one for name, one in ROOT.items() if name not in GROUPS},
    **{
        (group, name): one
        for group, inner in GROUPS.items()
        for name, one in inner.items()
    },
}


def words(text):
    """What is left of a help without its frames and its line breaks."""
    return re.sub(r"[\s│╭╮╰╯─]+", " ", text)


@pytest.mark.parametrize("name", COMMANDS, ids=" ".join)
def test_help_has_every_word_and_every_default_within_80_columns(deepfish, name):
    ran = deepfish(*name, "--help")
    assert ran.code == 0
    assert max(map(len, ran.out.splitlines())) <= 80
    # without the columns of names and types, which stand between the lines of a help
    lines = [
        re.sub(r"^│ .{0,3}\S*( +\S+)*? {2,}(<\S+> +)?", " ", s)
        for s in ran.out.splitlines()
    ]
    said = words(" ".join(lines))
    for parameter in COMMANDS[name].params:
        assert words(parameter.help) in said, parameter.name
        if isinstance(parameter, click.Argument):
            continue
        default = parameter.default
        if default not in (None, False, ""):
            assert f"[default: {default}]" in said, parameter.name
    for paragraph in COMMANDS[name].help.split("\n\n"):
        assert words(paragraph).strip() in words(ran.out)


def test_brackets_in_a_help_are_shown(deepfish):
    said = words(deepfish("serve", "--help").out)
    assert "[default: 8765, or a free one]" in said
    assert "[default: x7, and as in search]" in said


def test_the_usage_names_arguments_as_people_write_them(deepfish):
    assert (
        "Usage: deepfish search [OPTIONS] STORE [QUERY]\n"
        in deepfish("search", "--help").out
    )


def test_commands_are_listed_in_the_order_of_use(deepfish):
    out = deepfish("--help").out
    first = ("extract", "search", "serve", "train", "predict", "reproduce", "report")
    places = [out.index(f"│ {name} ") for name in (*first, "models", "store")]
    assert places == sorted(places)


def test_options_that_most_people_need_come_first_and_those_of_experts_last(deepfish):
    out = deepfish("extract", "--help").out
    panels = re.findall(r"╭─ (.*?) ─", out)
    assert panels == ["Arguments", "Options", *PANELS[1:]]
    places = [
        out.index(f"│ --{name} ") for name in ("features", "network", "engine", "prune")
    ]
    assert places == sorted(places)


@pytest.mark.parametrize("name", ["search", "serve", "predict", "export-model"])
def test_commands_that_take_the_network_of_a_store_have_no_panel_for_it(deepfish, name):
    out = deepfish(name, "--help").out
    assert NETWORK not in out
    assert out.index("For experts") < out.index("│ --weights ")


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (
            ["extrac"],
            "no such command 'extrac'. Did you mean 'extract'? (see `deepfish --help`)",
        ),
        (["extract", "a"], "missing argument 'STORE' (see `deepfish extract --help`)"),
        (["serve", "s", "--prt", "1"], "(see `deepfish serve --help`)"),
        (["search", "s", "q", "-n", "ten"], "invalid value for '-n': "),
        (["store", "inf"], "no such command 'inf'. Did you mean 'info'?"),
    ],
)
def test_a_mistyped_word_is_one_line(deepfish, arguments, line):
    ran = deepfish(*arguments)
    assert ran.code == 2
    assert ran.out == ""
    assert ran.err.startswith("deepfish: ")
    assert line in ran.err
    assert ran.err.count("\n") == 1


@pytest.mark.parametrize("name", ["extract", "reproduce"])
def test_commands_that_extract_have_every_option_of_network_and_features(name):
    found = {parameter.name: parameter for parameter in COMMANDS[name,].params}
    names = [name for record in OPTIONS for name in record.__annotations__]
    for option in [name for name in names if name not in PYTHON_ONLY]:
        assert found[option].opts == [f"--{option}"]
        assert found[option].help
        assert found[option].panel == NETWORK


def test_defaults_of_the_features_are_those_of_their_record():
    text = {parameter.name: parameter.help for parameter in COMMANDS["extract",].params}
    assert text["tau"].endswith(" [default: 2]")
    assert text["views"].endswith(" [default: centre]")


def test_the_commands_have_no_more_than_120_options():
    options = [
        option
        for command in COMMANDS.values()
        for option in command.params
        if isinstance(option, click.Option)
    ]
    assert len(options) <= 120


def test_one_thing_has_one_name():
    names = {name for one in COMMANDS.values() for p in one.params for name in p.opts}
    assert not names & {"-k", "--by", "--labelled", "--export", "--mean", "--points"}

"""Help of a command: paragraphs that fill their lines, and options in panels."""

from __future__ import annotations

import inspect
import re
import shutil
import textwrap
from collections.abc import Iterator
from typing import Any

import click

from deepfishing.cli.arguments.shared import PANELS

MAX_WIDTH = 100
MAX_NAME_WIDTH = 26  # a longer name is on a separate line


def write_help(
    command: click.Command, ctx: click.Context, formatter: click.HelpFormatter
) -> None:
    """Write the help of a command or a group."""
    width = min(shutil.get_terminal_size().columns, MAX_WIDTH)
    usage = " ".join(["Usage:", ctx.command_path, *command.collect_usage_pieces(ctx)])
    wrapper = textwrap.TextWrapper(
        width - 1, initial_indent=" ", subsequent_indent=" ", break_on_hyphens=False
    )
    formatter.write("\n")
    for paragraph in (usage, *_paragraphs(command.help or "")):
        formatter.write(wrapper.fill(paragraph) + "\n\n")
    for title, rows in _panels(command, ctx).items():
        if rows:
            formatter.write("\n".join(_draw_panel(title, rows, width)) + "\n")


def _panels(
    command: click.Command, ctx: click.Context
) -> dict[str, list[tuple[str, str]]]:
    """Return rows of name and help by the title of their panel."""
    titles = ("Arguments", "Options", *PANELS)
    panels: dict[str, list[tuple[str, str]]] = {title: [] for title in titles}
    for parameter in command.get_params(ctx):
        if isinstance(parameter, click.Option):
            title = getattr(parameter, "panel", None) or "Options"
        else:
            title = "Arguments"
        panels[title].append((_name(parameter, ctx), _help_text(parameter)))
    for each in getattr(command, "commands", {}).values():
        about = each.short_help or _paragraphs(each.help)[0]
        title = getattr(each, "panel", "Commands")
        panels.setdefault(title, []).append((each.name, about))
    return panels


def _name(parameter: click.Parameter, ctx: click.Context) -> str:
    """Return names and kind of value: `--out PATH`."""
    if isinstance(parameter, click.Argument):
        return parameter.make_metavar(ctx)
    names = ", ".join([*parameter.opts, *parameter.secondary_opts])
    if isinstance(parameter, click.Option) and parameter.is_flag:
        return names
    return f"{names} {parameter.make_metavar(ctx)}"


def _help_text(parameter: click.Parameter) -> str:
    """Return the help with the default, unless there is none to show."""
    text: str = getattr(parameter, "help", None) or ""
    default = getattr(parameter, "default", None)
    if default is None or isinstance(default, bool) or default == "":
        return text
    if isinstance(default, str | int | float) or hasattr(default, "__fspath__"):
        return f"{text} [default: {default}]"
    return text


def _draw_panel(title: str, rows: list[tuple[str, str]], width: int) -> Iterator[str]:
    """Yield the lines of two columns in a frame."""
    name_width = _name_width([name for name, _ in rows])
    bar = click.style("│", dim=True)
    yield click.style(f"╭─ {title} ".ljust(width - 1, "─") + "╮", dim=True)
    for name, text in rows:
        lines = textwrap.wrap(text, width - name_width - 6, break_on_hyphens=False)
        if not lines or len(name) > name_width:
            lines.insert(0, "")
        label = name  # in the first line
        for line in lines:
            room = width - 4 - max(len(label), name_width)
            styled = click.style(label.ljust(name_width), fg="cyan", bold=True)
            padded = f"  {line}".ljust(room)
            yield f"{bar} {styled}{padded} {bar}"
            label = ""
    yield click.style("╰".ljust(width - 1, "─") + "╯", dim=True)


def _name_width(names: list[str]) -> int:
    """Return the width of the column of names; longer names have their own lines."""
    if len(names) == 1:
        return len(names[0])
    widths = [len(name) for name in names if len(name) <= MAX_NAME_WIDTH]
    return max(widths, default=MAX_NAME_WIDTH)


def _paragraphs(text: Any) -> list[str]:
    """Return paragraphs without their line breaks."""
    paragraphs = re.split(r"\n\n+", inspect.cleandoc(text or ""))
    return [" ".join(each.split()) for each in paragraphs if each]

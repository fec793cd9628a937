"""Generated parts of the docs site; run it after a change of the command line.

`python scripts/docs_site.py` writes docs/reference/cli.md from the commands themselves. mkdocs
loads the same file as a hook (mkdocs.yml): it adds a page of the Python reference for each stage
of the package and a list of all files, and turns formulas into MathML, which browsers draw without
a script.
"""

from __future__ import annotations

import ast
import html
import re
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "src" / "deepfishing"
DEFAULT = r" \[default: (.*)\]"  # in a help, where the option's own default is nothing
CLI_PAGE = ROOT / "docs" / "reference" / "cli.md"


def cli_page() -> str:
    """Return the page of all commands with their help."""
    from deepfishing.cli.app import root

    parts = [
        "# Command line\n",
        "`deepfish COMMAND --help` prints the same in the terminal. Every error is one line on "
        "stderr with exit code 1, or 2 for a wrong option or argument.\n",
    ]
    for name, lazy in root.commands.items():
        command = lazy.load()
        group = getattr(command, "commands", {})
        if group:
            parts.append(f"## deepfish {name}\n\n{_text(command.help)}\n")
            parts += [
                _command(f"{name} {inner}", one, "###") for inner, one in group.items()
            ]
        else:
            parts.append(_command(name, command, "##"))
    return "\n".join(parts)


def api_pages() -> dict[str, str]:
    """Return the pages of the Python reference by their path below docs/."""
    pages = {}
    for entry in sorted(PACKAGE.iterdir()):
        if entry.name.startswith("_") or entry.name == "cli":
            # the command line has its own page
            continue
        files = [entry] if entry.suffix == ".py" else sorted(entry.rglob("*.py"))
        modules = [
            ".".join(file.relative_to(PACKAGE.parent).with_suffix("").parts)
            for file in files
            if not file.name.startswith("_")
        ]
        if not modules:
            continue
        title = f"# {entry.stem}\n\n{_first_line(entry)}\n"
        body = "".join(f"\n::: {module}\n" for module in modules)
        pages[f"reference/python/{entry.stem}.md"] = title + body
    pages["reference/python/files.md"] = f"# All files\n\n{files_table()}\n"
    return pages


def files_table() -> str:
    """Return a table of the files of the package with the first line of their docstrings."""
    files = [
        file for file in sorted(PACKAGE.rglob("*.py")) if not file.name.startswith("_")
    ]
    rows = [
        f"| `{file.relative_to(PACKAGE).as_posix()}` | {_first_line(file)} |"
        for file in files
    ]
    return "\n".join(["| file | purpose |", "|---|---|", *rows])


def to_mathml(page: str) -> str:
    """Replace the formulas that arithmatex marked by MathML.

    A `span` is a formula within a line, a `div` one on a line of its own.
    """
    from latex2mathml.converter import convert

    def formula(match: re.Match[str]) -> str:
        tex = html.unescape(match["tex"])
        if match["tag"] == "span":
            return str(convert(tex))
        return f'<div class="formula">{convert(tex, display="block")}</div>'

    pattern = (
        r'<(?P<tag>span|div) class="arithmatex">\\[(\[](?P<tex>.*?)\\[)\]]</(?P=tag)>'
    )
    return re.sub(pattern, formula, page, flags=re.S)


def on_config(config: Any) -> Any:
    """Hook of mkdocs: add the Python API to the part "Reference" of the navigation."""
    for part in config.nav:
        if "Reference" in part:
            part["Reference"].append({"Python": list(api_pages())})
    return config


def on_files(files: Any, config: Any) -> Any:
    """Hook of mkdocs: add the generated pages of the reference."""
    from mkdocs.structure.files import File

    for name, content in api_pages().items():
        files.append(File.generated(config, name, content=content))
    return files


def on_page_content(content: str, **_: Any) -> str:
    """Hook of mkdocs: turn formulas into MathML."""
    return to_mathml(content)


def _command(name: str, command: Any, level: str) -> str:
    arguments = [p for p in command.params if not p.opts[0].startswith("-")]
    options = [p for p in command.params if p.opts[0].startswith("-") and not p.hidden]
    words = [_argument(p) for p in arguments]
    usage = " ".join(["deepfish", name, *words, *(["[OPTIONS]"] if options else [])])
    about, *rest = _text(command.help).split("\n\n")
    parts = [f"{level} deepfish {name}", about, f"```\n{usage}\n```", *rest]
    if arguments:
        rows = [f"| `{_argument(p)}` | {_cell(p.help)} |" for p in arguments]
        parts.append("\n".join(["| argument | what it is |", "|---|---|", *rows]))
    if options:
        rows = [
            f"| {_names(p)} | {_cell(re.sub(DEFAULT, '', p.help))} | {_default(p)} |"
            for p in options
        ]
        parts.append(
            "\n".join(["| option | what it does | default |", "|---|---|---|", *rows])
        )
    return "\n\n".join(parts) + "\n"


def _argument(parameter: Any) -> str:
    word = (parameter.metavar or parameter.name).upper() + (
        "..." if parameter.nargs < 0 else ""
    )
    return word if parameter.required else f"[{word}]"


def _names(parameter: Any) -> str:
    return ", ".join(
        f"`{name}`" for name in [*parameter.opts, *parameter.secondary_opts]
    )


def _default(parameter: Any) -> str:
    if written := re.search(DEFAULT, parameter.help):
        return _cell(written[1])
    value = parameter.default
    return "" if value in (None, False) or callable(value) else f"`{value}`"


def _cell(text: str | None) -> str:
    return _text(text).replace("\n", " ").replace("|", "\\|")


def _text(text: str | None) -> str:
    """Help as Markdown: the example as code, nothing else taken for a tag or for emphasis."""
    parts = re.split(r"(`[^`\n]*`|^Example: .*$)", text or "", flags=re.M)
    return "".join(
        _code(part) if i % 2 else _escaped(part) for i, part in enumerate(parts)
    )


def _code(part: str) -> str:
    example = part.removeprefix("Example: ")
    return part if example == part else f"For example:\n\n```\n{example}\n```"


def _escaped(part: str) -> str:
    return re.sub(r"([*_])", r"\\\1", part.replace("&", "&amp;").replace("<", "&lt;"))


def _first_line(entry: Path) -> str:
    source = entry if entry.suffix == ".py" else entry / "__init__.py"
    text = ast.get_docstring(ast.parse(source.read_text(encoding="utf-8"))) or ""
    return text.split("\n\n")[0].replace("\n", " ")


if __name__ == "__main__":
    CLI_PAGE.write_text(cli_page(), encoding="utf-8")
    print(CLI_PAGE.relative_to(ROOT))

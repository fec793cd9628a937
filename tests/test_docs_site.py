"""The docs site: what is generated is up to date, and it builds without a warning or a download."""

import importlib.util
import os
import pkgutil
import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path

import pytest

import deepfishing
from deepfishing.cli.app import root

ROOT = Path(__file__).parent.parent


@pytest.fixture(scope="module")
def docs_site():
    spec = importlib.util.spec_from_file_location(
        "docs_site", ROOT / "scripts" / "docs_site.py"
    )
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """All pages of the built site by path."""
    pytest.importorskip("mkdocs", reason="no mkdocs: pip install deepfishing[docs]")
    folder = tmp_path_factory.mktemp("site")
    ran = subprocess.run(
        [
            sys.executable,
            "-m",
            "mkdocs",
            "build",
            "--strict",
            "--site-dir",
            str(folder),
        ],
        cwd=ROOT,
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
    return {
        path.relative_to(folder).as_posix(): path.read_text(encoding="utf-8")
        for path in folder.rglob("*.html")
    }


class Loaded(HTMLParser):
    """What a page makes the browser load."""

    def __init__(self, text):
        super().__init__()
        self.found = []
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        attrs = dict(attrs)
        self.found += [
            attrs[name] for name in ("src", "srcset", "data") if attrs.get(name)
        ]
        if tag == "link" and "canonical" not in attrs.get("rel", ""):
            self.found.append(attrs["href"])


def test_the_page_of_the_command_line_is_what_the_script_makes(docs_site):
    written = (ROOT / "docs" / "reference" / "cli.md").read_text(encoding="utf-8")
    assert written == docs_site.cli_page(), "run `python scripts/docs_site.py`"


def test_every_option_of_every_command_is_on_the_page(docs_site):
    page = docs_site.cli_page()
    parts = dict(re.findall(r"^###? deepfish (.*)\n((?:(?!^##).*\n)*)", page, re.M))
    for name, lazy in root.commands.items():
        command = lazy.load()
        inner = {f"{name} {n}": c for n, c in getattr(command, "commands", {}).items()}
        for full_name, one in (inner or {name: command}).items():
            for parameter in one.params:
                for option in (o for o in parameter.opts if o.startswith("-")):
                    assert f"`{option}`" in parts[full_name]


def test_help_cannot_become_markup(docs_site):
    assert docs_site._text("a *b* <i> c_d `x*y<z>`") == r"a \*b\* &lt;i> c\_d `x*y<z>`"


def test_every_public_module_is_in_the_python_reference(docs_site):
    text = "\n".join(docs_site.api_pages().values())
    found = set(re.findall(r"^::: (\S+)$", text, re.M))
    modules = {
        module.name
        for module in pkgutil.walk_packages(deepfishing.__path__, "deepfishing.")
        if not module.ispkg and ".cli." not in module.name and "._" not in module.name
    }
    assert found == modules


def test_the_files_and_names_of_the_architecture_page_exist(docs_site):
    page = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    walk = re.findall(r"^\| `(\S+\.py): (\w+)` \|", page, re.M)
    values = [
        (f, n)
        for ns, f in re.findall(r"^\| (`.+`) \| `(\S+\.py)` \|", page, re.M)
        for n in ns.split("`")[1::2]
    ]
    assert 20 < len(walk) <= 25
    assert len(values) > 8
    table = docs_site.files_table()
    for file, name in [*walk, *values]:
        source = (ROOT / "src" / "deepfishing" / file).read_text(encoding="utf-8")
        assert re.search(rf"^ *(def|class) {name}\b", source, re.M), (
            f"{file} has no {name}"
        )
        assert f"| `{file}` |" in table


def test_docs_say_equations_in_words_and_show_pictures_that_exist():
    for page in (ROOT / "docs").rglob("*.md"):
        text = page.read_text(encoding="utf-8")
        assert not re.search(r"\(eqn?:\w+\)", text), page.name
        for picture in re.findall(
            r"!\[[^]]*\]\(([^)#]+)|<(?:img|source)[^>]* src(?:set)?=\"([^\"]+)", text
        ):
            assert (page.parent / "".join(picture)).exists(), (
                f"{page.name} shows {picture}"
            )


@pytest.mark.slow
def test_the_site_loads_nothing_from_elsewhere(site):
    assert len(site) > 20
    for name, text in site.items():
        for address in Loaded(text).found:
            assert not re.match(r"(\w+:)?//", address), f"{name} loads {address}"


@pytest.mark.slow
def test_formulas_are_drawn_without_a_script(site):
    page = site["tour/how_it_works.html"]
    assert page.count("<math") > 20
    assert "arithmatex" not in page
    assert "\\partial" not in page


@pytest.mark.slow
def test_the_python_reference_shows_signatures_and_examples(site):
    page = re.sub(r"<[^>]+>", "", site["reference/python/core.html"])
    assert "deepfishing.core.kernels" in page
    assert "trace_kernel" in page
    assert "&gt;&gt;&gt;" in page

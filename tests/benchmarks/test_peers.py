"""The parts of benchmarks/peers that need no peer: the page, the count of lines, pip's errors."""

import importlib.util
import re
from pathlib import Path

import pytest

PEERS = Path(__file__).parents[2] / "benchmarks" / "peers"


def load(name):
    spec = importlib.util.spec_from_file_location(f"peers_{name}", PEERS / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


page = load("page")
install = load("install")


def test_a_section_is_replaced_and_all_else_stays():
    text = "# A\n<!-- begin a -->\nold\n<!-- end a -->\nprose\n<!-- begin b -->\n<!-- end b -->\n"
    once = page.with_section(text, "a", "new\n")
    assert once == text.replace("old\n", "\nnew\n\n")
    assert page.with_section(once, "a", "new") == once


@pytest.mark.parametrize(
    "text", ["", "<!-- begin a -->\n", "<!-- end a --> <!-- begin a -->\n"]
)
def test_a_page_without_both_marks_in_order_is_refused(text):
    with pytest.raises(ValueError, match="begin a"):
        page.with_section(text, "a", "new")


def test_the_page_has_a_place_for_every_section():
    text = (PEERS.parent / "PEERS.md").read_text()
    source = (PEERS / "run.py").read_text()
    names = re.search(r"^SECTIONS = \((.*?)\)", source, re.S | re.M)[1]
    for name in ("machine", *re.findall(r'"(\w+)"', names)):
        assert page.with_section(text, name, "measured").count("measured") >= 1
        assert name == "machine" or (PEERS / f"{name}.py").exists()


def test_a_table_has_a_cell_for_each_column_and_no_stray_bars_or_breaks():
    made = page.table(("a", "b"), [("x|y", "two\nlines"), (1, 2.5)])
    assert made == "| a | b |\n| --- | --- |\n| x\\|y | two lines |\n| 1 | 2.5 |\n"
    with pytest.raises(ValueError, match="2 cells"):
        page.table(("a", "b"), [("only one",)])


def test_numbers_have_three_digits_that_count():
    given = (0, 0.0000123, 0.0456, 1.234, 12.34, 123.4, 12345.6)
    told = ("0.000", "1.2e-05", "0.046", "1.23", "12.3", "123", "12,346")
    assert tuple(map(page.number, given)) == told
    assert page.spread([3.0, 1.0, 2.0]) == "2.00 (1.00 to 3.00)"


def test_lines_are_counted_without_what_a_user_need_not_write():
    def snippet():
        """Not this."""
        a = [
            1,
            2,
        ]

        # nor this
        return a  # but this

    assert page.lines_of(snippet) == 5
    assert page.lines_of(snippet, snippet) == 10


def test_pips_last_error_is_told():
    said = "Collecting x\n  ERROR: first\nERROR: No matching distribution found for x==9\nhint\n"
    assert install.last_error(said) == "ERROR: No matching distribution found for x==9"
    assert install.last_error("") == "pip said nothing"


def test_every_peer_is_pinned():
    assert install.requirements()
    assert all(re.fullmatch(r"[\w-]+==[\d.]+", line) for line in install.requirements())


def test_a_peer_that_cannot_be_installed_is_kept_with_its_error(
    monkeypatch, tmp_path, capsys
):
    monkeypatch.setattr(install, "ERRORS", tmp_path / "peers.json")
    monkeypatch.setattr(install, "requirements", lambda: ["good==1", "bad==2"])
    monkeypatch.setattr(
        install, "install", lambda line: "no such version" * (line == "bad==2")
    )
    assert install.read_errors() == {}
    install.main()
    assert install.read_errors() == {"bad==2": "no such version"}
    assert "bad==2 cannot be installed: no such version" in capsys.readouterr().out

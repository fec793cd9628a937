"""Names that a terminal would obey are spelled out in all that commands print."""

import io
import os
import pty
import re
import subprocess
import sys

import numpy as np
import pytest
from PIL import Image
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from deepfishing.cli.printing import escape_controls
from deepfishing.cli.summaries import Escaped
from deepfishing.store import Row, Store

EVIL = "\x1b]0;owned\x07\x1b[2J\x9b1m\u202egpj.[red]a"
ORDERS = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\udc80-\udcff]"
)


@pytest.fixture
def pictures(tmp_path, rng):
    folder = tmp_path / "pictures"
    for label in ("cat", f"dog{EVIL}"):
        (folder / label).mkdir(parents=True)
        for n in range(4):
            pixels = rng.integers(0, 255, (40, 40, 3), dtype=np.uint8)
            Image.fromarray(pixels).save(folder / label / f"{n}{EVIL}.png")
    (folder / "cat" / f"broken{EVIL}.jpg").write_bytes(b"no picture")
    return folder


def test_commands_spell_names_out(deepfish, pictures, tmp_path):
    store, model = tmp_path / "store", tmp_path / "model"
    ran = [
        deepfish("extract", pictures, store, "--features", "x7,dW8"),
        deepfish("store", "info", store),
        deepfish("search", store, f"cat/0{EVIL}.png", "-n", "3"),
        deepfish("train", pictures, model),
        deepfish("predict", model, pictures),
        deepfish("extract", tmp_path / f"no{EVIL}", store),
    ]
    for one in ran:
        assert not ORDERS.search(one.out + one.err), one.out + one.err
    assert "\\x1b]0;owned" in ran[0].err  # the broken one is named
    assert "[red]a" in ran[4].out
    assert [one.code for one in ran] == [0, 0, 0, 0, 0, 1]


def test_tables_keep_their_colours_and_nothing_elses():
    table = Table(escape(f"head{EVIL}"))
    table.add_row(escape(EVIL), style="red")
    file = io.StringIO()
    Console(file=file, force_terminal=True, width=200).print(Escaped(table))
    drawn = file.getvalue()
    assert "\x1b[31m" in drawn or "\x1b[1;31m" in drawn  # the row is red
    assert not re.search("\x07|\x1b\\]0|\x1b\\[2J|\x9b|\u202e", drawn)
    assert "\\x1b]0;owned" in drawn


def test_a_real_terminal_gets_no_order_from_a_name(tmp_path, rng):
    folder = tmp_path / "store\x1b[2J"
    store = Store(folder, {"network": "toy", "layers": {"7": "a", "8": "b"}})
    store.append(["a" * 64], {"x7": rng.normal(size=(1, 5))})
    store.write_rows([Row("a.jpg", "a.jpg", "a" * 64)])
    command = [
        sys.executable,
        "-c",
        "from deepfishing.cli import main; main()",
        "store",
        "info",
    ]
    ours, theirs = pty.openpty()
    done = subprocess.run([*command, folder], stdout=theirs, stderr=theirs, check=False)
    shown = os.read(ours, 65536)
    os.close(theirs)
    os.close(ours)
    assert done.returncode == 0
    assert b"\x1b" not in shown
    assert rb"store\x1b[2J" in shown


def test_escaping_leaves_ordinary_names_alone():
    for name in ("photo 1.jpg", "Straße/猫.jpg", "🐟 Ünïcødé", "a\tb\nc", "[red]"):
        assert escape_controls(name) == name
    assert escape_controls("a\udcff") == r"a\xff"  # a byte that is no UTF-8

"""What the README promises: its commands run in order, and the demo prints what stands there."""

import os
import re
import runpy
import shlex
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import httpx
import pytest

from deepfishing import load_groceries

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")
NUMBER = re.compile(r"[-+]?\d+\.\d+")


@pytest.mark.slow
def test_the_demo_prints_what_the_readme_says():
    script = runpy.run_path(str(ROOT / "scripts" / "readme.py"))
    [said] = script["BLOCK"].findall(README)
    printed = script["demo"]()
    said_table, said_rest = said.split("The collection")
    printed_table, printed_rest = printed.split("The collection")
    # on another processor a photograph at the border may fall to the other side
    assert NUMBER.sub("0.0", said_table) == NUMBER.sub("0.0", printed_table), (
        "run readme.py"
    )
    figures = zip(
        NUMBER.findall(said_table), NUMBER.findall(printed_table), strict=True
    )
    assert max(abs(float(a) - float(b)) for a, b in figures) < 0.6
    assert said_rest.splitlines()[1] == printed_rest.splitlines()[1]  # the copies


def test_the_tree_names_files_and_folders_that_exist():
    page = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    [tree] = re.findall(r"^src/deepfishing/\n(.*?)^fire/", page, re.S | re.M)
    named = re.findall(r"^  ([a-z_]+(?:/|\.py))(?:  ([a-z_]+/))?", tree, re.M)
    names = [name for pair in named for name in pair if name]
    assert len(names) > 12
    absent = [
        name for name in names if not (ROOT / "src" / "deepfishing" / name).exists()
    ]
    assert not absent
    folders = {
        path.parent.name + "/" for path in (ROOT / "src").glob("*/*/__init__.py")
    }
    assert folders <= {*names}


def test_every_link_of_the_readme_leads_to_a_file():
    links = re.findall(r"\]\((?!http|#)([^)#]+)", README) + re.findall(
        r'(?:src|srcset)="([^"]+)"', README
    )
    assert len(links) > 25
    assert [link for link in links if not (ROOT / link).exists()] == []


def test_make_demo_and_make_page_run_what_they_say():
    script = runpy.run_path(str(ROOT / "scripts" / "readme.py"))
    assert {"make demo", "make test"} <= {
        line.split("#")[0].strip() for line in README.splitlines()
    }
    steps = {
        target: subprocess.run(
            ["make", "--dry-run", target],
            cwd=ROOT,
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for target in ("demo", "page")
    }
    assert shlex.join(["python", script["DEMO"], script["FOLDER"]]) in steps["demo"]
    assert "deepfish serve results/demo" in steps["page"]


def test_the_commands_for_ones_own_photos_run_in_order_from_another_folder(
    deepfish, tmp_path
):
    load_groceries(tmp_path, n_train=28, n_test=6)
    (tmp_path / "groceries" / "train").rename(tmp_path / "photos")
    shutil.copy(
        next((tmp_path / "groceries").rglob("Granny-Smith*.jpg")),
        tmp_path / "holiday.jpg",
    )
    [block] = re.findall(r"<!-- run in order -->\n```\n(.*?)```", README, re.S)
    commands = [shlex.split(line)[1:] for line in block.splitlines()]
    assert [name for name, *_ in commands] == [
        "extract",
        "search",
        "serve",
        "train",
        "predict",
    ]
    for command in commands:
        if command[0] == "serve":
            serves(command, tmp_path)
            continue
        ran = deepfish(*command)
        assert ran.code == 0, (command, ran.err)
    assert ran.out.startswith("holiday.jpg\t")


def serves(command, folder):
    """The page comes up, and Ctrl-C ends it."""
    start = "from deepfishing.cli import main; main()"
    process = subprocess.Popen(
        [sys.executable, "-c", start, *command],
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    try:
        assert "28 images" in process.stdout.readline()
        address = process.stdout.readline().strip()
        facts = httpx.get(f"{address}api/store", timeout=60).json()
        assert (facts["images"], len(facts["labels"])) == (28, 14)
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=30)
        assert process.returncode == 0
    finally:
        process.kill()
        process.communicate()

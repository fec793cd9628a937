"""fire/FAULTS.md names tests that exist, and all tests of this folder."""

import ast
import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "fire/FAULTS.md").read_text(encoding="utf-8")
NAMED = re.findall(r"`(tests/[\w/]+\.py)::(test_\w+)`", PAGE)


def named_in(path):
    tree = ast.parse(path.read_text(encoding="utf-8"))
    functions = (node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef))
    return {node.name for node in functions if node.name.startswith("test_")}


def test_every_test_on_the_page_exists():
    assert len(NAMED) > 30
    for file, name in NAMED:
        assert name in named_in(ROOT / file), (file, name)


def test_every_test_of_faults_is_on_the_page():
    for path in Path(__file__).parent.glob("test_*.py"):
        if path != Path(__file__):
            named = {name for file, name in NAMED if Path(file).name == path.name}
            assert named_in(path) <= named


def test_the_counts_on_the_page_are_those_of_the_long_run():
    (block,) = re.findall(r"<!-- fire -->\n(.*)<!-- /fire -->", PAGE, re.S)
    results = ROOT / "fire/RESULTS.md"
    if results.exists():
        assert block.strip() in results.read_text(encoding="utf-8").replace(
            "\n## ", "\n### "
        )

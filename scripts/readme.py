"""What `make demo` prints, written into the README: run it after a change of the demo.

`python scripts/readme.py` runs the command of `make demo` in a temporary folder and puts what it
prints into the blocks of README.md that are marked `<!-- demo -->`: the table, what can be folded
away, and what was seen. tests/test_readme.py runs it, too, and compares. About a minute.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

README = Path(__file__).parent.parent / "README.md"
BLOCK = re.compile(r"(?<=<!-- demo -->\n```\n).*?(?=```\n)", re.S)
PARTS = re.compile(r"^(?=Confusions |The best )", re.M)  # what begins a new block
COMMAND = ["reproduce", "groceries", "--out", "results/demo"]  # as in the Makefile


def main() -> None:
    """Write the blocks."""
    parts, text = demo(), README.read_text(encoding="utf-8")
    if len(BLOCK.findall(text)) != len(parts):
        raise SystemExit(f"{README} must have {len(parts)} blocks marked <!-- demo -->")
    left = iter(parts)
    README.write_text(BLOCK.sub(lambda _: next(left), text), encoding="utf-8")
    print("\n".join(parts))


def demo() -> list[str]:
    """What the command prints on a terminal of 80 columns, in parts."""
    start = "from deepfishing.cli import main; main()"
    with tempfile.TemporaryDirectory() as folder:
        ran = subprocess.run(  # noqa: S603
            [sys.executable, "-c", start, *COMMAND],
            cwd=folder,
            env={**os.environ, "COLUMNS": "80"},
            capture_output=True,
            text=True,
            check=True,
        )
    # what comes next is told on stderr, behind the bars
    told = [line for line in ran.stderr.splitlines() if line.startswith("next: ")]
    lines = [line.rstrip() for line in (*ran.stdout.splitlines(), *told)]
    return [part.strip("\n") + "\n" for part in PARTS.split("\n".join(lines))]


if __name__ == "__main__":
    main()

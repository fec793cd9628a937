"""Write what `make demo` prints into the README: run it after a change of the demo.

`python scripts/readme.py` runs the demo in a temporary folder and puts its output into the block of
README.md that is marked `<!-- demo -->`. tests/test_readme.py runs it, too, and compares.
"""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parent.parent
README = ROOT / "README.md"
DEMO = "scripts/demo.py"
FOLDER = "results/demo"  # as in the Makefile
BLOCK = re.compile(r"(?<=<!-- demo -->\n```\n).*?(?=```\n)", re.S)


def main() -> None:
    """Write the block."""
    printed = demo()
    text = README.read_text(encoding="utf-8")
    if len(BLOCK.findall(text)) != 1:
        raise SystemExit(f"{README} must have one block marked <!-- demo -->")
    README.write_text(BLOCK.sub(lambda _: printed, text), encoding="utf-8")
    print(printed)


def demo() -> str:
    """Return what the demo prints."""
    with tempfile.TemporaryDirectory() as folder:
        ran = subprocess.run(  # noqa: S603
            [sys.executable, str(ROOT / DEMO), FOLDER],
            cwd=folder,
            capture_output=True,
            text=True,
            check=True,
        )
    lines = [line.rstrip() for line in ran.stdout.strip("\n").splitlines()]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    main()

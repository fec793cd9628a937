"""Peers, before all else: install each of them, and keep the reason where one cannot be.

    python benchmarks/peers/install.py

Comes in: requirements.txt, a peer a line. Goes out: what can be installed, in the environment of
this Python, and `peers.json` in the root of that environment: a peer's line -> pip's error.
"""

from __future__ import annotations

import json
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

REQUIREMENTS = Path(__file__).with_name("requirements.txt")
ERRORS = Path(sys.prefix) / "peers.json"


def main() -> None:
    errors = {}
    for line in requirements():
        print(f"installing {line}", flush=True)
        if error := install(line):
            errors[line] = error
            print(f"{line} cannot be installed: {error}", flush=True)
    ERRORS.write_text(json.dumps(errors, indent=2) + "\n")


def requirements() -> list[str]:
    lines = REQUIREMENTS.read_text().splitlines()
    return [line for line in map(str.strip, lines) if line and not line.startswith("#")]


def install(line: str) -> str:
    """Install one peer; pip's error, or nothing."""
    # torch stays as it is: a peer that wants another one cannot be compared
    pin = f"torch=={version('torch')}"
    command = [
        sys.executable,
        "-m",
        "pip",
        "--disable-pip-version-check",
        "install",
        "--quiet",
    ]
    done = subprocess.run([*command, line, pin], capture_output=True, text=True)
    return last_error(done.stderr) if done.returncode else ""


def last_error(text: str) -> str:
    """The line of pip's output that says what is wrong."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    told = [line for line in lines if line.startswith("ERROR")]
    return (told or lines or ["pip said nothing"])[-1]


def read_errors() -> dict[str, str]:
    """What could not be installed here, and why."""
    return dict(json.loads(ERRORS.read_text())) if ERRORS.exists() else {}


if __name__ == "__main__":
    main()

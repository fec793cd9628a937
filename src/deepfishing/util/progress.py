"""How work tells how far it is: a stage in a word, how much of it is done and how much to do."""

from __future__ import annotations

from collections.abc import Callable

Progress = Callable[[str, int, int], None]


def silent(stage: str, done: int, total: int) -> None:
    """Tell nothing."""

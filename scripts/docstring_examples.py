"""Docs site: examples in docstrings without a heading of their own are shown as examples.

A docstring of a few lines ends in `>>> ...` without the heading that numpy's style asks for, and
Markdown would take lists in it for links. Loaded by mkdocstrings (mkdocs.yml).
"""

from __future__ import annotations

import re
from typing import Any

import griffe

FIRST = re.compile(r"^>>> ", re.MULTILINE)


class DocstringExamples(griffe.Extension):
    """Put the heading `Examples` before the first `>>>`, where it has none."""

    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        """Called for every module, class, function and attribute."""
        text = obj.docstring.value if obj.docstring else ""
        first = FIRST.search(text)
        if (
            obj.docstring
            and first
            and not re.search(r"^Examples\n-+$", text, re.MULTILINE)
        ):
            at = first.start()
            obj.docstring.value = f"{text[:at]}Examples\n--------\n{text[at:]}"

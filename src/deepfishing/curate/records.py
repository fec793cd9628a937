"""Stage 8, curate: what was found as a file, for a spreadsheet or a program.

Comes in: records, one dict per photo. Goes out: a .json, or a .csv with `;` between labels.
"""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from deepfishing.errors import OptionError
from deepfishing.files import guarded, replacing
from deepfishing.images.tables import SEPARATOR

KINDS = (".csv", ".json")


def check_out(path: Path | None, kinds: Sequence[str] = KINDS) -> None:
    """Refuse a file of another kind, or one that cannot be made, before any work."""
    if path is not None and path.suffix.lower() not in kinds:
        raise OptionError(f"--out must end in {' or '.join(kinds)}, got {path}")
    if path is not None and not path.parent.is_dir():
        raise OptionError(f"--out must be in a folder that exists, got {path}; make it first")


def write_records(
    path: Path | None, records: Sequence[Mapping[str, Any]], columns: Sequence[str]
) -> None:
    """Write records with these columns, if a path is given; an older file is replaced at once."""
    if path is None:
        return
    check_out(path)
    if path.suffix.lower() == ".json":
        text = json.dumps([{name: one[name] for name in columns} for one in records], indent=1)
    else:
        lines = io.StringIO()
        writer = csv.writer(lines, lineterminator="\n")
        writer.writerow(columns)
        writer.writerows([_cell(one[name]) for name in columns] for one in records)
        text = lines.getvalue()
    with replacing(path) as partial:
        partial.write_text(text, encoding="utf-8")


def _cell(value: Any) -> Any:
    if isinstance(value, list | tuple):
        value = SEPARATOR.join(map(str, value))
    return guarded(value) if isinstance(value, str) else "" if value is None else value

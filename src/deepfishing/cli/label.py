"""`deepfish label`: correct the labels of a store, export them, undo."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from deepfishing.cli import say
from deepfishing.cli.command import MORE, Json, StoreFolder
from deepfishing.errors import OptionError
from deepfishing.networks.prompts import PROMPT
from deepfishing.util.files import check_out, write_records

if TYPE_CHECKING:
    from deepfishing.store import Store
    from deepfishing.store.label_log import Act

ORIGIN = "deepfish label"
SUGGESTED = ("path", "label", "probability")  # columns of suggested labels


def label(
    store: StoreFolder,
    file: Annotated[
        Path | None,
        typer.Argument(help="A .csv with the columns path and label or labels."),
    ] = None,
    export: Annotated[
        Path | None, "Write the current labels into this .csv or .json."
    ] = None,
    classes: Annotated[
        Path | None,
        "Names of classes, a line each: suggest one for each photo without a label, by words. "
        "The table goes to --out, to be looked through and given back.",
    ] = None,
    prompt: Annotated[
        str, "What is said of a class, its name in place of {}.", MORE
    ] = PROMPT,
    out: Annotated[Path | None, "The .csv of --classes."] = None,
    rename: Annotated[
        tuple[str, str] | None, "Rename a class, or merge it into another: OLD NEW."
    ] = None,
    undo: Annotated[bool, "Undo the last change; again, the one before."] = False,
    log: Annotated[bool, "List the changes, the last one at the end."] = False,
    as_json: Json = False,
) -> None:
    """Correct the labels of a store, export them or undo a change.

    Example: deepfish label store fixes.csv

    Labels go to a log in the store's folder, also while an extraction runs. They belong to the
    content of a photo: they stay when its file is moved, or saved again with the same pixels.
    `train`, `curate`, `search` and `serve` use them before the names of folders. Rows that match
    no photo are listed and left out.
    """
    # loaded when the command runs, so that help and completion are quick
    from deepfishing.extraction.relabel import export_labels, label_images
    from deepfishing.store import Store
    from deepfishing.store.label_log import LabelLog

    if classes is not None:
        _suggest(Store.open(store), classes, prompt, out, as_json=as_json)
        return
    if file is None and export is None and rename is None and not undo and not log:
        raise OptionError(
            "a table of labels, --export, --rename, --undo or --log is needed, got none; see "
            "`deepfish label --help`"
        )
    opened = Store.open(store)
    labels = LabelLog.open(opened.folder)
    document: dict[str, object] = {"store": str(opened.folder)}
    lines: list[str] = []
    if undo:
        act = labels.undo(origin=ORIGIN)
        document["undone"] = None if act is None else act.as_dict()
        lines.append("nothing to undo" if act is None else f"undone: {_act_text(act)}")
    if file is not None:
        with say.progress_bar(quiet=as_json) as bar:
            done = label_images(opened, file, origin=ORIGIN, progress=bar)
        document |= {
            "changed": done.changed,
            "same": done.same,
            "unmatched": done.unmatched,
        }
        lines.append(
            f"{store}: labels of {say.images_text(done.changed)} changed, {done.same:,} were the "
            "same"
        )
        if not as_json:
            reasons = [f"{name} ({reason})" for name, reason in done.unmatched.items()]
            say.left_out(reasons, ", see --json", word="matches no image")
    if rename is not None:
        act = labels.rename_class(*rename, origin=ORIGIN)
        document["renamed"] = list(rename)
        lines.append(
            "nothing to rename" if act is None else f"{rename[0]} is {rename[1]} now"
        )
    if export is not None:
        document["exported"] = n = export_labels(opened, export)
        lines.append(f"{export}: labels of {say.images_text(n)}")
    if log:
        history = labels.history()
        document["log"] = [act.as_dict() for act in history]
        lines += map(_act_text, history)
    if as_json:
        say.json(document, indent=1)
        return
    for line in lines:
        say.line(line)


def _suggest(
    store: Store, classes: Path, prompt: str, out: Path | None, *, as_json: bool
) -> None:
    """Write or print labels that the names of classes suggest."""
    # loaded when the command runs, so that help and completion are quick
    from deepfishing.learn.zero_shot import suggest_labels

    check_out(out, (".csv",))
    found = suggest_labels(store, classes, prompt)
    rows = [
        {"path": one.id, "label": one.label, "probability": one.probability}
        for one in found
    ]
    if as_json:
        say.json(rows, indent=1)
    if out is not None:
        write_records(out, rows, SUGGESTED)
        say.note(
            f"{out}: {say.images_text(len(rows))} without a label, the surest first"
        )
        say.what_next(("deepfish", "label", store.folder, out))
    elif not as_json:
        for row in rows:
            say.line("\t".join(map(str, row.values())))


def _act_text(act: Act) -> str:
    """Return one line that describes a change."""
    what = f"{act.kind} {' to '.join(act.classes)}"
    if act.changes:
        names = sorted({name for change in act.changes for name in change.labels or ()})
        shown = ", ".join(names[:3]) + (" ..." if len(names) > 3 else "")
        what = f"{say.images_text(len(act.changes))} labelled {shown or 'with none of the classes'}"
    return f"{act.time[:19]}  {act.author or '-'}  {act.origin}  {what}"

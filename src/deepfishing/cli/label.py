"""`deepfish label`: correct the labels of a store, export them, undo."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from deepfishing.cli.arguments.label import Label
from deepfishing.cli.printing import (
    images_text,
    print_json,
    print_line,
    print_next,
    print_note,
)
from deepfishing.cli.progress import progress_bar
from deepfishing.cli.summaries import (
    print_left_out,
)
from deepfishing.errors import OptionError, did_you_mean
from deepfishing.extraction.relabel import export_labels, label_images
from deepfishing.learn.zero_shot import suggest_labels
from deepfishing.store import Store
from deepfishing.store.label_log import LabelLog
from deepfishing.util.files import check_out, write_records

if TYPE_CHECKING:
    from deepfishing.store import Store
    from deepfishing.store.label_log import Act

ORIGIN = "deepfish label"
SUGGESTED = ("path", "label", "probability")  # columns of suggested labels


def run_label(args: Label) -> None:
    """Run `deepfish label`."""
    if args.classes is not None:
        _suggest(
            Store.open(args.store),
            args.classes,
            args.out,
            as_json=args.as_json,
        )
        return
    if (
        args.file is None
        and args.out is None
        and args.rename is None
        and not args.undo
        and not args.log
    ):
        raise OptionError(
            "a table of labels, --out, --rename, --undo or --log is needed, got none; see "
            "`deepfish label --help`"
        )
    store = Store.open(args.store)
    log = LabelLog.open(store.folder)
    result = _Result({"store": str(store.folder)})
    if args.undo:
        _undo(log, result)
    if args.file is not None:
        _apply_table(store, args, result)
    if args.rename is not None:
        _rename(store, log, args, result)
    if args.out is not None:
        number = export_labels(store, args.out)
        result.facts["exported"] = number
        result.lines.append(f"{args.out}: labels of {images_text(number)}")
    if args.log:
        history = log.history()
        result.facts["log"] = [act.as_dict() for act in history]
        result.lines += map(_act_text, history)
    if args.as_json:
        print_json(result.facts, indent=1)
        return
    for line in result.lines:
        print_line(line)


@dataclass
class _Result:
    """What was done, as JSON and as lines."""

    facts: dict[str, object]
    lines: list[str] = field(default_factory=list)


def _undo(log: LabelLog, result: _Result) -> None:
    """Undo the last change."""
    act = log.undo(origin=ORIGIN)
    if act is None:
        result.facts["undone"] = None
        result.lines.append("nothing to undo")
    else:
        result.facts["undone"] = act.as_dict()
        result.lines.append(f"undone: {_act_text(act)}")


def _apply_table(store: Store, args: Label, result: _Result) -> None:
    """Take the labels of a table; list its rows that match no image."""
    with progress_bar(quiet=args.as_json) as bar:
        done = label_images(store, str(args.file), origin=ORIGIN, progress=bar)
    result.facts["changed"] = done.changed
    result.facts["same"] = done.same
    result.facts["unmatched"] = done.unmatched
    result.lines.append(
        f"{args.store}: labels of {images_text(done.changed)} changed, {done.same:,} were the same"
    )
    if not args.as_json:
        reasons = [f"{name} ({reason})" for name, reason in done.unmatched.items()]
        print_left_out(reasons, ", see --json", word="matches no image")


def _rename(store: Store, log: LabelLog, args: Label, result: _Result) -> None:
    """Rename a class of the store."""
    old, new = args.rename or ("", "")
    classes = log.classes(row.labels for row in store.labelled_rows())
    if old not in classes:
        raise OptionError(
            f"--rename needs a class of {args.store}, got {old!r}{did_you_mean(old, classes)}; "
            f"`deepfish label {args.store} --out labels.csv` lists them"
        )
    act = log.rename_class(old, new, origin=ORIGIN)
    result.facts["renamed"] = [old, new]
    if act is None:
        result.lines.append("nothing to rename")
    else:
        result.lines.append(f"{old} is {new} now")


def _suggest(store: Store, classes: Path, out: Path | None, *, as_json: bool) -> None:
    """Write or print labels that the names of classes suggest."""

    check_out(out, (".csv",))
    rows = []
    for suggestion in suggest_labels(store, classes):
        probability = suggestion.probability
        values = (suggestion.id, suggestion.label, probability)
        rows.append(dict(zip(SUGGESTED, values, strict=True)))
    if as_json:
        print_json(rows, indent=1)
    if out is not None:
        write_records(out, rows, SUGGESTED)
        print_note(f"{out}: {images_text(len(rows))} without a label, the surest first")
        print_next(("deepfish", "label", store.folder, out))
    elif not as_json:
        for row in rows:
            print_line("\t".join(map(str, row.values())))


def _act_text(act: Act) -> str:
    """Return one line that describes a change."""
    text = f"{act.kind} {' to '.join(act.classes)}"
    if act.changes:
        names: set[str] = set()
        for change in act.changes:
            names.update(change.labels or ())
        labels = ", ".join(sorted(names)[:3]) or "with none of the classes"
        if len(names) > 3:
            labels += " ..."
        text = f"{images_text(len(act.changes))} labelled {labels}"
    return f"{act.time[:19]}  {act.author or '-'}  {act.origin}  {text}"

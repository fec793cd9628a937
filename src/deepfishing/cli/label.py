"""`deepfish label`: correct the labels of a store, export them, undo."""

from __future__ import annotations

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
    opened = Store.open(args.store)
    labels = LabelLog.open(opened.folder)
    document: dict[str, object] = {"store": str(opened.folder)}
    lines: list[str] = []
    if args.undo:
        act = labels.undo(origin=ORIGIN)
        if act is None:
            document["undone"] = None
            lines.append("nothing to undo")
        else:
            document["undone"] = act.as_dict()
            lines.append(f"undone: {_act_text(act)}")
    if args.file is not None:
        with progress_bar(quiet=args.as_json) as bar:
            done = label_images(opened, args.file, origin=ORIGIN, progress=bar)
        document |= {
            "changed": done.changed,
            "same": done.same,
            "unmatched": done.unmatched,
        }
        lines.append(
            f"{args.store}: labels of {images_text(done.changed)} changed, {done.same:,} were the "
            "same"
        )
        if not args.as_json:
            reasons = [f"{name} ({reason})" for name, reason in done.unmatched.items()]
            print_left_out(reasons, ", see --json", word="matches no image")
    if args.rename is not None:
        classes = labels.classes(row.labels for row in opened.labelled_rows())
        if args.rename[0] not in classes:
            hint = did_you_mean(args.rename[0], classes)
            raise OptionError(
                f"--rename needs a class of {args.store}, got {args.rename[0]!r}{hint}; "
                f"`deepfish label {args.store} --out labels.csv` lists them"
            )
        act = labels.rename_class(*args.rename, origin=ORIGIN)
        document["renamed"] = list(args.rename)
        if act is None:
            lines.append("nothing to rename")
        else:
            lines.append(f"{args.rename[0]} is {args.rename[1]} now")
    if args.out is not None:
        document["exported"] = n = export_labels(opened, args.out)
        lines.append(f"{args.out}: labels of {images_text(n)}")
    if args.log:
        history = labels.history()
        document["log"] = [act.as_dict() for act in history]
        lines += map(_act_text, history)
    if args.as_json:
        print_json(document, indent=1)
        return
    for line in lines:
        print_line(line)


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

"""`deepfish fetch`: weights and data sets by name, resumable and verified."""

from __future__ import annotations

from typing import Annotated

import typer

from deepfishing.cli.progress import progress_bar
from deepfishing.cli.say import say, say_json, say_next, say_note
from deepfishing.errors import DeepFishingError
from deepfishing.fetch.download import Patience
from deepfishing.fetch.place import CATALOGUE, find_download
from deepfishing.fetch.place import fetch as fetch_one


def fetch(
    names: Annotated[list[str], f"Some of: {', '.join(CATALOGUE)}."],
    timeout: Annotated[float, "Seconds after which a silent server is asked again."] = 30.0,
    as_json: Annotated[bool, "Print one JSON object per name, nothing else."] = False,
) -> None:
    """Download weights and data sets, checked against their published checksums.

    Example: deepfish fetch alexnet-caffe voc2007

    A broken download goes on where it stopped, and what is there is only checked. Everything
    goes to ~/.cache/deepfishing, or to $DEEPFISHING_HOME.
    """
    for name in names:
        find_download(name)  # a mistyped name is told before the first download
    failed = False
    for name in names:
        try:
            with progress_bar(download=True) as bar:
                done = fetch_one(name, bar, Patience(timeout=timeout))
        except DeepFishingError as error:
            failed = True
            if as_json:
                say_json({"name": name, "status": "failed", "error": str(error)})
            else:
                say_note(f"deepfish: {name}: {error}")
            continue
        paths = [str(path) for path in done.paths]
        if as_json:
            facts = {"name": name, "status": done.status, "paths": paths}
            say_json({**facts, "licence": done.licence})
        else:
            say(f"{name} {done.status}: {', '.join(paths)} (licence: {done.licence})")
    if failed:
        raise typer.Exit(1)
    if not as_json:
        wanted = find_download(names[-1])
        photos = ("extract", "photos", "store", "--network", wanted.name)
        say_next(("deepfish", *(("reproduce", wanted.name) if wanted.archives else photos)))

"""Messages of errors for the page, which never shows a path of the server.

The terminal of the server has the whole message.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping
from pathlib import Path

_log = logging.getLogger("deepfishing.web")

# what looks like a path: /a, ~/a, C:\a, a/b, a\b
PATH = re.compile(r"(?:^|[^\w.])(?:/|~[/\\]|[A-Za-z]:[/\\])\w|[\w.][/\\]+\w")


def message_for_page(
    error: BaseException | str, work: str, folders: Mapping[str, Path] | None = None
) -> str:
    """Return the message of an error, or a general one if it names a path.

    Parameters
    ----------
    error : exception or str
    work : str
        What has failed, for the general message.
    folders : mapping of str to Path, optional
        Words for folders, such as "the store", that replace their paths.

    Examples
    --------
    >>> message_for_page("labels must be of two classes, got 1", "training")
    'labels must be of two classes, got 1'
    >>> message_for_page("/srv/a is damaged", "training", {"the store": Path("/srv/a")})
    'the store is damaged'
    >>> message_for_page("/srv/photos is full", "training")
    'training failed; the terminal of the server says why'
    """
    line = " ".join(str(error).split())
    message = line
    for words, folder in (folders or {}).items():
        message = message.replace(str(folder.absolute()), words)
        if len(folder.parts) > 1:
            message = message.replace(str(folder), words)
    if PATH.search(message):
        message = f"{work} failed; the terminal of the server says why"
    if message != line:
        _log.warning("deepfish: %s", line)
    return message

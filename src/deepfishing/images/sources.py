"""Stage 1, images: from what a user points at to a list of image files.

Comes in: a folder, an image file, or a text file that lists images. Goes out: paths, in an order
that does not depend on the machine.
"""

from __future__ import annotations

from pathlib import Path

from deepfishing.errors import DatasetError
from deepfishing.images.folder import image_ids


def find_images(source: str | Path) -> list[Path]:
    """The image files that `source` stands for.

    Parameters
    ----------
    source : path
        A folder, searched with all its sub-folders for files with an image's extension, hidden
        ones left out; an image file; or a `.txt` file with one path a line, relative to the file.

    Examples
    --------
    >>> find_images("no/such/folder")
    Traceback (most recent call last):
    deepfishing.errors.DatasetError: images must be a folder, an image or a .txt list, got
        no/such/folder, which does not exist
    """
    path = Path(source)
    if path.is_dir():
        return [path / name for name in image_ids(path, path)]
    if not path.is_file():
        raise DatasetError(
            f"images must be a folder, an image or a .txt list, got {path}, which does not exist"
        )
    if path.suffix.lower() != ".txt":
        return [path]
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise DatasetError(f"list of images cannot be read: {path} ({error})") from None
    found = [path.parent / line.strip() for line in lines if line.strip()]
    if not found:
        raise DatasetError(f"a list must name at least one image, got none in {path}")
    return found

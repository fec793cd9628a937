"""Stage 1, images: the files that the VOC evaluation server takes.

Comes in: a `Dataset` whose test labels are not public, and a score per test image and class.
Goes out: one text file per class in the folder structure that the server asks for; pack
`results` as tar.gz and upload it.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from deepfishing.errors import DatasetError, FeatureError, check_choice
from deepfishing.files import replacing
from deepfishing.images.dataset import Dataset

# trained on the data set's own images only, or with other data, such as ImageNet for the network
COMPETITIONS = ("comp1", "comp2")


def write_submission(
    folder: str | Path,
    dataset: Dataset,
    scores: np.ndarray[Any, Any],
    competition: str = "comp1",
) -> tuple[Path, ...]:
    """Write `<folder>/results/VOC2012/Main/comp1_cls_test_aeroplane.txt` and so on.

    Scores have shape (n_test, n_classes). A line is an image id and its confidence, in full
    precision, so that the order is kept.
    """
    check_choice("competition", competition, COMPETITIONS)
    scores = np.asarray(scores)
    shape = (len(dataset.test), len(dataset.classes))
    if scores.shape != shape:
        raise FeatureError(
            f"scores must have shape {shape}, got {scores.shape}; no submission was written"
        )
    if not np.isfinite(scores).all():
        raise FeatureError("scores must be finite, got NaN or infinity; no submission was written")
    main = Path(folder) / "results" / dataset.name.upper() / "Main"
    names = [f"{competition}_cls_{dataset.test.name}_{name}.txt" for name in dataset.classes]
    try:
        main.mkdir(parents=True, exist_ok=True)
        for name, column in zip(names, scores.T, strict=True):
            pairs = zip(dataset.test.ids, column.tolist(), strict=True)
            with replacing(main / name) as partial:
                lines = "".join(f"{image_id} {score!r}\n" for image_id, score in pairs)
                partial.write_text(lines, encoding="utf-8", newline="\n")
    except OSError as error:
        raise DatasetError(f"submission cannot be written to {main}: {error.strerror}") from None
    return tuple(main / name for name in names)

"""Stage 3, gradients: images to the tensors that the head needs, ahead of time, on every core.

Comes in: images, a preprocessing and the trunk. Goes out, in the order of the images: batches of
what the trunk makes of every view of them. A worker decodes a few images and runs the trunk on
them, alone on its core, whose cache they fit into. A few batches are in work at a time, so memory
does not depend on how many images there are.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator, Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from itertools import chain, islice

import numpy as np
import torch
from torch import Tensor

from deepfishing.errors import ImageError
from deepfishing.gradients.engine import Run
from deepfishing.images.preprocess import ImageLike
from deepfishing.rank_one import Array

Piece = tuple[list[int], list[Tensor], dict[int, str]]  # indices, values, failures

PIECE = 4  # inputs, images times views, that go through the trunk at a time


@dataclass(frozen=True, eq=False)
class TrunkOutput:
    """What the trunk makes of the images at `indices`, and the images that could not be read."""

    indices: list[int]
    values: Tensor | None  # the views of an image follow each other
    failures: dict[int, str]


def prepare(
    images: Iterable[ImageLike],
    preprocess: Callable[[ImageLike], Array],
    run: Run,
    batch_size: int,
    workers: int,
    views: int = 1,
) -> Generator[TrunkOutput, None, None]:
    """Decode images and run the trunk on them, in batches; images are taken as they are needed.

    `preprocess` makes float32 pixels (views, 3, S, S) of an image, or raises `ImageError`.

    Examples
    --------
    >>> def pixels(image):
    ...     return np.full((1, 3, 2, 2), image, dtype=np.float32)
    >>> batches = prepare([5, 6, 7], pixels, torch.from_numpy, batch_size=2, workers=1)
    >>> [(batch.indices, tuple(batch.values.shape)) for batch in batches]
    [([0, 1], (2, 3, 2, 2)), ([2], (1, 3, 2, 2))]
    """
    size = min(max(1, PIECE // views), batch_size)  # images that a worker takes at a time
    ahead = 1 + max(1, -(-workers * size // batch_size))  # enough that no worker waits
    numbered = iter(enumerate(images))
    waiting: deque[list[Future[Piece]]] = deque()
    with ThreadPoolExecutor(workers, initializer=torch.set_num_threads, initargs=(1,)) as pool:
        try:
            while True:
                while len(waiting) < ahead and (batch := list(islice(numbered, batch_size))):
                    parts = [batch[i : i + size] for i in range(0, len(batch), size)]
                    waiting.append([pool.submit(_piece, p, preprocess, run) for p in parts])
                if not waiting:
                    return
                pieces = [future.result() for future in waiting.popleft()]
                values = [part for piece in pieces for part in piece[1]]
                yield TrunkOutput(
                    [index for indices, _, _ in pieces for index in indices],
                    # also a copy: what was made in inference mode could not enter a graph
                    torch.cat(values) if values else None,
                    {i: reason for _, _, failures in pieces for i, reason in failures.items()},
                )
        finally:
            for future in chain.from_iterable(waiting):
                future.cancel()


def _piece(
    images: Sequence[tuple[int, ImageLike]], preprocess: Callable[[ImageLike], Array], run: Run
) -> Piece:
    indices, pixels, failures, outputs = [], [], {}, []
    for index, image in images:
        try:
            pixels.append(preprocess(image))
            indices.append(index)
        except ImageError as error:
            failures[index] = str(error)
    if pixels:
        inputs = np.concatenate(pixels)
        outputs = [run(part) for part in np.array_split(inputs, -(-len(inputs) // PIECE))]
    return indices, outputs, failures

"""Extraction of features from images.

Each worker decodes a few images and runs the trunk on them, alone on its core. Only a few batches
are in progress at a time, so memory does not depend on the number of images.
"""

from __future__ import annotations

import math
import warnings
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import chain, islice
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from deepfishing.core.features import Factor, needed_factors
from deepfishing.core.kernels import Comparable
from deepfishing.core.rank_one import Array
from deepfishing.core.recipes import parse_recipes
from deepfishing.errors import FeatureError, ImageError, OptionError, check_choice
from deepfishing.extraction.batches import (
    Batch,
    aggregate,
    gather,
    leave_out,
    zero_gradients,
)
from deepfishing.extraction.compute import Computer
from deepfishing.extraction.options import BatchSize, Resources, choose_batch_size
from deepfishing.extraction.settings import Settings
from deepfishing.extraction.trunk import RunTrunk
from deepfishing.images.preprocess import ImageLike, find_views
from deepfishing.images.sources import find_images
from deepfishing.images.streams import samples
from deepfishing.networks.load import as_network
from deepfishing.networks.network import Network
from deepfishing.networks.objectives import Label

PIECE = 4  # inputs, images times views, that go through the trunk at a time
ON_ERROR = ("raise", "skip")  # what becomes of an image that cannot be used


class Features(dict[str, Comparable]):
    """Features of images by name.

    `indices` has the number of each image that the rows are of, and `failures` the number of each
    image that cannot be used, with the reason.
    """

    def __init__(
        self,
        features: Mapping[str, Comparable],
        indices: list[int],
        failures: dict[int, str],
    ) -> None:
        super().__init__(features)
        self.indices = indices
        self.failures = failures


def extract(
    network: Network | str | nn.Module,
    images: str | Path | Iterable[Any],
    features: str | Iterable[str] = "all",
    *,
    tau: float = 2.0,
    label: Label = "uniform",
    views: str = "centre",
    batch_size: BatchSize = "auto",
    memory: int | str | None = None,
    engine: str = "auto",
    device: str | None = None,
    on_error: str = "raise",
) -> Features:
    """Return features of images, all from one forward and one short backward pass per batch.

    Parameters
    ----------
    network : Network, str or torch module
        From `load_network`, a name that it takes, or a module as `wrap` takes it.
    images : path, image, or iterable of paths, images or (image, label)
        A path is read as by `find_images`: a folder, a pattern, a tar, a video. An image is a PIL
        image, a tensor (C, H, W), or an array (H, W), (H, W, 3) or (H, W, 4) of uint8, of floats
        from 0 to 1, or of floats from 0 to 255. An iterable may be a Hugging Face data set, a torch
        Dataset or DataLoader, or a generator, see `streams`; it is read as the work goes on.
        A path to a JPEG whose short side is 8 times the network's or more (1,792 pixels for 224) is
        decoded at a reduced size, so its features differ a little, by about 0.001 (1 - cosine),
        from those of the same picture as a PIL image; see `Preprocess.oversampling`.
    features : str or list of str
        Names such as `x7`, `x6;x7`, `dW7`; `all` gives the rows of the paper's Table 1. Recipes
        such as `pow(dW8,0.5)+x7`, too, unless they have to be fitted on training images.
    tau, label
        Temperature and label vector of the error, see `cross_entropy`.
    views : "centre", "flip", "scales" or "crops"
        What of an image the network sees: the central square as in the paper, or several views,
        see `find_views` and `aggregate`.
    batch_size, memory, engine
        What the work may use, see `Resources`; the result does not depend on it.
    device : str, optional
        Where a network is put that is given by its name: cpu, cuda, cuda:1, mps.
    on_error : "raise" or "skip"
        An image that cannot be used is an `ImageError`, or is left out with a warning, as on the
        command line.

    Returns
    -------
    Features
        A dict. By name: an array (n, d) for forward features, a `RankOne` for gradients,
        normalised; for a sum or a product of kernels what `gram` compares. Its `indices` and
        `failures` say which images the rows are of.
    """
    check_choice("on_error", on_error, ON_ERROR)
    network = as_network(network, device)
    wanted = parse_recipes(features, network.layers)
    for recipe in wanted:
        if recipe.learns:
            names = ",".join(feature.name for feature in recipe.features)
            raise FeatureError(
                f"{recipe.title} is fitted on training images, and extract knows none; write "
                f"features={names!r} and fit deepfishing.estimators.Whiten, or use `deepfish train`"
            )
    factors = needed_factors(wanted)
    settings = Settings.from_network(network, tau=tau, label=label, views=views)
    resources = Resources(batch_size=batch_size, memory=memory, engine=engine)
    if isinstance(images, str | Path):
        given: Iterable[ImageLike] = find_images(images)
    else:
        given = (image for image, _ in samples(images))
    indices: list[int] = []
    failures: dict[int, str] = {}
    batches = Extractor(network, factors, settings=settings, resources=resources)(given)
    if on_error == "skip":
        batches = leave_out(batches, failures)
    arrays = gather(_numbered(batches, indices))
    if failures:
        first = min(failures)
        warnings.warn(
            f"images left out: {len(failures)}, the first is number {first}: {failures[first]}",
            stacklevel=2,
        )
    if not indices:
        raise OptionError(
            f"images must hold at least one image that can be used, got none of {len(failures)}"
        )
    zero = zero_gradients(arrays)
    if zero.any():
        warnings.warn(
            f"{zero.sum()} of {len(zero)} images have a zero gradient, such as number "
            f"{indices[zero.argmax()]}: gradients cannot tell them apart; take forward features, "
            "or another tau",
            stacklevel=2,
        )
    return Features({r.name: r.fit({})(arrays) for r in wanted}, indices, failures)


def _numbered(batches: Iterable[Batch], indices: list[int]) -> Iterator[Batch]:
    """The batches, while the numbers of their images go into `indices`."""
    for batch in batches:
        indices += batch.indices
        yield batch


class Extractor:
    """Computes factors of images batch by batch; an unreadable image is reported, not raised.

    The engine is started and checked once, for all calls. By default the settings are those of the
    network with the paper's temperature and label.
    """

    def __init__(
        self,
        network: Network,
        factors: Sequence[Factor],
        *,
        settings: Settings | None = None,
        resources: Resources | None = None,
    ) -> None:
        settings = settings or Settings.from_network(network)
        resources = resources or Resources()
        self.views = find_views(settings.views)
        self.preprocess = settings.preprocessing()
        self.compute = Computer(
            network, factors, settings=settings, engine=resources.engine
        )
        batch_size = resources.batch_size
        if batch_size == "auto":
            size = self.compute.bytes_per_input()
            batch_size = choose_batch_size(size, len(self.views), resources.memory)
        self.batch_size = batch_size

    def __call__(self, images: Iterable[ImageLike]) -> Iterator[Batch]:
        """Yield the factors of the images, batch by batch."""
        compute = self.compute
        V = len(self.views)
        cores = torch.get_num_threads()
        # beside a trunk on every core the head needs few threads, and more would wait
        head_threads = max(1, cores // 4) if compute.cut else cores
        trunk_outputs = prepare(
            images, self.preprocess, compute.run, self.batch_size, cores, V
        )
        try:
            for output in trunk_outputs:
                torch.set_num_threads(head_threads)
                factors = {}
                if output.values:
                    # a copy: what was made in inference mode could not enter a graph
                    middle = torch.cat(output.values)
                    values = compute(middle, len(output.indices) * V)
                    for factor, value in values.items():
                        factors[factor.name] = aggregate(factor, value, V)
                yield Batch(output.indices, factors, output.failures)
        finally:
            trunk_outputs.close()
            torch.set_num_threads(cores)


class TrunkOutput(NamedTuple):
    """Output of the trunk for the images at `indices`, and the images that could not be read."""

    indices: list[int]
    # of all of them together; the views of an image follow each other
    values: list[Tensor]
    failures: dict[int, str]


def prepare(
    images: Iterable[ImageLike],
    preprocess: Callable[[ImageLike], Array],
    run: RunTrunk,
    batch_size: int,
    workers: int,
    views: int = 1,
) -> Generator[TrunkOutput, None, None]:
    """Decode images and run the trunk on them, in batches; images are taken as they are needed.

    `preprocess` makes float32 pixels (views, 3, S, S) of an image, or raises `ImageError`.
    """
    # images that a worker takes at a time
    size = min(max(1, PIECE // views), batch_size)
    ahead = 1 + max(1, -(-workers * size // batch_size))  # enough that no worker waits
    numbered = enumerate(images)
    waiting: deque[list[Future[TrunkOutput]]] = deque()
    with ThreadPoolExecutor(
        workers, initializer=torch.set_num_threads, initargs=(1,)
    ) as pool:
        try:
            while True:
                while len(waiting) < ahead:
                    batch = list(islice(numbered, batch_size))
                    if not batch:
                        break
                    futures = []
                    for start in range(0, len(batch), size):
                        piece = batch[start : start + size]
                        futures.append(pool.submit(_run_piece, piece, preprocess, run))
                    waiting.append(futures)
                if not waiting:
                    return
                whole = TrunkOutput([], [], {})
                for future in waiting.popleft():
                    output = future.result()
                    whole.indices.extend(output.indices)
                    whole.values.extend(output.values)
                    whole.failures.update(output.failures)
                yield whole
        finally:
            for future in chain.from_iterable(waiting):
                future.cancel()


def _run_piece(
    images: Sequence[tuple[int, ImageLike]],
    preprocess: Callable[[ImageLike], Array],
    run: RunTrunk,
) -> TrunkOutput:
    """Decode some images and run the trunk on them, `PIECE` inputs at a time."""
    indices, pixels, failures, outputs = [], [], {}, []
    for index, image in images:
        try:
            pixels.append(preprocess(image))
            indices.append(index)
        except ImageError as error:
            failures[index] = str(error)
    if pixels:
        inputs = np.concatenate(pixels)
        parts = np.array_split(inputs, math.ceil(len(inputs) / PIECE))
        outputs = [run(part) for part in parts]
    return TrunkOutput(indices, outputs, failures)

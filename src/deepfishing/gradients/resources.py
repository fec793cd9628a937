"""Stage 3, gradients: what decides how fast factors are computed, and none of their numbers.

The numbers are decided by `deepfishing.settings.Settings`.
"""

from __future__ import annotations

from dataclasses import dataclass

from deepfishing.gradients.batch_size import BatchSize, check_batch_size, parse_memory


@dataclass(frozen=True, kw_only=True)
class Resources:
    """What the work may use.

    Parameters
    ----------
    batch_size : int or "auto"
        Images per pass; the result does not depend on it, except for the last bits. `auto` is 32
        divided by the number of views, as a power of two, or what `memory` allows.
    memory : int or str, optional
        What a batch may need, in bytes or as `2GB`; by default a quarter of the memory of the
        machine, at most 2 GiB. Only `batch_size="auto"` looks at it.
    engine : "auto", "torch", "onnxruntime" or "openvino"
        What runs the network below the lowest layer asked for; `auto` is the fastest installed.
    device : str
        Where a network is put that is loaded for the work: cpu, cuda, cuda:1, mps.

    Examples
    --------
    >>> Resources(batch_size=8).engine
    'auto'
    >>> Resources(batch_size=0)
    Traceback (most recent call last):
    deepfishing.errors.OptionError: batch size must be auto or at least 1, got 0
    """

    batch_size: BatchSize = "auto"
    memory: int | str | None = None
    engine: str = "auto"
    device: str = "cpu"

    def __post_init__(self) -> None:
        check_batch_size(self.batch_size)
        parse_memory(self.memory)

"""Stage 3, gradients: how much memory a computation in torch needs.

Comes in: a function. Goes out: the most bytes of new tensors that were alive at a time, on any
device, those that the backward pass waits for included; a kernel's own memory is not seen.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


def peak_bytes(compute: Callable[[], Any]) -> int:
    """Run a function and give the most bytes of new tensors that were alive at a time.

    >>> import torch
    >>> a = torch.ones(1000)
    >>> peak_bytes(lambda: a.view(10, 100).add(1).add_(1).sum())
    4004
    >>> peak_bytes(lambda: [a + 1, a + 2])
    8000
    """
    watch = _Watch()
    with watch:
        compute()
    return watch.peak


class _Watch(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Sees every operation; a storage is known until it is freed."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.alive = self.peak = 0
        self.known: set[int] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        self.meet((args, kwargs), new=False)  # weights and inputs, which exist anyway
        result = func(*args, **kwargs)
        self.meet(result, new=True)
        self.peak = max(self.peak, self.alive)
        return result

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # nothing is compiled here, and torch would load its compiler to be told so

    def meet(self, tree: Any, new: bool) -> None:
        for tensor in tree_leaves(tree):
            if isinstance(tensor, Tensor):
                storage = tensor.untyped_storage()
                address = storage.data_ptr()
                if address not in self.known:
                    self.known.add(address)
                    size = storage.nbytes() if new else 0
                    self.alive += size
                    weakref.finalize(storage, self.forget, address, size)

    def forget(self, address: int, size: int) -> None:
        self.known.discard(address)
        self.alive -= size

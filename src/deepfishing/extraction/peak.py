"""Peak of the memory that a computation in torch needs."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


def peak_bytes(compute: Callable[[], Any]) -> int:
    """Run a function and return the peak of the bytes of new tensors, on any device.

    Tensors that a backward pass waits for are included; a kernel's own memory is not.
    """
    watch = _Watch()
    with watch:
        compute()
    return watch.peak


class _Watch(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Counts the bytes of the storages that every operation makes, until they are freed."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.alive = self.peak = 0
        self.addresses: set[int] = set()

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        self.count((args, kwargs), is_new=False)
        result = func(*args, **kwargs)
        self.count(result, is_new=True)
        self.peak = max(self.peak, self.alive)
        return result

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        # nothing is compiled here; otherwise torch would load its compiler
        return False

    def count(self, tree: Any, *, is_new: bool) -> None:
        """Count the storages of new tensors; those of weights and inputs exist anyway."""
        for tensor in tree_leaves(tree):
            if isinstance(tensor, Tensor):
                storage = tensor.untyped_storage()
                address = storage.data_ptr()
                if address not in self.addresses:
                    self.addresses.add(address)
                    size = storage.nbytes() if is_new else 0
                    self.alive += size
                    weakref.finalize(storage, self.forget, address, size)

    def forget(self, address: int, size: int) -> None:
        self.addresses.discard(address)
        self.alive -= size

"""Let `import torchvision` work beside a torch build that it was not made for.

torchvision registers functions for operators of its compiled part when it is imported. Where that
part does not load, as beside torch for the CPU alone, the operators are missing, and the import
fails with "operator torchvision::nms does not exist"; so do timm and others that import it. Here
they are declared first: models and transforms do not use them.

`deepfishing_torchvision.pth` imports this file whenever Python starts, so it imports nothing else.
"""

from __future__ import annotations

import sys

TYPE_CHECKING = False  # as of typing, which takes longer to load than all of this
if TYPE_CHECKING:
    from collections.abc import Sequence
    from importlib.machinery import ModuleSpec
    from types import ModuleType

PACKAGE = "torchvision"
OPERATORS = ("nms", "qnms")

# torch forgets operators whose library object is collected
_libraries: list[object] = []


class Finder:
    """Declares the operators right before torchvision runs, and leaves all else to Python."""

    @staticmethod
    def find_spec(
        name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Return how torchvision is imported; None for all other names."""
        if name != PACKAGE:
            return None
        from importlib.machinery import PathFinder

        spec = PathFinder.find_spec(name, path)
        if spec is None or spec.loader is None or not spec.submodule_search_locations:
            return spec
        run, folder = spec.loader.exec_module, spec.submodule_search_locations[0]

        def exec_module(module: ModuleType) -> None:
            declare_operators(folder)
            run(module)

        spec.loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec


def declare_operators(folder: str) -> None:
    """Declare torchvision's operators unless its compiled part, in this folder, loads."""
    from pathlib import Path

    import torch

    if _libraries:
        return
    for compiled in (*Path(folder).glob("_C*.so"), *Path(folder).glob("_C*.pyd")):
        try:
            torch.ops.load_library(str(compiled))  # type: ignore[no-untyped-call]
        except (ImportError, OSError):  # made for another build of torch
            continue
        return
    library = torch.library.Library(PACKAGE, "FRAGMENT")  # type: ignore[no-untyped-call]
    for name in OPERATORS:
        schema = f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor"
        library.define(schema)  # type: ignore[no-untyped-call]
    _libraries.append(library)


def install() -> None:
    """Put the finder before those of Python, once."""
    if Finder not in sys.meta_path and PACKAGE not in sys.modules:
        sys.meta_path.insert(0, Finder)


install()

import pytest
import torch

KEEP = []  # a library that is collected takes its operators with it


@pytest.fixture(scope="session")
def torchvision():
    """The module; a build whose compiled part does not fit this torch imports without it."""
    try:
        import torchvision
    except RuntimeError:  # operator torchvision::nms does not exist
        KEEP.append(torch.library.Library("torchvision", "FRAGMENT"))
        for name in ("nms", "qnms"):
            KEEP[0].define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
        import torchvision
    return torchvision

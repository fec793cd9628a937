import pytest

from deepfishing.networks.load import import_hub


@pytest.fixture(scope="session")
def torchvision():
    return import_hub("torchvision")

import pytest

from deepfishing.networks.libraries.packages import import_package


@pytest.fixture(scope="session")
def torchvision():
    return import_package("torchvision")

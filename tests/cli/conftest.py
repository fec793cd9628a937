"""The command line with the default network at a small size, so that a command takes no second."""

import pytest


@pytest.fixture
def full_input():
    """The default network at its own size, for commands that a process of their own runs."""


@pytest.fixture(autouse=True)
def _quick(request):
    if "full_input" not in request.fixturenames:
        request.getfixturevalue("small_input")

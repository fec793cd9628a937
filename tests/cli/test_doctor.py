import pytest

from deepfishing.cli import setup as command
from deepfishing.cli.doctor import MISSING, OK, PROBLEM, Finding


@pytest.fixture
def found(monkeypatch):
    def show(*findings):
        monkeypatch.setattr(command, "examine", lambda: iter(findings))

    return show


def test_this_machine_is_shown_a_line_each(deepfish):
    ran = deepfish("doctor")
    assert ran.code == 0, ran.out
    words = [line.split()[0] for line in ran.out.splitlines()]
    assert set(words) <= {OK, MISSING, PROBLEM}
    assert "weights efficientnet-lite0" in ran.out


def test_something_optional_that_is_missing_is_no_failure(deepfish, found):
    found(
        Finding(
            "extra ray",
            MISSING,
            "ray is not installed",
            "pip install 'deepfishing[ray]'",
        )
    )
    ran = deepfish("doctor")
    assert ran.code == 0
    assert ran.out.startswith("missing  extra ray")
    assert ran.out.endswith("ray is not installed: pip install 'deepfishing[ray]'\n")


@pytest.mark.parametrize("status", [MISSING, PROBLEM])
def test_something_broken_that_all_needs_is_exit_code_1(deepfish, found, status):
    found(
        Finding(
            "torch", status, "does not work", "pip install torch==2.13.0", core=True
        )
    )
    ran = deepfish("doctor")
    assert ran.code == 1
    assert ran.out.startswith(status)
    assert ran.out.endswith("does not work: pip install torch==2.13.0\n")

import os

import pytest

from deepfishing.errors import OptionError
from deepfishing.extraction.options import (
    MAX_INPUTS,
    MAX_MEMORY,
    Resources,
    choose_batch_size,
    parse_batch_size,
    parse_memory,
)
from deepfishing.util import machine


def test_auto_is_the_largest_power_of_two_that_fits():
    for views in (1, 2, 6, 10):
        for need in (1, 999, 10_000, 1_000_000):
            for memory in (1, 5_000, 70_000, 10**6, 10**9):
                powers = [2**i for i in range(10)]
                fits = [
                    n
                    for n in powers
                    if n * views <= MAX_INPUTS and n * views * need <= memory
                ]
                assert choose_batch_size(need, views, memory) == max(fits, default=1)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("2GB", 2 * 10**9),
        ("2 gib", 2 * 2**30),
        ("500k", 500_000),
        ("7", 7),
        (12, 12),
        ("1.5KB", 1500),
    ],
)
def test_a_budget_is_read_as_it_is_written(text, expected):
    assert parse_memory(text) == expected


@pytest.mark.parametrize("text", ["", "0", "-1GB", "much", "2TB2", "1e9", 0, -5, "0.1"])
def test_a_budget_that_is_none_is_refused(text):
    with pytest.raises(
        OptionError, match="memory must be bytes or text such as 2GB, got"
    ):
        parse_memory(text)


@pytest.mark.parametrize("wrong", ["many", "", "0", "-2", "1.5", 0, -2, 1.5])
def test_a_batch_size_that_is_none_is_refused(wrong):
    with pytest.raises(OptionError, match="batch size must be auto or"):
        parse_batch_size(wrong)
    with pytest.raises(OptionError, match="batch size must be auto or"):
        Resources(batch_size=wrong)


@pytest.fixture
def cgroups(tmp_path, monkeypatch):
    """Control groups on disk: what /proc says, and the limit of each folder."""

    def make(own, limits):
        (tmp_path / "own").write_text(own)
        for path, text in limits.items():
            file = tmp_path / "fs" / path
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(f"{text}\n")
        monkeypatch.setattr(machine, "_OWN_CGROUPS", tmp_path / "own")
        monkeypatch.setattr(machine, "_CGROUPS", tmp_path / "fs")

    return make


def test_without_limits_the_default_is_a_share_of_the_machine(cgroups):
    cgroups("0::/\n", {"memory.max": "max"})
    whole = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    assert parse_memory(None) == min(MAX_MEMORY, whole // 4)


@pytest.mark.parametrize(
    ("own", "limits"),
    [
        ("0::/\n", {"memory.max": 400_000}),
        (
            "0::/a/b\n",
            {"a/memory.max": 400_000, "a/b/memory.max": "max", "memory.max": 800_000},
        ),
        ("5:cpu:/x\n4:memory:/a\n0::/\n", {"memory/a/memory.limit_in_bytes": 400_000}),
        ("4:memory:/gone\n", {"memory/memory.limit_in_bytes": 400_000}),
    ],
    ids=["container", "outer group", "version 1", "version 1 in a container"],
)
def test_the_limit_of_a_control_group_counts(cgroups, own, limits):
    cgroups(own, limits)
    assert parse_memory(None) == 100_000


def test_a_machine_without_control_groups_has_a_default(tmp_path, monkeypatch):
    monkeypatch.setattr(machine, "_OWN_CGROUPS", tmp_path / "none")
    assert 0 < parse_memory(None) <= MAX_MEMORY


def test_the_device_is_that_of_the_environment_unless_one_is_given(monkeypatch):
    monkeypatch.delenv("DEEPFISHING_DEVICE", raising=False)
    assert Resources().device == "cpu"
    monkeypatch.setenv("DEEPFISHING_DEVICE", "cuda:1")
    assert Resources().device == "cuda:1"
    assert Resources(device="cpu").device == "cpu"


def test_commands_without_the_option_take_the_device_of_the_environment(
    deepfish, shapes, monkeypatch
):
    monkeypatch.setenv("DEEPFISHING_DEVICE", "abacus")
    ran = deepfish("train", shapes, "model", "--weights", "random", "--features", "x7")
    assert ran.code == 1
    assert "device must be" in ran.err
    assert "abacus" in ran.err

import importlib.util
import socket
import subprocess
import sys

import pytest

from deepfishing.errors import MissingDependencyError, OptionError
from deepfishing.extraction.distributed import connect


@pytest.fixture
def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def test_without_ray_the_error_has_the_pip_command(monkeypatch):
    find = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda n, *p: find(n, *p) if n != "ray" else None
    )
    with pytest.raises(MissingDependencyError, match=r"pip install .*\[ray\]'`"):
        connect("ray").__enter__()


@pytest.mark.parametrize(
    "on", ["", "Ray", "spark", "ray:", "ray://", "ray://host", "ray://a/b:1"]
)
def test_what_is_no_place_is_refused(on):
    with pytest.raises(OptionError, match=r"local, ray or ray://HOST:PORT, got"):
        connect(on).__enter__()


def test_an_address_where_nothing_listens_is_one_line_and_makes_no_store(
    deepfish, shapes, free_port, monkeypatch, tmp_path
):
    for on, address in (
        (f"ray://127.0.0.1:{free_port}", ""),
        ("ray", f"127.0.0.1:{free_port}"),
        ("ray://127.0.0.1:99999", ""),
    ):
        monkeypatch.setenv("RAY_ADDRESS", address)
        ran = deepfish("extract", shapes, "s", "--on", on)
        assert ran.code == 1
        assert f"Ray must answer at {address or on}" in ran.err
        assert ran.err.count("\n") == 1
    assert not (tmp_path / "s").exists()


def test_a_local_place_does_not_load_ray():
    code = "from deepfishing.cli import main; import sys; print('ray' in sys.modules)"

    ran = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    assert ran.stdout.strip() == "False"


def test_what_ray_tells_of_itself_is_not_shown():
    code = """
import logging
import deepfishing.extraction.distributed as distributed
distributed.start = lambda *given: None
with distributed.connect("ray"):
    import ray.data
    ray.data.DataContext.get_current()
    print(*(logging.getLogger(name).getEffectiveLevel() for name in ("ray", "ray.data._internal")))
"""
    ran = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    assert ran.stdout.split() == ["40", "40"]

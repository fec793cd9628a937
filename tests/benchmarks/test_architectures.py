"""x7 of many architectures is what the head of their own library takes."""

import importlib.util
import sys
from pathlib import Path

import pytest

FILE = Path(__file__).parents[2] / "benchmarks" / "architectures.py"
TOLERANCE = 1e-5
WHOLE = 3  # networks of a library that are tried here, where they are not small


def load():
    spec = importlib.util.spec_from_file_location("architectures", FILE)
    module = importlib.util.module_from_spec(spec)
    sys.modules["architectures"] = module  # where a dataclass looks
    spec.loader.exec_module(module)
    return module


architectures = load()


@pytest.mark.slow
@pytest.mark.parametrize("library", architectures.CASES)
def test_x7_is_what_the_librarys_own_head_takes(library):
    names, cases = architectures.CASES[library]
    if library != "transformers":
        names = names[:WHOLE]
    for case in cases(names):
        assert architectures.difference(case) <= TOLERANCE, case.name

"""benchmarks/WHEN.md has the tables that benchmarks/when.py makes."""

import importlib.util
import sys
from pathlib import Path

import pytest
from scipy.stats import spearmanr

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def when():
    spec = importlib.util.spec_from_file_location(
        "when", ROOT / "benchmarks" / "when.py"
    )
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_rank_correlation_is_spearmans_and_its_p_counts_orders(when):
    a, b = [3.0, 1.0, 2.0, 2.0, 5.0], [1.0, 0.0, 4.0, 2.0, 9.0]
    assert when.rank_correlation(a, b)[0] == pytest.approx(spearmanr(a, b).statistic)
    assert when.rank_correlation([1, 2, 3], [1, 2, 3]) == pytest.approx((1.0, 2 / 6))


def test_the_page_has_every_line(when, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["when.py"])
    when.main()
    page = (ROOT / "benchmarks" / "WHEN.md").read_text(encoding="utf-8").splitlines()
    printed = [line for line in capsys.readouterr().out.splitlines() if line]
    assert len(printed) > 15
    assert set(printed) <= set(page)

import heapq
from dataclasses import replace

import pytest

from deepfishing.errors import OptionError
from deepfishing.extraction.planning import Rates, make_plan, parse_count
from deepfishing.util import machine


@pytest.fixture
def rates():
    return Rates(
        network="vgg16",
        features="x7",
        factors={"x7": (64,)},
        core_seconds=0.5,
        hash_seconds=0.01,
        index_seconds=0.001,
        start_seconds=7.0,
        worker_bytes=10**9,
        index_bytes=2000.0,
        cores=2,
    )


def simulated(images, rates, workers, cores):
    """Chunks given to whichever worker is free first, one after the other."""
    free = [rates.start_seconds] * workers
    left = images
    while left:
        chunk = min(512, left)
        heapq.heapreplace(free, free[0] + chunk * rates.core_seconds / cores)
        left -= chunk
    hashing = images * rates.hash_seconds / (workers * cores)
    return hashing + max(free) + images * rates.index_seconds


@pytest.mark.parametrize(("images", "workers"), [(10_240, 4), (5_120, 10), (300, 8), (512_000, 3)])
def test_time_on_ray_is_that_of_workers_who_take_chunks_in_turn(rates, images, workers):
    planned = make_plan(images, rates, workers=workers, cores=8).ray
    expected = simulated(images, rates, workers, 8)
    assert planned.wall_seconds == pytest.approx(expected, rel=1e-3)


def test_more_workers_than_chunks_do_not_help(rates):
    few, many = (make_plan(1024, rates, workers=w).ray.wall_seconds for w in (2, 200))
    assert many == pytest.approx(few, rel=0.02)


def test_the_index_is_what_is_left_with_many_workers(rates):
    ray = make_plan(10**9, rates, workers=10**6).ray
    assert ray.wall_seconds == pytest.approx(10**9 * rates.index_seconds, rel=0.01)


def test_core_hours_do_not_depend_on_how_many_share_them(rates):
    rates = replace(rates, start_seconds=0.0)
    plan = make_plan(10**6, rates, workers=50, cores=4)
    assert plan.ray.core_hours == pytest.approx(plan.local.core_hours)
    assert plan.local.core_hours == pytest.approx(10**6 * 0.511 / 3600)
    assert plan.local.cores == 2


def test_a_store_whose_index_does_not_fit_into_memory_is_split(rates, monkeypatch):
    monkeypatch.setattr(machine, "memory", lambda: 4 * 10**9)
    assert make_plan(10**6, rates).stores == 1  # 2 GB, half of it
    assert make_plan(10**7, rates).stores == 10


@pytest.mark.parametrize(
    "text", ["", "0", "-5", "nan", "1e400", "1.5", "ten", "1e16", "1,00", "5X"]
)
def test_what_is_no_number_of_images_is_refused(text):
    with pytest.raises(OptionError, match="whole number"):
        parse_count(text)


def test_numbers_are_read_as_people_write_them():
    assert parse_count(" 1E6 ") == parse_count("1M") == parse_count("1_000_000") == 10**6
    assert parse_count("1.2B") == parse_count("1.2g") == 1_200_000_000
    assert [parse_count(text) for text in ("1e9", "2.5M", "10,000")] == [10**9, 2_500_000, 10_000]


def test_nobody_at_work_is_an_error(rates):
    with pytest.raises(OptionError, match="workers must be at least 1, got 0"):
        make_plan(10, rates, workers=0)

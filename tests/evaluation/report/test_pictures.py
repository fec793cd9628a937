import numpy as np
import pytest

from deepfishing.evaluation.report.pictures import strips


@pytest.fixture
def one_class(rng):
    truth = rng.choice([-1, 0, 1], p=[0.6, 0.1, 0.3], size=40)
    return truth, rng.normal(size=40), rng.normal(size=40), [f"i{n}" for n in range(40)]


def naive_ranking(truth, scores, ids):
    return [
        i
        for _, i in sorted(
            (-s, i) for t, s, i in zip(truth, scores, ids, strict=True) if t
        )
    ]


def test_the_first_are_those_of_the_sorted_scores(one_class):
    truth, scores, other, ids = one_class
    ranking = naive_ranking(truth, scores, ids)
    first = strips(truth, scores, other, ids).first
    assert [tile.id for tile in first] == ranking[:5]
    assert [tile.rank for tile in first] == [1, 2, 3, 4, 5]
    assert [tile.other for tile in first] == [
        1 + naive_ranking(truth, other, ids).index(i) for i in ranking[:5]
    ]


def test_the_last_show_the_class_and_stand_at_the_end(one_class):
    truth, scores, other, ids = one_class
    ranking = naive_ranking(truth, scores, ids)
    positive = [i for i in ranking if truth[ids.index(i)] == 1]
    last = strips(truth, scores, other, ids).last
    assert [tile.id for tile in last] == positive[::-1][:5]
    assert all(tile.shows and ranking[tile.rank - 1] == tile.id for tile in last)


def test_the_higher_are_found_by_one_kernel_and_lowest_by_the_other(one_class):
    truth, scores, other, ids = one_class
    ranking, others = (
        naive_ranking(truth, scores, ids),
        naive_ranking(truth, other, ids),
    )
    found = ranking[: int((truth == 1).sum())]
    lost = sorted(found, key=others.index, reverse=True)
    expected = [i for i in lost if others.index(i) > ranking.index(i)][:5]
    assert [tile.id for tile in strips(truth, scores, other, ids).higher] == expected


def test_difficult_images_are_in_no_strip(one_class):
    truth, scores, other, ids = one_class
    scores[truth == 0] = 100.0
    found = strips(truth, scores, other, ids, most=40)
    shown = {
        tile.id for strip in (found.first, found.last, found.higher) for tile in strip
    }
    assert shown == {i for i, t in zip(ids, truth, strict=True) if t}


def test_two_kernels_that_agree_have_nothing_to_show(one_class):
    truth, scores, _, ids = one_class
    assert strips(truth, scores, 2 * scores, ids).higher == ()


def test_equal_scores_keep_the_order_of_the_images():
    truth = np.array([1, -1, 1])
    first = strips(truth, np.zeros(3), np.zeros(3), ["a", "b", "c"]).first
    assert [tile.id for tile in first] == ["a", "b", "c"]

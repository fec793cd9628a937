import numpy as np
import torch

from deepfishing.errors import ImageError
from deepfishing.extraction.extract import PIECE, prepare


def pixels(number):
    if number % 7 == 3:
        raise ImageError(f"image {number} is broken")
    return np.full((1, 3, 2, 2), number, dtype=np.float32)


def doubled(batch):
    return torch.from_numpy(batch).mean(dim=(1, 2, 3)) * 2


def test_batches_come_in_order_whatever_their_size_and_the_number_of_threads():
    images = range(40)
    good = [i for i in images if i % 7 != 3]
    for batch_size in (1, PIECE - 1, PIECE + 1, 3 * PIECE, 100):
        for workers in (1, 3):
            batches = list(prepare(images, pixels, doubled, batch_size, workers))
            assert len(batches) == -(-40 // batch_size)
            assert [i for b in batches for i in b.indices] == good
            values = torch.cat([part for b in batches for part in b.values])
            assert values.tolist() == [2.0 * i for i in good]
            failures = {i: reason for b in batches for i, reason in b.failures.items()}
            assert failures == {i: f"image {i} is broken" for i in images if i % 7 == 3}


def test_views_of_an_image_follow_each_other_and_few_of_them_run_at_a_time():
    sizes = []

    def several(number):
        return (
            pixels(number).repeat(views, axis=0)
            + np.arange(views).reshape(-1, 1, 1, 1) / 100
        )

    def run(batch):
        sizes.append(len(batch))
        return doubled(batch)

    for views in (2, 3, 6, 10):
        for batch_size in (1, 2, 5):
            sizes.clear()
            batches = list(
                prepare(range(9), several, run, batch_size, workers=2, views=views)
            )
            assert [len(b.indices) + len(b.failures) for b in batches] == [
                min(batch_size, 9 - start) for start in range(0, 9, batch_size)
            ]
            values = torch.cat([part for b in batches for part in b.values])
            expected = [
                2 * (i + v / 100) for i in range(9) if i != 3 for v in range(views)
            ]
            torch.testing.assert_close(
                values, torch.tensor(expected, dtype=values.dtype)
            )
            assert max(sizes) <= PIECE
            assert sum(sizes) == 8 * views


def test_a_batch_without_a_readable_image_has_no_values():
    (batch,) = prepare([3, 10], pixels, doubled, batch_size=4, workers=1)
    assert batch.values == []
    assert list(batch.failures) == [0, 1]


def test_only_a_few_batches_are_read_ahead():
    taken = []

    def images():
        for number in range(10_000):
            taken.append(number)
            yield 0

    batches = prepare(images(), pixels, doubled, batch_size=8, workers=2)
    next(batches)
    assert len(taken) <= 4 * 8
    batches.close()


def test_values_made_in_inference_mode_can_enter_a_graph():
    def run(batch):
        with torch.inference_mode():
            return doubled(batch)

    (batch,) = prepare([1], pixels, run, batch_size=1, workers=1)
    weight = torch.ones(1, requires_grad=True)
    (torch.cat(batch.values) * weight).sum().backward()
    assert weight.grad.item() == 2.0


def test_threads_of_the_caller_are_left_alone():
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        assert (
            len(list(prepare(range(3), pixels, doubled, batch_size=1, workers=2))) == 3
        )
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)

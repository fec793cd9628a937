"""Text that a spreadsheet would run, and files at public addresses."""

import numpy as np

from deepfishing.store.contents import row_sums
from deepfishing.store.precision import Roots
from deepfishing.util.files import Remote, guarded, unguarded


def test_a_formula_is_guarded_and_comes_back():
    assert (guarded("=1+1"), unguarded("'=1+1"), guarded("apple")) == ("'=1+1", "=1+1", "apple")


def test_a_remote_file_is_called_as_its_address_ends():
    assert Remote("http://a.org/b/c.tar", "sha1:9116a64c", megabytes=2).file == "c.tar"


def test_a_row_is_summed_by_as_many_bytes_as_fit():
    assert row_sums(np.array([[1, 2], [3, -1]], dtype=np.int8)).tolist() == [513, 65283]


def test_two_roots_lie_in_a_byte_the_first_in_its_lower_half():
    codes, _ = Roots(4).encode(np.array([[-8.0, 2.0, 0.001]]), np.array([8.2]))
    assert codes.tolist() == [[(-7 + 8) + 16 * (4 + 8), (0 + 8) + 16 * 8]]

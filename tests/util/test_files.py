"""Text that a spreadsheet would run, and files at public addresses."""

from pathlib import Path

import numpy as np
import pytest

from deepfishing.store.precision import Roots
from deepfishing.util.files import Remote, guarded, remove_file, rename_file, unguarded


def test_a_formula_is_guarded_and_comes_back():
    assert (guarded("=1+1"), unguarded("'=1+1"), guarded("apple")) == (
        "'=1+1",
        "=1+1",
        "apple",
    )


def test_a_remote_file_is_called_as_its_address_ends():
    assert Remote("http://a.org/b/c.tar", "sha1:9116a64c", megabytes=2).file == "c.tar"


def test_two_roots_lie_in_a_byte_the_first_in_its_lower_half():
    codes, _ = Roots(4).encode(np.array([[-8.0, 2.0, 0.001]]), np.array([8.2]))
    assert codes.tolist() == [[(-7 + 8) + 16 * (4 + 8), (0 + 8) + 16 * 8]]


def in_use_on_windows(path, *_, **__):
    error = PermissionError(13, "in use", str(path))
    error.winerror = 32
    raise error


def test_renaming_waits_for_a_file_that_windows_says_is_in_use(tmp_path, monkeypatch):
    (tmp_path / "old").write_text("text")
    rename, attempts = Path.replace, []

    def third_time(old, new):
        attempts.append(new)
        return rename(old, new) if len(attempts) > 2 else in_use_on_windows(new)

    monkeypatch.setattr(Path, "replace", third_time)
    rename_file(tmp_path / "old", tmp_path / "new")
    assert (tmp_path / "new").read_text() == "text"
    assert len(attempts) == 3


def test_a_file_in_use_stays_and_any_other_refusal_is_an_error(tmp_path, monkeypatch):
    monkeypatch.setattr(Path, "unlink", in_use_on_windows)
    assert remove_file(tmp_path / "file") is False

    def not_allowed(path, **_):
        raise PermissionError(13, "not allowed", str(path))

    monkeypatch.setattr(Path, "unlink", not_allowed)
    with pytest.raises(PermissionError):
        remove_file(tmp_path / "file")

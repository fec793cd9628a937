import pytest

from deepfishing.errors import DatasetError
from deepfishing.images.sources import find_images


def test_a_folder_gives_all_images_below_it_in_order(tmp_path):
    for name in ("b.jpg", "a/z.PNG", "a/.hidden.jpg", ".git/x.jpg", "notes.txt", "a/deep/c.webp"):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"")
    found = [path.relative_to(tmp_path).as_posix() for path in find_images(tmp_path)]
    assert found == ["a/deep/c.webp", "a/z.PNG", "b.jpg"]


def test_one_image_and_a_list_of_images_are_taken(tmp_path):
    (tmp_path / "one.jpg").write_bytes(b"")
    assert find_images(tmp_path / "one.jpg") == [tmp_path / "one.jpg"]
    (tmp_path / "list.txt").write_text("sub/a.jpg\n\n b.jpg \n")
    assert find_images(tmp_path / "list.txt") == [tmp_path / "sub/a.jpg", tmp_path / "b.jpg"]


def test_what_holds_no_image_is_named(tmp_path):
    with pytest.raises(DatasetError, match="got none in"):
        find_images(tmp_path)
    (tmp_path / "list.txt").write_text("\n")
    with pytest.raises(DatasetError, match=r"got none in .*list\.txt"):
        find_images(tmp_path / "list.txt")
    (tmp_path / "list.txt").write_bytes(b"\xff\xfe")
    with pytest.raises(DatasetError, match=r"cannot be read: .*list\.txt"):
        find_images(tmp_path / "list.txt")
    with pytest.raises(DatasetError, match="does not exist"):
        find_images(tmp_path / "nowhere")

import numpy as np
import pytest

from deepfishing.errors import DatasetError, FeatureError, OptionError
from deepfishing.images.dataset import Dataset, Split
from deepfishing.images.voc import write_submission


@pytest.fixture
def voc2012(tmp_path):
    labels = np.array([[1, -1]], dtype=np.int8)
    train = Split("trainval", ("2008_1",), (tmp_path / "1.jpg",), labels)
    test = Split(
        "test", ("2008_2", "2008_3"), (tmp_path / "2.jpg", tmp_path / "3.jpg"), None
    )
    return Dataset("voc2012", ("aeroplane", "bicycle"), train, test, "area")


def test_files_are_those_the_evaluation_server_takes(voc2012, tmp_path):
    scores = np.array([[0.1, 1e-17], [-1.5, 1.0 + 2**-52]])
    paths = write_submission(tmp_path / "out", voc2012, scores, "comp2")
    main = tmp_path / "out" / "results" / "VOC2012" / "Main"
    assert paths == (
        main / "comp2_cls_test_aeroplane.txt",
        main / "comp2_cls_test_bicycle.txt",
    )
    assert paths[0].read_bytes() == b"2008_2 0.1\n2008_3 -1.5\n"
    assert sorted(main.iterdir()) == sorted(paths)


def test_confidences_read_back_exactly(voc2012, tmp_path):
    for dtype in (np.float64, np.float32):
        scores = np.random.default_rng(0).normal(size=(2, 2)).astype(dtype)
        paths = write_submission(tmp_path, voc2012, scores)
        back = [
            [float(line.split()[1]) for line in p.read_text().splitlines()]
            for p in paths
        ]
        np.testing.assert_array_equal(np.array(back).T, scores)


def test_failed_write_keeps_the_old_file_and_leaves_no_other(
    voc2012, tmp_path, monkeypatch
):
    paths = write_submission(tmp_path, voc2012, np.zeros((2, 2)))

    def full_disk(path, text, **_):
        with path.open("w") as file:
            file.write(text[:5])
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(type(tmp_path), "write_text", full_disk)
    with pytest.raises(DatasetError, match=r"VOC2012/Main \(No space left"):
        write_submission(tmp_path, voc2012, np.ones((2, 2)))
    assert paths[0].read_text() == "2008_2 0.0\n2008_3 0.0\n"
    assert sorted(paths[0].parent.iterdir()) == sorted(paths)


def test_folder_that_is_a_file_is_one_error(voc2012, tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(
        DatasetError, match=r"file/results/VOC2012/Main \(Not a directory"
    ):
        write_submission(tmp_path / "file", voc2012, np.zeros((2, 2)))


def test_wrong_scores_and_competitions_are_refused(voc2012, tmp_path):
    with pytest.raises(FeatureError, match=r"shape \(2, 2\), got \(2, 3\)"):
        write_submission(tmp_path, voc2012, np.zeros((2, 3)))
    with pytest.raises(FeatureError, match="finite"):
        write_submission(tmp_path, voc2012, np.full((2, 2), np.nan))
    with pytest.raises(OptionError, match="got 'comp3'; did you mean comp"):
        write_submission(tmp_path, voc2012, np.zeros((2, 2)), "comp3")
    assert list(tmp_path.iterdir()) == []

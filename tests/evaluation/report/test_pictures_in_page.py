import re

import numpy as np
import pytest

from deepfishing.errors import ImageError
from deepfishing.evaluation.report import pictures
from deepfishing.evaluation.report.html import write_report

CLASSES = ("cat", "dog", "<b>&cow")


@pytest.fixture
def made(tmp_path, add_rows, add_images):
    """A folder of results with its images."""
    folder = tmp_path / "results"
    results = add_rows(folder, features=("x7", "dW7"), classes=list(CLASSES))
    ids = results.scores(results.rows[0])[2]
    add_images(folder, tmp_path / "VOC2007", ids)
    return folder, results


def tiles(text):
    """The pictures of the page in their order: id, rank, and which data URI is shown."""
    uris = dict(
        re.findall(r'<image id="(p\d+)" width="96" height="96" href="([^"]+)"/>', text)
    )
    shown = re.findall(
        r'aria-label="(\d{6}): ([^"]*), rank (\d+).*?<use href="#(p\d+)"/>', text
    )
    return [
        (image_id, said, int(rank), uris[place])
        for image_id, said, rank, place in shown
    ]


def test_the_page_has_the_thumbnails_that_the_scores_imply(made):
    folder, results = made
    shown = tiles(write_report(folder).read_text(encoding="utf-8"))
    (scores, labels, ids), (others, *_) = map(results.scores, results.rows)
    expected = []
    for column in range(len(CLASSES)):
        truth = labels[:, column]
        kept = [i for i in range(len(ids)) if truth[i] != 0]
        for mine, theirs in ((scores, others), (others, scores)):
            ranking = sorted(kept, key=lambda i: -mine[i, column])
            other = sorted(kept, key=lambda i: -theirs[i, column])
            positive = [i for i in ranking if truth[i] == 1]
            higher = [
                i
                for i in sorted(ranking[: len(positive)], key=other.index, reverse=True)
                if other.index(i) > ranking.index(i)
            ]
            chosen = [*ranking[:5], *positive[::-1][:5], *higher[:5]]
            expected += [(ids[i], ranking.index(i) + 1, truth[i] == 1) for i in chosen]
    assert [
        (image_id, rank, not said.startswith("does not"))
        for image_id, said, rank, _ in shown
    ] == expected
    pictures = {}
    for image_id, _, _, uri in shown:  # one picture per image, and its own
        assert pictures.setdefault(image_id, uri) == uri
    assert len(set(pictures.values())) == len(pictures)


def test_nothing_is_loaded_from_anywhere_with_pictures_either(made):
    text = write_report(made[0]).read_text(encoding="utf-8")
    assert "://" not in text
    assert set(re.findall(r'(?:href|src)="([#:\w/;]{1,16})', text)) <= {
        "data:image/jpeg;",
        *re.findall(r'"(#\w+)"', text),
    }
    assert "img-src data:" in text


def test_a_hostile_class_name_is_escaped_beside_its_pictures(made):
    text = write_report(made[0]).read_text(encoding="utf-8")
    assert "<b>&cow" not in text
    assert "<h4>&lt;b&gt;&amp;cow" in text


def test_a_missing_image_is_a_tile_that_says_so(made):
    folder, results = made
    scores, labels, ids = results.scores(results.rows[0])
    kept = np.flatnonzero(labels[:, 0] != 0)
    best = ids[kept[np.argmax(scores[kept, 0])]]
    (folder.parent / "VOC2007" / f"{best}.png").unlink()
    text = write_report(folder).read_text(encoding="utf-8")
    assert f">{best}<br>not found</span>" in text
    assert best not in {image_id for image_id, *_ in tiles(text)}
    assert "images were not found or not readable" in text


def test_where_all_images_are_gone_one_sentence_says_what_to_do(made):
    folder, _ = made
    (folder.parent / "VOC2007").rename(folder.parent / "gone")
    text = write_report(folder).read_text(encoding="utf-8")
    assert "No pictures: none of" in text
    assert "deepfish reproduce</code> with <code>--data" in text
    assert tiles(text) == []
    assert tiles(
        write_report(folder, folder.parent / "gone").read_text(encoding="utf-8")
    )


def test_a_damaged_index_is_told_in_place_of_the_pictures(made):
    folder, _ = made
    [index] = folder.glob("features/*/index.parquet")
    index.write_bytes(b"nothing")
    text = write_report(folder).read_text(encoding="utf-8")
    assert f"No pictures: index is damaged: {index}" in text


def test_of_many_classes_those_are_shown_in_which_the_two_differ_most(
    made, monkeypatch
):
    folder, results = made
    monkeypatch.setattr(pictures, "MAX_CLASSES", 1)
    a, b = (row["ap"]["11point"] for row in results.rows)
    most = max(CLASSES[:2] + CLASSES[2:], key=lambda name: abs(a[name] - b[name]))
    text = write_report(folder).read_text(encoding="utf-8")
    [shown] = re.findall(r"<h4>(.*?) <span", text)
    assert shown == most.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    assert "Of 3 classes these are the 1 in which" in text


def test_rows_on_other_images_are_not_compared_by_pictures(
    tmp_path, add_rows, add_images
):
    results = add_rows(tmp_path, features=("x7",))
    add_rows(tmp_path, features=("dW7",))  # other labels, drawn anew
    add_images(tmp_path, tmp_path / "VOC2007", results.scores(results.rows[0])[2])
    text = write_report(tmp_path).read_text(encoding="utf-8")
    assert "measured on different images" in text


def test_a_folder_of_images_that_is_none_is_one_clear_error(made):
    with pytest.raises(ImageError, match=r"images must be a folder, got .*nowhere"):
        write_report(made[0], made[0] / "nowhere")

"""The report opens with sentences that anyone understands, and its photos can be enlarged."""

import re

import numpy as np

from deepfishing.evaluation.report.columns import columns
from deepfishing.evaluation.report.confusions import confusions
from deepfishing.evaluation.report.folder import precision_at_size
from deepfishing.evaluation.report.html import write_report
from deepfishing.evaluation.report.tables import comparison
from deepfishing.evaluation.report.text import write_markdown
from deepfishing.evaluation.report.words import plain, summary_words


def one_class_rows(folder, add_rows, **changes):
    given = {
        "dataset": "photos",
        "network": "efficientnet-lite0",
        "official_ap": "area",
    }
    return add_rows(
        folder,
        ("x7", "dW7"),
        strength={"x7": 1.0, "dW7": 1.4},
        one_class=True,
        classes=["ape", "bee", "cat"],
        **given,
        **changes,
    )


def test_the_summary_counts_recognised_photos_and_names_the_classes_confused_most(
    tmp_path, add_rows
):
    rows = one_class_rows(tmp_path, add_rows).rows
    best = max(rows, key=lambda row: row["map"]["area"])
    table = comparison(rows)
    words = plain(summary_words(table, confusions(table)))
    assert words.startswith(
        f"Of 100 photos {best['accuracy']:.0f} are recognised (3 classes, 60"
    )
    confused = {
        frozenset((a, b)): best["confusion"][a].get(b, 0)
        + best["confusion"][b].get(a, 0)
        for a in ("ape", "bee", "cat")
        for b in ("ape", "bee", "cat")
        if a != b
    }
    most = max(confused.values())
    named, count = re.search(
        r"(\w+ and \w+) are confused most: (\d+) of", words
    ).groups()
    assert confused[frozenset(named.split(" and "))] == most == int(count)
    assert f'<p class="summary"><strong>Of 100 photos {best["accuracy"]:.0f}' in (
        write_report(tmp_path).read_text()
    )


def test_photos_with_several_classes_are_summarised_by_the_share_that_is_right(
    tmp_path, add_rows
):
    results = add_rows(tmp_path, features=("x7",))
    [row] = results.rows
    scores, labels, _ = results.scores(row)
    shares = []
    for column in range(labels.shape[1]):
        ranked = sorted(
            (i for i in range(len(labels)) if labels[i, column] != 0),
            key=lambda i: -scores[i, column],
        )
        size = (labels[:, column] == 1).sum()
        shares.append(np.mean([labels[i, column] == 1 for i in ranked[:size]]))
    assert precision_at_size(results, row) == np.mean(shares)
    text = write_report(tmp_path).read_text()
    assert (
        f"Of 100 photos picked for a class {100 * np.mean(shares):.0f} show it" in text
    )


def test_the_page_describes_the_split_and_warns_of_similar_photos_across_it(
    tmp_path, add_rows
):
    one_class_rows(
        tmp_path, add_rows, split="half of each class, seed 0", similar_across=7
    )
    text = write_report(tmp_path).read_text()
    assert "<dt>split</dt><dd>half of each class, seed 0</dd>" in text
    assert "7 of 60 test photos are nearly the same as a training photo" in text


def test_without_similar_photos_there_is_no_warning(tmp_path, add_rows):
    one_class_rows(tmp_path, add_rows, similar_across=0)
    text = write_report(tmp_path).read_text()
    assert "nearly the same as a training photo" not in text
    assert "0 of 60 test images are copies" in text


def test_each_picture_can_be_enlarged_and_shows_its_file_name(
    tmp_path, add_rows, add_images
):
    results = add_rows(
        tmp_path / "results", features=("x7", "dW7"), classes=["cat", "dog"]
    )
    ids = results.scores(results.rows[0])[2]
    add_images(tmp_path / "results", tmp_path / "VOC2007", ids)
    text = write_report(tmp_path / "results").read_text()
    linked = set(re.findall(r'<a href="#(photo\d+)">', text))
    enlarged = dict(
        re.findall(r'<a class="photo" id="(photo\d+)".*?<span>(.*?)</span></a>', text)
    )
    assert linked
    assert linked == set(enlarged)
    assert set(enlarged.values()) <= {f"{image_id}.png" for image_id in ids}


def test_the_page_and_the_text_tables_have_the_same_columns(tmp_path, add_rows):
    rows = one_class_rows(tmp_path, add_rows, intervals=True).rows
    titles = [
        column.title + "*" * column.official for column in columns(comparison(rows))
    ]
    head = re.search(
        r"^\| feature \| (.*) \|$", write_markdown(tmp_path).read_text(), re.M
    )[1]
    # "gain" needs the scores of both rows, which `comparison` alone does not read
    assert [t.replace("\\", "") for t in head.split(" | ") if t != "gain"] == titles
    table = write_report(tmp_path).read_text().partition('<table class="table-1">')[2]
    shown = re.findall(
        r'<th scope="col" class="[\w ]+">(.*?)<', table.partition("</thead>")[0]
    )
    assert [t for t in shown if t != "gain"] == [t.removesuffix("*") for t in titles]

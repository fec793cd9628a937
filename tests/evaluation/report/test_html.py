import re
from html.parser import HTMLParser
from itertools import pairwise

import numpy as np
import pytest

from deepfishing.errors import StoreError
from deepfishing.evaluation.report.gains import gains
from deepfishing.evaluation.report.html import write_report
from deepfishing.evaluation.report.sheet import one_decimal

VOID = {
    "meta",
    "link",
    "br",
    "img",
    "hr",
    "input",
    "line",
    "circle",
    "rect",
    "path",
    "polyline",
}
VOID |= {"use", "image"}


class Page(HTMLParser):
    """A small independent reader: elements with their attributes and text, checked for nesting."""

    def __init__(self, text):
        super().__init__()
        self.open, self.elements = [], []
        self.feed(text)
        assert self.open == []

    def handle_starttag(self, tag, attrs):
        element = {
            "tag": tag,
            "attrs": dict(attrs),
            "text": "",
            "within": list(self.open),
        }
        self.elements.append(element)
        if tag not in VOID:
            self.open.append(element)

    def handle_startendtag(self, tag, attrs):
        self.handle_starttag(tag, attrs)
        assert tag in VOID

    def handle_endtag(self, tag):
        assert self.open.pop()["tag"] == tag

    def handle_data(self, data):
        for element in self.open:
            element["text"] += data

    def find(self, tag, within=None, **attrs):
        return [
            element
            for element in self.elements
            if element["tag"] == tag
            and (within is None or any(outer is within for outer in element["within"]))
            and all(element["attrs"].get(k.rstrip("_")) == v for k, v in attrs.items())
        ]

    def cells(self, table):
        """The text of a table, row by row."""
        return [
            [
                cell["text"].strip()
                for cell in self.elements
                if cell["tag"] in ("th", "td")
                and any(outer is row for outer in cell["within"])
            ]
            for row in self.find("tr", within=table)
        ]


def page_of(folder):
    path = write_report(folder)
    assert path == folder / "report.html"
    return Page(path.read_text(encoding="utf-8"))


def letters(feature):
    parts = [part.replace("dW", "∂E/∂W") for part in feature.split(";")]
    return ";\u2009".join(parts)


def official(row):
    return row["map"][row["official_ap"]]


def minus(text):
    return text.replace("-", "−")


def test_table_1_has_each_feature_once_with_its_figures(tmp_path, add_rows):
    rows = add_rows(tmp_path).rows
    page = page_of(tmp_path)
    [table] = page.find("table", class_="table-1")
    head, *body = page.cells(table)
    best = max((row for row in rows if "W" not in row["feature"]), key=official)
    gain = f"gainon {letters(best['feature'])}"
    assert head == [
        "feature",
        "11-pointofficial",
        gain,
        "area",
        "sklearn",
        "paper",
        "difference",
    ]
    assert len(body) == len(rows)
    by_name = {cells[0]: cells[1:] for cells in body}
    assert len(by_name) == len(rows)
    for row in rows:
        first, gain, *others, paper, difference = by_name[letters(row["feature"])]
        measured = [first, *others]
        points = official(row) - official(best)
        assert gain.rstrip("!") == (
            minus(one_decimal(points, True)) if row is not best else ""
        )
        assert measured == [
            f"{row['map'][m]:.1f}" for m in ("11point", "area", "sklearn")
        ]
        assert difference == minus(f"{row['map']['11point'] - float(paper):+.1f}")


def test_only_the_best_official_figure_of_table_1_is_bold(tmp_path, add_rows):
    rows = add_rows(tmp_path).rows
    page = page_of(tmp_path)
    [table] = page.find("table", class_="table-1")
    [bold] = page.find("strong", within=table)
    best = max(rows, key=lambda row: row["map"]["11point"])
    assert bold["text"] == f"{best['map']['11point']:.1f}"
    [line] = [outer for outer in bold["within"] if outer["tag"] == "tr"]
    assert page.find("th", within=line)[0]["text"] == letters(best["feature"])


def test_the_class_table_has_each_class_once_and_the_best_of_it_bold(
    tmp_path, add_rows
):
    rows = add_rows(
        tmp_path, features=("x6", "x7", "dW7"), strength={"x6": 2, "x7": 1, "dW7": 2}
    )
    ap = {row["feature"]: row["ap"]["11point"] for row in rows.rows}
    page = page_of(tmp_path)
    [table] = page.find("table", class_="classes")
    head, *body, mean = page.cells(table)
    assert head == ["class", "x6", "x7", "x7paper", "∂E/∂W7", "∂E/∂W7paper"]
    assert [cells[0] for cells in body] == rows.rows[0]["classes"]
    for line, cells in zip(page.find("tr", within=table)[1:], body, strict=False):
        name = cells[0]
        assert [cells[1], cells[2], cells[4]] == [one_decimal(ap[f][name]) for f in ap]
        [bold] = page.find("strong", within=line)
        assert bold["text"] == one_decimal(max(ap[f][name] for f in ap))
    assert body[0][3] == "95.4"  # the paper, Table 2
    assert mean[0] == "mean"
    assert mean[5] == "80.9"


def test_each_class_has_a_plot_with_the_curve_of_each_row(tmp_path, add_rows):
    rows = add_rows(tmp_path).rows
    page = page_of(tmp_path)
    plots = [
        svg
        for svg in page.find("svg")
        if "Precision-recall" in svg["attrs"].get("aria-label", "")
    ]
    assert len(plots) == len(rows[0]["classes"])
    for name, svg in zip(rows[0]["classes"], plots, strict=True):
        assert f"of class {name}:" in svg["attrs"]["aria-label"]
        lines = page.find("polyline", within=svg)
        for i, (row, line) in enumerate(zip(rows, lines, strict=True)):
            kind = "gradient" if "W" in row["feature"] else "forward"
            assert line["attrs"]["class"] == f"line {kind} r{i}"
            assert (
                f"{row['feature']} with AP {row['ap']['11point'][name]:.1f}"
                in (svg["attrs"]["aria-label"])
            )


def test_the_curves_are_those_of_the_scores(tmp_path, add_rows):
    results = add_rows(tmp_path, features=("x7", "dW7"))
    page = page_of(tmp_path)
    lines = page.find("polyline")
    assert len(lines) == 2 * len(results.rows[0]["classes"])
    for i, line in enumerate(lines):
        column, which = divmod(i, 2)
        scores, labels, _ = results.scores(results.rows[which])
        kept = labels[:, column] != 0
        truth, score = labels[kept, column] == 1, scores[kept, column]
        points = [
            tuple(map(float, p.split(","))) for p in line["attrs"]["points"].split()
        ]
        found = np.argsort(-score)  # one positive after the other, each a point
        expected = [
            (100 * k / truth.sum(), 100 - 100 * k / rank)
            for k, rank in enumerate(1 + np.flatnonzero(truth[found]), 1)
        ]
        assert points[0] == (0, points[1][1])
        np.testing.assert_allclose(points[1:], expected, rtol=1e-3)


def test_the_best_two_rows_are_ticked_and_every_other_has_its_switch(
    tmp_path, add_rows
):
    rows = add_rows(tmp_path).rows
    page = page_of(tmp_path)
    switches = page.find("input", type="checkbox")
    ticked = [
        row for row, s in zip(rows, switches, strict=True) if "checked" in s["attrs"]
    ]
    best = [
        max((row for row in rows if ("W" in row["feature"]) == gradient), key=official)
        for gradient in (False, True)
    ]
    assert sorted(row["feature"] for row in ticked) == sorted(
        row["feature"] for row in best
    )
    [style] = page.find("style")
    for i, switch in enumerate(switches):
        assert switch["attrs"]["class"] == f"s{i}"
        assert f":has(.s{i}:checked) .r{i} {{ display: inline; }}" in style["text"]


def test_the_dots_stand_in_the_order_of_the_figures(tmp_path, add_rows):
    rows = add_rows(tmp_path).rows
    page = page_of(tmp_path)
    [dots] = page.find("div", class_="dots")
    measured = [
        c for c in page.find("circle", within=dots) if "class" not in c["attrs"]
    ]
    places = [float(c["attrs"]["cx"].rstrip("%")) for c in measured]
    assert all(0 <= place <= 100 for place in places)
    # the fixture's order is the paper's
    values = [row["map"]["11point"] for row in rows]
    assert sorted(range(11), key=places.__getitem__) == sorted(
        range(11), key=values.__getitem__
    )
    assert len(page.find("circle", within=dots, class_="printed")) == 11


def test_a_perfect_score_is_not_drawn_beyond_100(tmp_path, add_rows):
    results = add_rows(tmp_path, features=("x7",))
    [row] = results.rows
    row["map"]["11point"] = 100.00000000000001
    results.add(row)
    page = page_of(tmp_path)
    [dots] = page.find("div", class_="dots")
    assert [text["text"] for text in page.find("text", within=dots)][-1] == "100"


@pytest.mark.parametrize(("strength", "word"), [(4.0, "above"), (0.2, "below")])
def test_the_headline_says_which_is_better(tmp_path, add_rows, strength, word):
    rows = add_rows(
        tmp_path, features=("x7", "dW7"), strength={"x7": 1.5, "dW7": strength}
    ).rows
    page = page_of(tmp_path)
    [headline] = page.find("div", class_="headline")
    [verdict] = page.find("strong", within=headline)
    points = abs(rows[1]["map"]["11point"] - rows[0]["map"]["11point"])
    assert verdict["text"] == f"{points:.1f} points {word}"
    assert "In the paper the same two rows differ by +1.5." in headline["text"]


@pytest.mark.parametrize(
    ("strength", "said"), [(4.0, "holds at 95 %"), (1.5, "could be chance")]
)
def test_the_headline_says_whether_the_difference_holds(
    tmp_path, add_rows, strength, said
):
    results = add_rows(
        tmp_path, features=("x7", "dW7"), strength={"x7": 1.5, "dW7": strength}
    )
    known = gains(results, results.rows)["dW7"]
    page = page_of(tmp_path)
    [headline] = page.find("div", class_="headline")
    text = re.sub(r"\s+", " ", headline["text"])
    between = f"{one_decimal(known.low, True)} to {one_decimal(known.high, True)}"
    assert f"The difference {said}: its interval is {minus(between)}." in text
    [table] = page.find("table", class_="table-1")
    assert ("!" in page.cells(table)[2][2]) == (said == "holds at 95 %")


def test_intervals_stand_beside_their_figures(tmp_path, add_rows):
    rows = add_rows(tmp_path, features=("x7", "dW7"), intervals=True).rows
    page = page_of(tmp_path)
    [table] = page.find("table", class_="table-1")
    head, *body = page.cells(table)
    assert head[2] == "interval95\u00a0%"
    for row, cells in zip(rows, body, strict=True):
        assert cells[2] == "–".join(f"{v:.1f}" for v in row["map_interval"]["11point"])
    [classes] = page.find("table", class_="classes")
    cow = next(cells for cells in page.cells(classes) if cells[0] == "cow")
    low, high = rows[0]["ap_interval"]["11point"]["cow"]
    assert cow[1] == f"{rows[0]['ap']['11point']['cow']:.1f} {low:.1f}–{high:.1f}"
    [dots] = page.find("div", class_="dots")
    drawn = page.find("line", within=dots, class_="interval")
    ends = [float(line["attrs"][x].rstrip("%")) for line in drawn for x in ("x1", "x2")]
    assert len(drawn) == 2
    assert all(0 <= end <= 100 for end in ends)


def test_rows_with_and_without_intervals_stand_in_one_table(tmp_path, add_rows):
    add_rows(tmp_path, features=("x7",))
    add_rows(tmp_path, features=("dW7",), intervals=True)
    page = page_of(tmp_path)
    [table] = page.find("table", class_="table-1")
    _, old, new = page.cells(table)
    assert old[2] == ""
    assert "–" in new[2]


def test_the_headline_admits_that_there_is_nothing_to_compare(tmp_path, add_rows):
    add_rows(tmp_path, features=("x7",))
    [headline] = page_of(tmp_path).find("div", class_="headline")
    assert "No gradient feature has been measured" in headline["text"]


def test_settings_get_a_part_each_and_no_paper_column_where_there_is_none(
    tmp_path, add_rows, groceries
):
    add_rows(tmp_path)
    add_rows(tmp_path, features=("x7", "dW7"), **groceries)
    page = page_of(tmp_path)
    assert [h["text"] for h in page.find("h2")] == [
        *("voc2007, alexnet-torchvision", "groceries, efficientnet-lite0"),
    ]
    ids = {e["attrs"]["id"] for e in page.elements if "id" in e["attrs"]}
    links = [a["attrs"]["href"] for a in page.find("a")]
    assert len(links) == 2
    assert {link.removeprefix("#") for link in links} <= ids
    _, second = page.find("table", class_="table-1")
    head = page.cells(second)[0]
    assert head == ["feature", "areaofficial", "gainon x7", "11-point", "sklearn"]


def test_a_split_without_labels_points_to_its_submission_files(tmp_path, add_rows):
    add_rows(tmp_path, features=("x7", "dW7"), labelled=False, dataset="voc2012")
    page = page_of(tmp_path)
    [table] = page.find("table", class_="table-1")
    assert page.cells(table)[2][1] == "no labels; submission files in submission/dW7"
    assert page.find("polyline") == []


def test_a_class_that_was_left_out_says_why(tmp_path, add_rows):
    results = add_rows(
        tmp_path, features=("x7", "dW7"), left_out={"cow": "no positive example"}
    )
    for row in results.rows:
        for method in row["ap"].values():
            method["cow"] = None
    results.add(results.rows[0])
    page = page_of(tmp_path)
    [table] = page.find("table", class_="classes")
    [cow] = [cells for cells in page.cells(table) if cells[0] == "cow"]
    assert cow == ["cow", "no positive example", "68.2", "no positive example", "70.4"]
    assert "The mean is over 19 of 20 classes" in re.sub(
        r"\s+", " ", page.elements[0]["text"]
    )


def test_nothing_is_loaded_from_anywhere(tmp_path, add_rows):
    add_rows(tmp_path)
    text = write_report(tmp_path).read_text(encoding="utf-8")
    assert "://" not in text
    assert "url(" not in text
    assert "@import" not in text
    page = Page(text)
    assert (
        page.find("script")
        == page.find("link")
        == page.find("img")
        == page.find("image")
        == []
    )
    for element in page.elements:
        assert not element["attrs"].keys() & {"src", "srcset", "data"}
        assert element["attrs"].get("href", "#").startswith("#")


@pytest.mark.parametrize(
    "key", ["class", "dataset", "network", "command", "unreadable", "version"]
)
def test_hostile_names_are_shown_and_not_obeyed(tmp_path, add_rows, key):
    evil = "<script>alert('\"&')</script>"
    changes = {
        "class": {"classes": ["cat", evil]},
        "unreadable": {"unreadable": [evil]},
    }.get(key, {key: evil})
    add_rows(tmp_path, features=("x7", "dW7"), **changes)
    page = page_of(tmp_path)
    assert page.find("script") == []
    assert evil in page.elements[0]["text"]


def test_the_page_tells_what_it_was_measured_with(tmp_path, add_rows):
    evil = "<script>1</script>"
    add_rows(
        tmp_path, features=("x7", "dW7"), versions={"Python": "3.11.0", "torch": evil}
    )
    page = page_of(tmp_path)
    assert page.find("script") == []
    assert f"Python 3.11.0, torch {evil}" in page.elements[0]["text"]


def test_a_hostile_feature_name_is_escaped_too(tmp_path, add_rows):
    names = ("x:<b>", "dW:<b>")
    add_rows(tmp_path, features=names, strength=dict.fromkeys(names, 1.0))
    page = page_of(tmp_path)
    [table] = page.find("table", class_="table-1")
    assert [cells[0] for cells in page.cells(table)[1:]] == ["x<b>", "∂E/∂W<b>"]


def test_missing_scores_are_told_in_place_of_their_curves(tmp_path, add_rows):
    results = add_rows(tmp_path, features=("x7", "dW7"))
    lost = results.scores_path(results.rows[0])
    lost.unlink()
    page = page_of(tmp_path)
    curve, pictures = page.find("p", class_="problem")
    assert str(lost) in curve["text"]
    assert str(lost) in pictures["text"]
    assert {line["attrs"]["class"] for line in page.find("polyline")} == {
        "line gradient r1"
    }


def test_headings_go_down_one_level_at_a_time_and_tables_have_scopes(
    tmp_path, add_rows, groceries
):
    add_rows(tmp_path)
    add_rows(tmp_path, features=("x7", "dW7"), **groceries)
    page = page_of(tmp_path)
    levels = [
        int(e["tag"][1]) for e in page.elements if re.fullmatch(r"h[1-6]", e["tag"])
    ]
    assert levels[0] == 1
    assert levels.count(1) == 1
    assert all(b <= a + 1 for a, b in pairwise(levels))
    assert all(th["attrs"].get("scope") in ("row", "col") for th in page.find("th"))


def test_how_it_was_measured_is_on_the_page(tmp_path, add_rows):
    add_rows(tmp_path, features=("x7",), tau=3.5, unreadable=["a/broken.jpg"])
    add_rows(
        tmp_path,
        features=("dW7",),
        tau=3.5,
        command="deepfish reproduce voc2007 --again",
    )
    text = re.sub(r"\s+", " ", page_of(tmp_path).elements[0]["text"])
    for said in (
        *(
            "ab" * 32,
            "τ = 3.5",
            "uniform label",
            "C = 1",
            "negative in training",
            "61 images",
        ),
        *(
            "a/broken.jpg",
            "--network alexnet-torchvision",
            "--again",
            "deepfishing 0.1.0",
        ),
    ):
        assert said in text


def test_the_same_results_give_the_same_page(tmp_path, add_rows):
    add_rows(tmp_path)
    first = write_report(tmp_path).read_bytes()
    assert write_report(str(tmp_path)).read_bytes() == first


def test_a_page_that_cannot_be_written_is_one_clear_error(tmp_path, add_rows):
    add_rows(tmp_path, features=("x7",))
    (tmp_path / "report.html").mkdir()
    with pytest.raises(StoreError, match=r"report cannot be written: .*report\.html"):
        write_report(tmp_path)

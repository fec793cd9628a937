import json

import pytest

from deepfishing.core.features import table_features
from deepfishing.errors import StoreError
from deepfishing.evaluation.record import POINT_SETTING, ROW_SETTING, SETTINGS
from deepfishing.evaluation.report.folder import group_rows, open_results, setting
from deepfishing.extraction.settings import Settings


def test_rows_come_in_the_order_of_table_1_however_they_were_measured(
    tmp_path, add_rows, rng
):
    paper = table_features({6: "fc6", 7: "fc7", 8: "fc8"})
    rows = add_rows(tmp_path, features=tuple(rng.permutation(paper).tolist())).rows
    [group] = group_rows(rows)
    assert [row["feature"] for row in group] == list(paper)


@pytest.mark.parametrize(
    "change",
    [
        {"dataset": "other"},
        {"test": "val"},
        {"network": "vgg16"},
        {"weights_sha256": "cd" * 32},
        {"tau": 4.0},
        {"label": [0.5, 0.5]},
        {"C": 2.0},
        {"difficult": "ignore"},
        {"n_train": 7},
        {"views": "flip"},
        {"compute_dtype": "bfloat16"},
        {"layers": {"8": "fc"}},
        {"preprocess": {"size": 224}},
        {"prefix_tokens": 5},
        {"head": "sigmoid"},
    ],
)
def test_rows_of_different_settings_never_share_a_table(tmp_path, add_rows, change):
    add_rows(tmp_path, features=("x7", "dW7"))
    rows = add_rows(tmp_path, features=("x7", "dW7"), **change).rows
    groups = group_rows([rows[0], rows[2], rows[1], rows[3]])
    assert [[row["key"] for row in group] for group in groups] == [
        [rows[0]["key"], rows[1]["key"]],
        [rows[2]["key"], rows[3]["key"]],
    ]


def test_every_setting_tells_rows_and_points_apart(toy_network):
    assert {"compute_dtype", "preprocess", "layers", "prefix_tokens", "tau"} <= set(
        SETTINGS
    )
    settings = Settings.from_network(toy_network)
    assert set(settings.decisive()) | {"prefix_tokens"} == set(SETTINGS)
    same = dict.fromkeys((*SETTINGS, *POINT_SETTING, *ROW_SETTING), "same")
    for name in SETTINGS:
        other = {**same, name: "other"}
        assert setting(other) != setting(same)
        assert setting(other, ROW_SETTING) != setting(same, ROW_SETTING)


def test_the_last_measurement_of_a_feature_counts(tmp_path, add_rows):
    add_rows(tmp_path, features=("x7",), version="0.1.0")
    rows = add_rows(tmp_path, features=("x7",), version="0.2.0").rows
    assert len(rows) == 2
    assert [[row["version"] for row in group] for group in group_rows(rows)] == [
        ["0.2.0"]
    ]


def test_rows_that_the_paper_does_not_have_come_last(tmp_path, add_rows):
    names = ("x:features.3", "dW:features.3", "dW8", "dW7@exact", "x7")
    rows = add_rows(tmp_path, features=names, strength=dict.fromkeys(names, 1.0)).rows
    [group] = group_rows(rows)
    assert [row["feature"] for row in group] == [
        *("x7", "dW7@exact", "dW8", "x:features.3", "dW:features.3"),
    ]


def test_a_folder_that_is_not_there_is_named_and_not_made(tmp_path):
    with pytest.raises(StoreError, match=r"must be a folder, got .*nowhere"):
        open_results(tmp_path / "nowhere")
    assert not (tmp_path / "nowhere").exists()


def test_a_folder_without_results_says_what_to_run(tmp_path):
    with pytest.raises(StoreError, match=r"results\.jsonl, got .*deepfish reproduce"):
        open_results(tmp_path)


def test_empty_results_are_refused(tmp_path):
    (tmp_path / "results.jsonl").write_text("")
    with pytest.raises(StoreError, match=r"at least one row.*results\.jsonl"):
        open_results(tmp_path)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("tau", "two"),
        ("classes", [1, 2]),
        ("map", None),  # but ap is there
        ("map", {"area": "high"}),
        ("map", {"area": float("nan")}),
        ("map", {"area": 1000.0}),
        ("ap", {"area": {}}),
        ("official_ap", "mean"),
        ("seconds", "soon"),
        ("unreadable", [None]),
        ("map_interval", {"area": [1.0]}),
        ("map_interval", {"area": [2.0, 1.0]}),
        ("map_interval", {"area": [1.0, None]}),
        ("map_interval", None),
        ("ap_interval", {"area": [1.0, 2.0]}),
        ("ap_interval", {"area": {"cow": [1.0, float("nan")]}}),
    ],
)
def test_a_malformed_row_is_one_line_with_file_and_number(
    tmp_path, add_rows, name, value
):
    add_rows(tmp_path, features=("x7", "dW7"))
    file = tmp_path / "results.jsonl"
    first, second = map(json.loads, file.read_text().splitlines())
    second[name] = value
    file.write_text(json.dumps(first) + "\n" + json.dumps(second) + "\n")
    with pytest.raises(StoreError, match=f"'{name}'.*results.jsonl line 2") as caught:
        open_results(tmp_path)
    assert "\n" not in str(caught.value)


def test_a_row_without_figures_or_with_half_a_character_is_refused(tmp_path, add_rows):
    """Found by `make fuzz`, results: tracebacks in the table and in the page."""
    add_rows(tmp_path, features=("x7",))
    file = tmp_path / "results.jsonl"
    row = json.loads(file.read_text())
    file.write_text(
        json.dumps({k: v for k, v in row.items() if k not in ("map", "ap")}) + "\n"
    )
    with pytest.raises(StoreError, match="usable 'map', got 'None'"):
        open_results(tmp_path)
    file.write_text(json.dumps({**row, "command": "\ud800"}) + "\n")
    with pytest.raises(StoreError, match=r"each line must be a result .* line 1"):
        open_results(tmp_path)


def test_a_row_without_a_key_of_its_setting_is_refused(tmp_path):
    (tmp_path / "results.jsonl").write_text('{"key": "k", "feature": "x7"}\n')
    with pytest.raises(StoreError, match="usable 'dataset', got 'None'"):
        open_results(tmp_path)

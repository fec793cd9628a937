import pytest


@pytest.mark.parametrize(
    ("options", "name", "start"),
    [
        ((), "report.html", "<!DOCTYPE html>"),
        (("--format", "markdown"), "report.md", "mAP in percent on voc2007 test"),
        (("--format", "latex"), "report.tex", "% needs \\usepackage{booktabs}"),
    ],
)
def test_each_format_is_written_and_named(
    tmp_path, add_rows, deepfish, options, name, start
):
    folder = tmp_path / "results"
    add_rows(folder, features=("x7", "dW7"))
    ran = deepfish("report", folder, *options)
    assert (ran.code, ran.out.strip(), ran.err) == (0, str(folder / name), "")
    assert (folder / name).read_text(encoding="utf-8").strip().startswith(start)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("results", "--format", "latec"), "got 'latec'; did you mean latex?"),
        (("nowhere",), "results must be a folder, got nowhere"),
    ],
)
def test_what_cannot_be_is_one_line(tmp_path, add_rows, deepfish, arguments, said):
    add_rows(tmp_path / "results", features=("x7",))
    ran = deepfish("report", *arguments)
    assert ran.code == 1
    assert said in ran.err
    assert ran.err.count("\n") == 1

"""`deepfish reproduce` with data sets of the registry: their measure, size and choices."""

import json

import pytest
from PIL import Image


@pytest.fixture
def pets(tmp_path):
    """Two breeds of one colour each, in the published layout."""
    root = tmp_path / "pets"
    for folder in ("images", "annotations"):
        (root / folder).mkdir(parents=True)
    lines = {"trainval": [], "test": []}
    for number, (breed, colour) in enumerate(
        {"Abyssinian": 0, "pug": 200}.items(), start=1
    ):
        for n in range(1, 7):
            picture = Image.new("RGB", (36, 34), (colour, 5 * n, 255 - colour))
            picture.save(root / "images" / f"{breed}_{n}.jpg")
            lines["trainval" if n < 4 else "test"].append(f"{breed}_{n} {number} 1 1\n")
    for split, some in lines.items():
        (root / "annotations" / f"{split}.txt").write_text("".join(some))
    return root


def test_the_official_measure_is_marked_and_kept(deepfish, pets, tmp_path):
    ran = deepfish(
        "reproduce", "pets", "--data", pets, "--features", "x7,dW8", "--out", "o"
    )
    assert ran.code == 0, ran.err
    assert "balanced*" in ran.out
    assert "area*" not in ran.out
    assert "official measure: mean per-class accuracy" in " ".join(ran.out.split())
    assert max(map(len, ran.out.splitlines())) <= 80
    assert (
        "pets has 3,680 and 3,669 images to train and to test as published" in ran.err
    )
    rows = [
        json.loads(line)
        for line in (tmp_path / "o/results.jsonl").read_text().splitlines()
    ]
    for row in rows:
        assert row["official_measure"] == "balanced_accuracy"
        assert row["balanced_accuracy"] is not None
    page = (tmp_path / "o/report.html").read_text()
    assert "balanced<small>official</small>" in page
    deepfish("report", "o", "--format", "markdown")
    assert (
        "official measure: mean per-class accuracy"
        in (tmp_path / "o/report.md").read_text()
    )


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["pets"], "pass --data FOLDER, or run `deepfish fetch pets`"),
        (
            ["pets", "--data", "pets/images"],
            "none of pets/images/annotations/trainval.txt",
        ),
        (
            ["pets", "--data", "pets", "--train", "list"],
            "pets has no choice of --train, got list",
        ),
        (
            ["pets", "--data", "pets", "--seed", "1"],
            "pets has no choice of --seed, got 1",
        ),
        (["groceries", "--test", "val"], "groceries has no choice of --test, got val"),
        (["folder"], "folder needs its folder, got none; pass --data FOLDER\n"),
        (["cifar10", "--data", "pets"], "run `deepfish fetch cifar10`"),
        (["pet"], "got 'pet'; did you mean pets?"),
    ],
)
def test_what_cannot_be_read_is_one_line(
    deepfish, pets, monkeypatch, tmp_path, arguments, words
):
    monkeypatch.setenv("DEEPFISHING_HOME", str(tmp_path / "home"))
    ran = deepfish("reproduce", *arguments)
    assert ran.code == 1
    assert ran.err.startswith("deepfish: ")
    assert ran.err.count("\n") == 1
    assert words in ran.err

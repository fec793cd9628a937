from importlib import metadata
from pathlib import Path

import numpy as np
from PIL import Image

from deepfishing.core.rank_one import RankOne
from deepfishing.core.recipes import parse_recipe
from deepfishing.search.hits import (
    ClassTerm,
    Explanation,
    contact_sheet,
    imagenet_names,
)


def test_the_first_gradient_whose_classes_are_not_mixed_explains():
    recipe = parse_recipe("whiten(dW8,0.5)+x7+pow(dW8,0.5)", {7: "fc7", 8: "fc8"})
    assert Explanation.from_recipe(recipe) == Explanation(gradient=1, has_classes=True)


def test_similarities_are_cosines_of_both_halves():
    a = RankOne(x=[[3.0, 4.0]], delta=[[1.0, 0.0]])
    b = RankOne(x=[[1.0, 0.0]], delta=[[1.0, 1.0]])
    forward, backward = Explanation(0, True).similarities(a, b)
    np.testing.assert_allclose([forward, backward], [[[0.6]], [[0.5**0.5]]])


def test_the_class_with_the_largest_term_comes_first():
    image = RankOne(x=[[1.0]], delta=[[0.6, 0.8]])
    (terms,) = Explanation(0, True).class_terms(image, image, ["cat", "dog"])
    assert terms[0] == ClassTerm(index=1, name="dog", term=0.64)


def test_a_contact_sheet_has_a_tile_for_each_picture_also_for_one_that_is_gone():
    tiles = [(Image.new("RGB", (9, 9)), "query", ""), (None, "0.500", "dog")]
    assert contact_sheet(tiles).size == (424, 260)


def test_the_names_of_imagenet_are_those_that_timm_has_and_no_two_are_the_same():
    timm = metadata.distribution("timm")
    folder = Path(str(timm.locate_file("timm/data/_info")))
    synsets = (folder / "imagenet_synsets.txt").read_text().split()
    lines = (folder / "imagenet_synset_to_lemma.txt").read_text().splitlines()
    words = dict(line.split("\t", 1) for line in lines)
    names = imagenet_names()
    assert names[208] == "Labrador retriever"
    for name, synset in zip(names, synsets, strict=True):
        assert name.partition(" (")[0] in words[synset].split(", ")
    assert len({name.lower() for name in names}) == 1000

from importlib import metadata
from pathlib import Path

from deepfishing.search.why import imagenet_names


def test_the_names_of_imagenet_are_those_that_timm_has_and_no_two_are_the_same():
    timm = metadata.distribution("timm")
    folder = Path(str(timm.locate_file("timm/data/_info")))
    synsets = (folder / "imagenet_synsets.txt").read_text().split()
    lines = (folder / "imagenet_synset_to_lemma.txt").read_text().splitlines()
    words = dict(line.split("\t", 1) for line in lines)
    names = imagenet_names()
    for name, synset in zip(names, synsets, strict=True):
        assert name.partition(" (")[0] in words[synset].split(", ")
    assert len({name.lower() for name in names}) == 1000

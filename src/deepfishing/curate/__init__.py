"""Stage 8, curate: put a collection in order, from a store or from features, without a network."""

from deepfishing.curate.labels import Doubt, doubtful_labels, label_scores
from deepfishing.curate.maps import Map, make_map
from deepfishing.curate.neighbours import nearest, open_searcher
from deepfishing.curate.odd import OddPhoto, odd_photos, oddness
from deepfishing.curate.photos import Pick, choose, choose_photos
from deepfishing.curate.twins import Twins, find_twins

__all__ = [
    "Doubt",
    "Map",
    "OddPhoto",
    "Pick",
    "Twins",
    "choose",
    "choose_photos",
    "doubtful_labels",
    "find_twins",
    "label_scores",
    "make_map",
    "nearest",
    "odd_photos",
    "oddness",
    "open_searcher",
]

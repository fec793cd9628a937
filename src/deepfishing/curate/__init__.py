"""Curation of a collection, from a store or from features, without a network."""

from deepfishing.curate.duplicates import Burst as Burst
from deepfishing.curate.duplicates import Twins as Twins
from deepfishing.curate.duplicates import find_twins as find_twins
from deepfishing.curate.label_errors import Doubt as Doubt
from deepfishing.curate.label_errors import doubtful_labels as doubtful_labels
from deepfishing.curate.label_errors import label_scores as label_scores
from deepfishing.curate.map_page import Map as Map
from deepfishing.curate.map_page import make_map as make_map
from deepfishing.curate.map_page import write_map as write_map
from deepfishing.curate.neighbours import nearest as nearest
from deepfishing.curate.neighbours import open_searcher as open_searcher
from deepfishing.curate.outliers import OddPhoto as OddPhoto
from deepfishing.curate.outliers import odd_photos as odd_photos
from deepfishing.curate.outliers import oddness as oddness
from deepfishing.curate.public import bursts as bursts
from deepfishing.curate.public import choose as choose
from deepfishing.curate.public import labels as labels
from deepfishing.curate.public import map as map
from deepfishing.curate.public import odd as odd
from deepfishing.curate.public import twins as twins
from deepfishing.curate.selection import Pick as Pick
from deepfishing.curate.selection import choose_photos as choose_photos
from deepfishing.curate.selection import choose_rows as choose_rows

"""Stage 8, curate: put a collection in order, from a store or from features, without a network."""

from deepfishing.curate.labels import Doubt as Doubt
from deepfishing.curate.labels import doubtful_labels as doubtful_labels
from deepfishing.curate.labels import label_scores as label_scores
from deepfishing.curate.maps import Map as Map
from deepfishing.curate.maps import make_map as make_map
from deepfishing.curate.neighbours import nearest as nearest
from deepfishing.curate.neighbours import open_searcher as open_searcher
from deepfishing.curate.odd import OddPhoto as OddPhoto
from deepfishing.curate.odd import odd_photos as odd_photos
from deepfishing.curate.odd import oddness as oddness
from deepfishing.curate.photos import Pick as Pick
from deepfishing.curate.photos import choose as choose
from deepfishing.curate.photos import choose_photos as choose_photos
from deepfishing.curate.twins import Twins as Twins
from deepfishing.curate.twins import find_twins as find_twins

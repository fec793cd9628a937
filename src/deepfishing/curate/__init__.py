"""Stage 8, curate: put a collection in order, from a store or from features, without a network."""

from deepfishing.curate.facility import choose
from deepfishing.curate.labels import Doubt, doubtful_labels, label_scores
from deepfishing.curate.photos import Pick, choose_photos

__all__ = ["Doubt", "Pick", "choose", "choose_photos", "doubtful_labels", "label_scores"]

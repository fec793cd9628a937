"""Stage 8, curate: put a collection in order, from a store or from features, without a network."""

from deepfishing.curate.choose import Pick, choose_photos
from deepfishing.curate.facility import choose
from deepfishing.curate.labels import Doubt, doubtful_labels, label_scores

__all__ = ["Doubt", "Pick", "choose", "choose_photos", "doubtful_labels", "label_scores"]

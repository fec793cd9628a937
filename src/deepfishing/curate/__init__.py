"""Stage 8, curate: put a collection in order, from a store or from features, without a network."""

from deepfishing.curate.choose import Pick, choose_photos
from deepfishing.curate.facility import choose

__all__ = ["Pick", "choose", "choose_photos"]

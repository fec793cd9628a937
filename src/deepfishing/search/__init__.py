"""Search for the nearest images under any recipe, exactly or through an index, with reasons."""

from deepfishing.search.collection import Picture
from deepfishing.search.hits import ClassTerm, Hit, Hits
from deepfishing.search.searcher import Searcher
from deepfishing.search.words import Words

__all__ = ["ClassTerm", "Hit", "Hits", "Picture", "Searcher", "Words"]

"""Stage 6, models: trained classifiers with their whole pipeline, in a folder of two files."""

from deepfishing.model.model import Model

__all__ = ["Model"]

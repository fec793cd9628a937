"""The same extraction past one machine, on Ray."""

from deepfishing.distributed.cluster import connect

__all__ = ["connect"]

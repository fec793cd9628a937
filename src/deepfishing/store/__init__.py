"""Features on disk: Parquet files and a manifest, written once and read by any tool."""

from deepfishing.store.index import Row
from deepfishing.store.store import Store

__all__ = ["Row", "Store"]

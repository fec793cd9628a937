"""Features on disk: Parquet shards and a manifest, written once and read by any tool."""

from deepfishing.store.store import Store

__all__ = ["Store"]

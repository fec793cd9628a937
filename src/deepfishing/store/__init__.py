"""Features on disk: Parquet files and a manifest, written once and read by any tool."""

from deepfishing.store.manifest import Row as Row
from deepfishing.store.store import Store as Store

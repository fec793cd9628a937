"""What Ray reads when it is imported, before any test of this folder does so."""

import os

from deepfishing.extraction.distributed import LONG_TIMEOUTS, NO_MESSAGES

os.environ |= {**NO_MESSAGES, **LONG_TIMEOUTS}
os.environ.pop("RAY_ADDRESS", None)

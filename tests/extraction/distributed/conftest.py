"""What Ray reads when it is imported, before any test of this folder does so."""

import os

from deepfishing.extraction.distributed import PATIENT, QUIET

os.environ |= {**QUIET, **PATIENT}
os.environ.pop("RAY_ADDRESS", None)

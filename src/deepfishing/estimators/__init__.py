"""Estimators: the method as steps of a scikit-learn pipeline.

They have scikit-learn's interface (`fit`, `get_params`, `clone`) and call the functions of the
other packages.
"""

from deepfishing.estimators.steps import GradientFeatures, Power, Project, Whiten
from deepfishing.estimators.svc import TraceKernelSVC

__all__ = ["GradientFeatures", "Power", "Project", "TraceKernelSVC", "Whiten"]

"""Stage 5, estimators: the method as steps of a scikit-learn pipeline.

Comes in: images, gradients as `RankOne`, or plain arrays. Goes out: the next step's input, and at
the end predictions. The estimators hold no maths of their own: they give the other stages'
functions scikit-learn's manners, `fit`, `get_params`, `clone`.
"""

from deepfishing.estimators.steps import GradientFeatures, Power, Project, Whiten
from deepfishing.estimators.svc import TraceKernelSVC

__all__ = ["GradientFeatures", "Power", "Project", "TraceKernelSVC", "Whiten"]

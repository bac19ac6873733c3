"""The steps of which merges are composed; `_target_: fusion_eval.method.step.Trim` names one in YAML."""

from fusion_eval.method.step.base import State, Step, View, Weights
from fusion_eval.method.step.combine import Elect, Sum
from fusion_eval.method.step.merged import Scale
from fusion_eval.method.step.sparsify import Drop, Trim
from fusion_eval.method.step.sphere import Slerp

__all__ = ["Drop", "Elect", "Scale", "Slerp", "State", "Step", "Sum", "Trim", "View", "Weights"]

"""Pure functional models, and parts of their layers."""

from tff_pfl.models.heads import linear, linear_head_shape, num_classes_of, on_features
from tff_pfl.models.hypernetwork import Hypernetwork
from tff_pfl.models.keras import COMPUTE_TYPES, assign, from_keras, keras_metrics
from tff_pfl.models.layer_parts import (
    LayerParts,
    layer_groups,
    layer_parts,
    normalization_layers,
    two_parts,
)
from tff_pfl.models.lora import lora
from tff_pfl.models.model import Forward, Model, Weights
from tff_pfl.models.multi_branch import MultiBranch, distinct_seeds, multi_branch
from tff_pfl.models.saved_model import ModelSaver
from tff_pfl.models.statistics import with_statistics
from tff_pfl.models.task import Metric, Task, check_ids
from tff_pfl.models.tasks import TASKS
from tff_pfl.models.tff_learning import from_tff
from tff_pfl.models.totals import Mean, Totals, merged, prefixed
from tff_pfl.models.two_exits import TwoExits, two_exits
from tff_pfl.models.zoo import MODELS, beside, build

__all__ = [
    "COMPUTE_TYPES",
    "Forward",
    "Hypernetwork",
    "LayerParts",
    "MODELS",
    "Mean",
    "Metric",
    "Model",
    "ModelSaver",
    "MultiBranch",
    "TASKS",
    "Task",
    "Totals",
    "TwoExits",
    "Weights",
    "assign",
    "beside",
    "build",
    "check_ids",
    "distinct_seeds",
    "from_keras",
    "from_tff",
    "keras_metrics",
    "layer_groups",
    "layer_parts",
    "linear",
    "linear_head_shape",
    "lora",
    "merged",
    "multi_branch",
    "normalization_layers",
    "num_classes_of",
    "on_features",
    "prefixed",
    "two_exits",
    "two_parts",
    "with_statistics",
]

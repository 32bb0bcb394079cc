"""Client-side computations: passes over examples, local training, exact gradients."""

from tff_pfl.local import sharpness, trees
from tff_pfl.local.augmentation import AUGMENTATIONS
from tff_pfl.local.batches import rows_of_batch, scan_batches
from tff_pfl.local.exact import (
    ExactGradient,
    evaluate,
    exact_gradient,
    metric_sums,
    sum_over,
    zero_sums,
)
from tff_pfl.local.examples import (
    Batch,
    ClientContext,
    Examples,
    examples_type,
    gather_rows,
    num_rows,
    sample_examples,
    split_examples,
)
from tff_pfl.local.optimizers import OPTIMIZERS
from tff_pfl.local.schedules import SCHEDULES
from tff_pfl.local.simplex import project_to_simplex
from tff_pfl.local.training import LocalTraining, TrainResult

__all__ = [
    "AUGMENTATIONS",
    "Batch",
    "ClientContext",
    "ExactGradient",
    "Examples",
    "LocalTraining",
    "OPTIMIZERS",
    "SCHEDULES",
    "TrainResult",
    "evaluate",
    "exact_gradient",
    "examples_type",
    "gather_rows",
    "metric_sums",
    "num_rows",
    "project_to_simplex",
    "rows_of_batch",
    "sample_examples",
    "scan_batches",
    "sharpness",
    "split_examples",
    "sum_over",
    "trees",
    "zero_sums",
]

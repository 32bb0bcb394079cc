"""Pure functional models, and the partition of their layers."""

from tff_pfl.models.hypernetwork import Hypernetwork
from tff_pfl.models.keras import KerasModelError, from_keras
from tff_pfl.models.model import Mean, Model, Totals, Weights
from tff_pfl.models.partition import Partition, partition
from tff_pfl.models.zoo import ZOO, build

__all__ = [
    "ZOO",
    "Hypernetwork",
    "KerasModelError",
    "Mean",
    "Model",
    "Partition",
    "Totals",
    "Weights",
    "build",
    "from_keras",
    "partition",
]

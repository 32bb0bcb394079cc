"""What a round costs: of the same federated averaging by contenders; and as federations grow."""

from tff_pfl.benchmarks.contenders import CONTENDERS, RUNTIMES, bare_tensorflow
from tff_pfl.benchmarks.measurement import DifferentWorkError, check_same_work, machine, measure
from tff_pfl.benchmarks.scaling import Point, measure_point, measure_scaling, scaling_points
from tff_pfl.benchmarks.workloads import WORKLOADS, Workload

__all__ = [
    "CONTENDERS",
    "RUNTIMES",
    "WORKLOADS",
    "DifferentWorkError",
    "Point",
    "Workload",
    "bare_tensorflow",
    "check_same_work",
    "machine",
    "measure",
    "measure_point",
    "measure_scaling",
    "scaling_points",
]

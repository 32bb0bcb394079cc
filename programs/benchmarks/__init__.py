"""What a round costs: of the same federated averaging by contenders; and as federations grow."""

from benchmarks.aggregators import measure_aggregators
from benchmarks.branches import measure_branches
from benchmarks.contenders import CONTENDERS, RUNTIMES, bare_tensorflow
from benchmarks.descent import measure_descent
from benchmarks.measurement import DifferentWorkError, check_same_work, machine, measure
from benchmarks.pgfed_server import measure_pgfed_server
from benchmarks.pooled import measure_pooled
from benchmarks.scaling import Point, measure_point, measure_scaling, scaling_points
from benchmarks.workloads import (
    AGGREGATED,
    BRANCHED,
    DESCENT_WORKLOADS,
    MANY_CLIENTS,
    POOLED,
    WORKLOADS,
    Workload,
)

__all__ = [
    "AGGREGATED",
    "BRANCHED",
    "CONTENDERS",
    "DESCENT_WORKLOADS",
    "MANY_CLIENTS",
    "POOLED",
    "RUNTIMES",
    "WORKLOADS",
    "DifferentWorkError",
    "Point",
    "Workload",
    "bare_tensorflow",
    "check_same_work",
    "machine",
    "measure",
    "measure_aggregators",
    "measure_branches",
    "measure_descent",
    "measure_pgfed_server",
    "measure_point",
    "measure_pooled",
    "measure_scaling",
    "scaling_points",
]

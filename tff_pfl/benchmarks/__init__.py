"""Seconds a round of the same federated averaging, done by several contenders."""

from tff_pfl.benchmarks.contenders import CONTENDERS, bare_tensorflow
from tff_pfl.benchmarks.measurement import DifferentWorkError, check_same_work, machine, measure
from tff_pfl.benchmarks.workloads import WORKLOADS, Workload

__all__ = [
    "CONTENDERS",
    "WORKLOADS",
    "DifferentWorkError",
    "Workload",
    "bare_tensorflow",
    "check_same_work",
    "machine",
    "measure",
]

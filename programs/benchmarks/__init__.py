"""What a round costs: of the same federated averaging by contenders; and as federations grow."""

from tff_pfl.lazy import offer

__getattr__, __dir__, __all__ = offer(
    __name__,
    {
        "aggregators": ("measure_aggregators",),
        "branches": ("measure_branches",),
        "contenders": ("CONTENDERS", "bare_tensorflow"),
        "descent": ("measure_descent",),
        "measurement": ("DifferentWorkError", "check_same_work", "machine", "measure"),
        "pgfed_server": ("measure_pgfed_server",),
        "pooled": ("measure_pooled",),
        "processes": ("ALGORITHMS",),
        "runtimes": ("RUNTIMES",),
        "scaling": ("Point", "measure_point", "measure_scaling", "scaling_points"),
        "start": ("measure_start",),
        "training_runs": ("TrainingRun", "measure_runs"),
        "unequal": ("measure_unequal",),
        "workloads": (
            "AGGREGATED",
            "BRANCHED",
            "DESCENT_WORKLOADS",
            "MANY_CLIENTS",
            "POOLED",
            "WORKLOADS",
            "Workload",
        ),
    },
)

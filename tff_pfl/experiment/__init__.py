"""States experiments, and runs and records them: rounds, checkpoints, folders, exports."""

from tff_pfl.lazy import offer

__getattr__, __dir__, __all__ = offer(
    __name__,
    {
        "early_stop": ("EarlyStop", "MetricError", "check_measured"),
        "errors": ("NobodyReportedError", "TrackerError"),
        "evaluate": ("EvaluationResult",),
        "experiment": ("Experiment",),
        "export": ("Exported",),
        "loop": ("train",),
        "new_clients": ("NewClients",),
        "run": ("Run",),
        "run_directory": ("OutputDirectoryError", "RunDirectory", "check_writable", "resolved"),
        "run_files": ("ClientTable", "RunFiles", "Session"),
        "summary": (
            "EvaluatedRound",
            "LateMean",
            "Result",
            "read_summary",
            "table",
            "write_summary",
        ),
        "trackers": (
            "MlflowReleaseManager",
            "TRACKERS",
            "WandbReleaseManager",
            "tracking",
        ),
        "versions": ("current_versions",),
    },
)

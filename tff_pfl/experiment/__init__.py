"""Runs and records experiments: configs, the round loop, checkpoints, output directories."""

from tff_pfl.lazy import offer

__getattr__, __dir__, __all__ = offer(
    __name__,
    {
        "early_stop": ("EarlyStop", "MetricError", "check_measured"),
        "evaluate": ("EvaluatedRun", "evaluate_program", "evaluate_run"),
        "export": (
            "ExportedRun",
            "export_models",
            "export_new_clients",
            "export_program",
            "export_run",
        ),
        "interruption": ("NobodyReportedError", "exit_code_of", "user_errors"),
        "loop": ("train",),
        "program": ("run_program",),
        "restored": ("RestoredRun", "TrainedRun", "restored_run", "trained_run"),
        "run_directory": ("OutputDirectoryError", "RunDirectory", "check_writable", "resolved"),
        "run_files": ("ClientTable", "RunFiles", "Session"),
        "summary": ("Evaluation", "LateMean", "Result", "read_summary", "table", "write_summary"),
        "trackers": (
            "MlflowReleaseManager",
            "TRACKERS",
            "TrackerError",
            "WandbReleaseManager",
            "tracking",
        ),
        "versions": ("current_versions",),
    },
)

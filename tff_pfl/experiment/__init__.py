"""Program logic: configs, the round loop, output directories, checkpoints, summaries."""

from tff_pfl.experiment.config import (
    ConfigError,
    build_dataset,
    build_early_stop,
    build_local,
    build_model,
    build_new_clients_evaluation,
    build_process,
    check_config,
    config_of_run,
    default_config,
    hold_out,
    parse_flags,
)
from tff_pfl.experiment.early_stop import EarlyStop
from tff_pfl.experiment.evaluate import (
    EvaluatedRun,
    RestoredRun,
    evaluate_program,
    evaluate_run,
    restored_run,
)
from tff_pfl.experiment.loop import NobodyReportedError, train
from tff_pfl.experiment.program import USER_ERRORS, run_program
from tff_pfl.experiment.results import Evaluation, LateMean, Result
from tff_pfl.experiment.run_directory import (
    OutputDirectoryError,
    RunDirectory,
    check_writable,
    resolved,
)
from tff_pfl.experiment.run_files import ClientTable, RunFiles
from tff_pfl.experiment.summary import Summary, read_summary, table, write_summary
from tff_pfl.experiment.versions import Session, current_versions

__all__ = [
    "ClientTable",
    "ConfigError",
    "EarlyStop",
    "EvaluatedRun",
    "Evaluation",
    "LateMean",
    "NobodyReportedError",
    "OutputDirectoryError",
    "RestoredRun",
    "Result",
    "RunDirectory",
    "RunFiles",
    "Session",
    "Summary",
    "USER_ERRORS",
    "build_dataset",
    "build_early_stop",
    "build_local",
    "build_model",
    "build_new_clients_evaluation",
    "build_process",
    "check_config",
    "check_writable",
    "config_of_run",
    "current_versions",
    "default_config",
    "evaluate_program",
    "evaluate_run",
    "hold_out",
    "parse_flags",
    "read_summary",
    "resolved",
    "restored_run",
    "run_program",
    "table",
    "train",
    "write_summary",
]

"""Runs and records experiments: configs, the round loop, checkpoints, output directories."""

from typing import TYPE_CHECKING

from tff_pfl.lazy import offer

if TYPE_CHECKING:
    from tff_pfl.experiment.early_stop import EarlyStop as EarlyStop
    from tff_pfl.experiment.early_stop import MetricError as MetricError
    from tff_pfl.experiment.early_stop import check_measured as check_measured
    from tff_pfl.experiment.evaluate import EvaluatedRun as EvaluatedRun
    from tff_pfl.experiment.evaluate import evaluate_program as evaluate_program
    from tff_pfl.experiment.evaluate import evaluate_run as evaluate_run
    from tff_pfl.experiment.export import ExportedRun as ExportedRun
    from tff_pfl.experiment.export import export_models as export_models
    from tff_pfl.experiment.export import export_new_clients as export_new_clients
    from tff_pfl.experiment.export import export_program as export_program
    from tff_pfl.experiment.export import export_run as export_run
    from tff_pfl.experiment.interruption import NobodyReportedError as NobodyReportedError
    from tff_pfl.experiment.interruption import exit_code_of as exit_code_of
    from tff_pfl.experiment.interruption import user_errors as user_errors
    from tff_pfl.experiment.loop import train as train
    from tff_pfl.experiment.program import run_program as run_program
    from tff_pfl.experiment.restored import RestoredRun as RestoredRun
    from tff_pfl.experiment.restored import TrainedRun as TrainedRun
    from tff_pfl.experiment.restored import restored_run as restored_run
    from tff_pfl.experiment.restored import trained_run as trained_run
    from tff_pfl.experiment.run_directory import OutputDirectoryError as OutputDirectoryError
    from tff_pfl.experiment.run_directory import RunDirectory as RunDirectory
    from tff_pfl.experiment.run_directory import check_writable as check_writable
    from tff_pfl.experiment.run_directory import resolved as resolved
    from tff_pfl.experiment.run_files import ClientTable as ClientTable
    from tff_pfl.experiment.run_files import RunFiles as RunFiles
    from tff_pfl.experiment.run_files import Session as Session
    from tff_pfl.experiment.summary import Evaluation as Evaluation
    from tff_pfl.experiment.summary import LateMean as LateMean
    from tff_pfl.experiment.summary import Result as Result
    from tff_pfl.experiment.summary import read_summary as read_summary
    from tff_pfl.experiment.summary import table as table
    from tff_pfl.experiment.summary import write_summary as write_summary
    from tff_pfl.experiment.trackers import TRACKERS as TRACKERS
    from tff_pfl.experiment.trackers import MlflowReleaseManager as MlflowReleaseManager
    from tff_pfl.experiment.trackers import TrackerError as TrackerError
    from tff_pfl.experiment.trackers import WandbReleaseManager as WandbReleaseManager
    from tff_pfl.experiment.trackers import tracking as tracking
    from tff_pfl.experiment.versions import current_versions as current_versions
else:
    __getattr__, __dir__, __all__ = offer(__name__)

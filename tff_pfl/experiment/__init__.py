"""States experiments, and runs and records them: rounds, checkpoints, folders, exports."""

from typing import TYPE_CHECKING

from tff_pfl.lazy import offer

if TYPE_CHECKING:
    from tff_pfl.experiment.early_stop import EarlyStop as EarlyStop
    from tff_pfl.experiment.early_stop import MetricError as MetricError
    from tff_pfl.experiment.early_stop import check_measured as check_measured
    from tff_pfl.experiment.errors import NobodyReportedError as NobodyReportedError
    from tff_pfl.experiment.errors import TrackerError as TrackerError
    from tff_pfl.experiment.evaluate import EvaluationResult as EvaluationResult
    from tff_pfl.experiment.experiment import Experiment as Experiment
    from tff_pfl.experiment.export import Exported as Exported
    from tff_pfl.experiment.loop import train as train
    from tff_pfl.experiment.new_clients import NewClients as NewClients
    from tff_pfl.experiment.run import Run as Run
    from tff_pfl.experiment.run_directory import OutputDirectoryError as OutputDirectoryError
    from tff_pfl.experiment.run_directory import RunDirectory as RunDirectory
    from tff_pfl.experiment.run_directory import check_writable as check_writable
    from tff_pfl.experiment.run_directory import resolved as resolved
    from tff_pfl.experiment.run_files import ClientTable as ClientTable
    from tff_pfl.experiment.run_files import RunFiles as RunFiles
    from tff_pfl.experiment.run_files import Session as Session
    from tff_pfl.experiment.summary import EvaluatedRound as EvaluatedRound
    from tff_pfl.experiment.summary import LateMean as LateMean
    from tff_pfl.experiment.summary import Result as Result
    from tff_pfl.experiment.summary import read_summary as read_summary
    from tff_pfl.experiment.summary import table as table
    from tff_pfl.experiment.summary import write_summary as write_summary
    from tff_pfl.experiment.trackers import TRACKERS as TRACKERS
    from tff_pfl.experiment.trackers import MlflowReleaseManager as MlflowReleaseManager
    from tff_pfl.experiment.trackers import WandbReleaseManager as WandbReleaseManager
    from tff_pfl.experiment.trackers import tracking as tracking
    from tff_pfl.experiment.versions import current_versions as current_versions
else:
    __getattr__, __dir__, __all__ = offer(__name__)

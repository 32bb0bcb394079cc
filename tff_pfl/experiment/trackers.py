"""Sends the metrics of a run to a tracker, Weights & Biases or MLflow, besides its own files.

    tff_pfl.train(experiment, "runs/mine", release_managers=["wandb"])

`programs/train.py --tracker=wandb` and `tff_pfl.compare(..., tracker="wandb")` do so. The trackers'
own environment variables choose where runs go: `WANDB_PROJECT`, `WANDB_MODE` and so on,
`MLFLOW_TRACKING_URI` and `MLFLOW_EXPERIMENT_NAME`. Their packages are imported when they are used.
"""

import abc
import contextlib
import importlib
import os
import pathlib
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from types import ModuleType
from typing import Any

import tensorflow_federated as tff

from tff_pfl.arguments.names import check_names
from tff_pfl.arguments.registry import Registry
from tff_pfl.experiment.changes import flatten
from tff_pfl.experiment.errors import TrackerError
from tff_pfl.experiment.run_directory import RunDirectory, read_json

TRACKERS = Registry("tracker", "directory")
"""Classes `(directory: RunDirectory, **options)` of release managers that are context managers."""

TRACKER_IDS = "trackers.json"
"""The file of a run with the ids that trackers gave it, so that a resumed run continues them."""

_LONGEST = 500  # characters of a parameter, which MLflow's servers take


class _Tracker(tff.program.ReleaseManager[Mapping[str, float], int]):
    """A release manager whose tracker ends a run with the body of a `with` statement."""

    def __enter__(self) -> "_Tracker":
        """Returns the object itself."""
        return self

    def __exit__(self, kind: type[BaseException] | None, *exc_info) -> None:
        """Tells the tracker whether the run failed."""
        self._end(failed=kind is not None)

    @abc.abstractmethod
    def _end(self, *, failed: bool) -> None:
        """Ends the tracker's run."""


@TRACKERS.register("wandb")
class WandbReleaseManager(_Tracker):
    """A release manager that sends the numbers of each round to Weights & Biases.

    The round is the step. The config has the run's settings.
    """

    def __init__(self, directory: RunDirectory, **options: Any):
        """Starts or continues a run of W&B.

        Args:
            directory: The open directory of the run.
            **options: Options of `wandb.init`, such as `project`, `group` and `tags`.

        Raises:
            TrackerError: The package is missing, or W&B does not start.
        """
        wandb = _imported("wandb")
        start = {"name": _name(directory), "config": directory.settings}
        if known := _id(directory, "wandb"):
            start |= {"id": known, "resume": "allow"}
        with _starting("wandb"):
            self._run = wandb.init(**start | options)
        _keep_id(directory, "wandb", self._run.id)

    async def release(self, value: Mapping[str, float], key: int) -> None:
        """Sends the numbers of a round."""
        self._run.log(dict(value), step=key)

    def _end(self, *, failed: bool) -> None:
        self._run.finish(exit_code=int(failed))


@TRACKERS.register("mlflow")
class MlflowReleaseManager(_Tracker):
    """A release manager that sends the numbers of each round to MLflow.

    The round is the step. The parameters are the run's settings.
    """

    def __init__(self, directory: RunDirectory, **options: Any):
        """Starts or continues a run of MLflow.

        Args:
            directory: The open directory of the run.
            **options: Options of `mlflow.MlflowClient`, such as `tracking_uri`.

        Raises:
            TrackerError: The package is missing, or the run cannot be made.
        """
        mlflow = _imported("mlflow")
        self._metric = mlflow.entities.Metric
        with _starting("mlflow"):
            self._client = mlflow.MlflowClient(**options)
            self._run_id = _id(directory, "mlflow") or self._new_run(directory)
            self._client.update_run(self._run_id, "RUNNING")
        _keep_id(directory, "mlflow", self._run_id)

    def _new_run(self, directory) -> str:
        name = os.environ.get("MLFLOW_EXPERIMENT_NAME", "Default")
        experiment = self._client.get_experiment_by_name(name)
        found = experiment.experiment_id if experiment else self._client.create_experiment(name)
        run = self._client.create_run(found, run_name=_name(directory)).info.run_id
        for key, value in flatten(directory.settings, ".").items():
            self._client.log_param(run, key, str(value)[:_LONGEST])
        return run

    async def release(self, value: Mapping[str, float], key: int) -> None:
        """Sends the numbers of a round."""
        now = int(1000 * time.time())
        metrics = [self._metric(name, float(number), now, key) for name, number in value.items()]
        self._client.log_batch(self._run_id, metrics)

    def _end(self, *, failed: bool) -> None:
        self._client.set_terminated(self._run_id, "FAILED" if failed else "FINISHED")


def check_trackers(managers: Iterable[str | tff.program.ReleaseManager]) -> None:
    """Checks that trackers exist and that their packages are installed.

    Args:
        managers: Names in `TRACKERS`; release managers are not checked.

    Raises:
        TrackerError: A tracker does not exist, or its package is missing.
    """
    for name in managers:
        if isinstance(name, str):
            check_names("tracker", [name], TRACKERS, error=TrackerError)
            if TRACKERS[name].__module__ == __name__:
                _imported(name)


@contextlib.contextmanager
def tracking(
    managers: Sequence[str | tff.program.ReleaseManager], directory: RunDirectory
) -> Iterator[Sequence[tff.program.ReleaseManager]]:
    """Yields release managers, those of trackers for names, and ends the trackers' runs afterwards.

    Args:
        managers: Release managers, or names in `TRACKERS`.
        directory: The open directory of the run.

    Raises:
        TrackerError: See `check_trackers`; or a tracker does not start.
    """
    check_trackers(managers)
    with contextlib.ExitStack() as trackers:
        yield [
            trackers.enter_context(TRACKERS[manager](directory))
            if isinstance(manager, str)
            else manager
            for manager in managers
        ]


def _imported(package: str) -> ModuleType:
    try:
        return importlib.import_module(package)
    except ImportError as error:
        raise TrackerError(
            f"The tracker {package!r} cannot be imported ({error}): pip install tff_pfl[{package}]"
        ) from error


@contextlib.contextmanager
def _starting(package: str) -> Iterator[None]:
    try:
        yield
    except Exception as error:  # trackers raise errors of many libraries
        raise TrackerError(f"The tracker {package!r} does not start: {error}") from error


def _name(directory: RunDirectory) -> str:
    """Returns the name of a run's folder, with the folder above if it is named by a seed."""
    path = pathlib.Path(directory.path)
    return f"{path.parent.name}/{path.name}" if path.name.startswith("seed") else path.name


def _ids(directory: RunDirectory) -> dict[str, str]:
    return read_json(directory.file(TRACKER_IDS)) if directory.has(TRACKER_IDS) else {}


def _id(directory: RunDirectory, tracker: str) -> str | None:
    """Returns the id that a tracker gave a run before, or `None`."""
    return _ids(directory).get(tracker)


def _keep_id(directory: RunDirectory, tracker: str, run_id: str) -> None:
    directory.write_json(TRACKER_IDS, _ids(directory) | {tracker: run_id})

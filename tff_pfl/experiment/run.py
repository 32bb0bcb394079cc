"""A run: a folder and the experiment that is trained in it."""

import contextlib
import dataclasses
import os
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

import absl.logging
import numpy as np
import pandas as pd

from tff_pfl import runtime
from tff_pfl.arguments.kinds import check_kind
from tff_pfl.arguments.tracebacks import with_short_tracebacks
from tff_pfl.clients import CohortDataSource
from tff_pfl.data import FederatedDataset
from tff_pfl.experiment.checkpoint import Checkpoint, check_trained, checkpoint_of, client_states
from tff_pfl.experiment.evaluate import EvaluationResult, evaluated
from tff_pfl.experiment.experiment import Experiment
from tff_pfl.experiment.export import Exported, write_models, write_models_of_others
from tff_pfl.experiment.identity import OF_EVALUATION
from tff_pfl.experiment.run_directory import OutputDirectoryError
from tff_pfl.experiment.run_files import RunFiles
from tff_pfl.experiment.summary import Result, read_summary
from tff_pfl.experiment.versions import other_versions


class Restored(NamedTuple):
    """The last checkpoint of a run.

    Attributes:
        source: The source of the clients' states and training examples.
        server_state: The process's `ServerState`.
        round_num: The number of rounds done.
        reported: bool `[clients]`: the clients that have been in a cohort and reported.
    """

    source: CohortDataSource
    server_state: Any
    round_num: int
    reported: np.ndarray


class Run:
    """A run: a folder and the experiment that is trained in it.

        run = tff_pfl.train(experiment, "runs/mine")
        run = tff_pfl.Run("runs/mine", experiment)       # the same, tomorrow
        run.result.final.mean("accuracy")
        run.evaluate(split="validation").distributions()
        run.predictions()
        run.export("deployed", ["ann"])

    Nothing in the folder is changed. Computations are executed in the context that `train` would
    choose. A warning is logged if versions, code or the machine differ from those of the run.

    Attributes:
        folder: The folder.
        experiment: The experiment.
    """

    def __init__(
        self, folder: str | os.PathLike, experiment: Experiment, result: Result | None = None
    ):
        """Makes a run, finished or not, without reading it.

        Args:
            folder: The folder.
            experiment: The experiment.
            result: The result, if it is known.
        """
        check_kind("The experiment", experiment, Experiment)
        self.folder = os.path.expanduser(folder)
        self.experiment = experiment
        self._result = result

    @property
    def result(self) -> Result:
        """The result.

        Raises:
            OutputDirectoryError: The run is not finished.
        """
        found = self._result or read_summary(self.folder)
        if found is None:
            raise OutputDirectoryError(
                f"The run in {self.folder} is not finished. Continue it with train(resume=True)."
            )
        return found

    def check(self) -> None:
        """Checks that the last checkpoint is of the experiment, with its data and its code.

        Raises:
            OutputDirectoryError: There is no checkpoint, or anything that its numbers depend on has
                changed.
        """
        path = checkpoint_of(self.folder)
        with client_states(self.experiment.process, path, read_only=True) as store:
            check_trained(store, self.experiment.identity)

    @contextlib.contextmanager
    def restored(self) -> Iterator[Restored]:
        """Yields the last checkpoint. Client states can be read until the end of the `with`.

        Raises:
            OutputDirectoryError: There is no checkpoint, or it is of another experiment.
            ForeignStateError: The states of the clients are of another type.
        """
        experiment, path = self.experiment, checkpoint_of(self.folder)
        process, options = experiment.process, experiment.evaluation
        with (
            runtime.current_or_graph_context(),
            client_states(process, path, read_only=True) as store,
        ):
            self._warn_of_other_versions()  # devices are those of the context
            check_trained(store, experiment.identity, OF_EVALUATION)
            source = experiment.source(store, options.clients_per_call)
            progress = Checkpoint(store, process).load(source)
            yield Restored(source, progress.server_state, progress.round_num, progress.reported)

    @with_short_tracebacks
    def evaluate(
        self, *, baseline: "Run | None" = None, predictions: bool = False, **changes: Any
    ) -> EvaluationResult:
        """Evaluates the last checkpoint.

        Args:
            baseline: Another run of the same clients with the same examples, such as a run of local
                training. Each client's gain over the baseline is computed: the baseline's last
                checkpoint is evaluated on the same split.
            predictions: Whether to record the outputs of each model on each example of its client.
                The baseline and new clients are left out.
            **changes: New values for fields of `Evaluation`.

        Raises:
            OutputDirectoryError: See `restored`; or the baseline has other data or another
                partition of them.
            ValueError: A change is impossible, or no client has examples in the split.
        """
        changed = self._with_evaluation(changes)
        return evaluated(changed, baseline, predictions=predictions)

    @with_short_tracebacks
    def predictions(self, **changes: Any) -> pd.DataFrame:
        """Predicts the examples of all clients.

        Args:
            **changes: New values for fields of `Evaluation`, such as `split`.

        Returns:
            A row for each example, in the columns of `Predictions.columns`; outputs for several
            classes are arrays.

        Raises:
            OutputDirectoryError: See `restored`.
        """
        run = self._with_evaluation(changes)
        with run.restored() as found:
            predicted = run.experiment.evaluator.predictions(found.server_state, found.source)
        columns = predicted.columns().items()
        return pd.DataFrame(
            {name: it if isinstance(it, pd.Categorical) else list(it) for name, it in columns}
        )

    @with_short_tracebacks
    def export(
        self,
        output: str | os.PathLike,
        clients: Iterable[int | str] | None = None,
        *,
        overwrite: bool = False,
    ) -> Exported:
        """Writes each model of the last checkpoint as a SavedModel in its own folder.

        A client's own model is the model that is evaluated as `personalized`. New clients of the
        experiment get the models that are evaluated as `fine_tuned`. See `ModelSaver` for how to
        load a model.

        Args:
            output: A new or empty folder. It receives `client_ID` or `client_NAME` for each client,
                `global` if the algorithm has a global model, and `models.json` with the run, the
                round, and the shape and type of inputs. Special characters of a name are written as
                in URLs, `%2F` for a slash; a longer name than 200 characters is cut, and ends in
                its digest.
            clients: The names of the clients whose models are written, or the ids of clients
                without names; `None`: all clients that train.
            overwrite: Whether to delete the models in the folder first, if there are any.

        Raises:
            OutputDirectoryError: See `restored`; or the folder has models, and `overwrite` is not
                set; or other files.
            UnknownNameError: A client does not exist; see `Partition.ids_of`.
            ValueError: A client was held out, and is not evaluated.
        """
        return write_models(self, output, clients, overwrite)

    @with_short_tracebacks
    def export_new_clients(
        self,
        new_clients: FederatedDataset,
        output: str | os.PathLike,
        *,
        fine_tune_epochs: int,
        seed: int | None = None,
        overwrite: bool = False,
    ) -> Exported:
        """Writes a model for each client that is no client of the experiment.

        It fine-tunes the global model on its training examples or, if the algorithm has none, the
        model that `NewClientsEvaluation` names.

        Args:
            new_clients: The data of these clients only, prepared as the run's data were, with the
                same names of classes if they have any. Clients without names get the ids after
                those of the run.
            output: See `export`.
            fine_tune_epochs: The number of passes over a client's training examples, by the
                algorithm's local training at the rate of the last round.
            seed: The seed of the order of batches. Default: that of the experiment.
            overwrite: See `export`.

        Raises:
            OutputDirectoryError: See `export`.
            TypeError: The data have other types than those of the run.
            ValueError: A new client has the name of a client of the run; labels are of other
                classes; or the algorithm has no model for new clients.
        """
        seed = self.experiment.seed if seed is None else seed
        return write_models_of_others(self, new_clients, output, fine_tune_epochs, seed, overwrite)

    def _with_evaluation(self, changes: dict[str, Any]) -> "Run":
        experiment = self.experiment
        evaluation = dataclasses.replace(experiment.evaluation, **changes)
        return Run(self.folder, dataclasses.replace(experiment, evaluation=evaluation))

    def _warn_of_other_versions(self) -> None:
        imports = RunFiles(self.folder).settings.get("imports") or ()
        if others := other_versions(self.folder, imports):
            absl.logging.warning(
                "%s was computed with other versions or other code, and numbers may differ: %s",
                self.folder,
                "; ".join(others),
            )

    def __repr__(self) -> str:
        """Returns the folder and the title of the experiment."""
        return f"<Run {self.folder}: {self.experiment.title}>"

    def _repr_html_(self) -> str | None:
        """Returns the result for notebooks, or `None` if the run is not finished."""
        found = self._result or read_summary(self.folder)
        return None if found is None else found._repr_html_()

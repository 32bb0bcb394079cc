"""Exports the trained models of a run for programs without this library."""

import os
import pathlib
import urllib.parse
from collections.abc import Callable, Collection, Iterable
from typing import Any, NamedTuple

import tree

from tff_pfl import runtime
from tff_pfl.clients import CohortDataSource
from tff_pfl.data import FederatedDataset
from tff_pfl.experiment.checkpoint import checkpoint_of, client_states, trained_state
from tff_pfl.experiment.interruption import exit_code_of
from tff_pfl.experiment.restored import RestoredRun, restored_run, warn_of_other_versions
from tff_pfl.experiment.run_directory import OutputDirectoryError, check_empty_folder
from tff_pfl.files import write_json
from tff_pfl.models import Model, ModelSaver
from tff_pfl.progress import progress_bar
from tff_pfl.ranges import takes, whole
from tff_pfl.templates import PersonalizedProcess

_DESCRIPTION = "models.json"


class ExportedRun(NamedTuple):
    """The exported models of a run.

    Attributes:
        run: The algorithm and the data set, or the folder of a run without a config.
        round_num: The number of rounds done.
        models: The names of the models' folders.
    """

    run: str
    round_num: int
    models: list[str]


class _TrainedRun(NamedTuple):
    """The attributes of a `RestoredRun` that are needed, of a run without a config."""

    title: str
    round_num: int
    process: PersonalizedProcess
    model: Model
    dataset: FederatedDataset
    source: CohortDataSource
    server_state: Any


@takes(clients_per_call=whole(1))
@runtime.current_or_graph_context()
def export_models(
    process: PersonalizedProcess,
    model: Model,
    dataset: FederatedDataset,
    run_dir: str | os.PathLike,
    output: str | os.PathLike,
    clients: Iterable[int | str] | None = None,
    *,
    clients_per_call: int = 25,
) -> ExportedRun:
    """Writes each model of a run's last checkpoint as a SavedModel in its own folder.

        tff_pfl.train(process, model, dataset, directory, ...)
        tff_pfl.export_models(process, model, dataset, directory.path, "deployed", ["ann"])

    Use `Comparison.export` for runs of `compare`, and `export_run` for runs by a config. A client's
    own model is the model that is evaluated as `personalized`. See `ModelSaver` for how to load a
    model.

    Args:
        process: The process that was trained.
        model: The model of the process.
        dataset: The data that it was trained on.
        run_dir: The run's output directory; nothing in it is changed.
        output: A new or empty folder. It receives `client_ID` or `client_NAME` for each client,
            `global` if the algorithm has a global model, and `models.json` with the run, the round,
            and the shape and type of inputs. Special characters of a name are written as in URLs,
            `%2F` for a slash.
        clients: The names of the clients whose models are written, or the ids of clients without
            names; `None`: all clients that train.
        clients_per_call: The number of clients whose models are made at a time, which bounds
            memory.

    Raises:
        OutputDirectoryError: There is no run with a checkpoint, the run has other data, or does not
            have a client of `clients`, or the output folder is not empty.
        ForeignStateError: The run is of another process.
    """
    check_empty_folder(output)
    path = checkpoint_of(run_dir)
    warn_of_other_versions(run_dir)
    with client_states(process, path, read_only=True) as store:
        state = trained_state(store, process, dataset)
        source = CohortDataSource(dataset, store, process.client_type, seed=0)
        title = os.fspath(run_dir)
        run = _TrainedRun(title, int(state.round_num), process, model, dataset, source, state)
        return _write(run, output, _ids_of(clients, dataset, run_dir), clients_per_call)


def export_run(
    run_dir: str | os.PathLike,
    output: str | os.PathLike,
    clients: Iterable[int | str] | None = None,
    *,
    trust_imports: bool | Collection[str] = (),
) -> ExportedRun:
    """Writes the models of a run by a config, as `export_models` does.

    Clients' own models are fine-tuned for `config.evaluation.fine_tune_epochs`.

    Args:
        run_dir: See `export_models`.
        output: See `export_models`.
        clients: See `export_models`.
        trust_imports: See `config_of_run`.

    Raises:
        OutputDirectoryError: See `export_models`.
        ConfigError: The run's config is not a config of this version.
    """
    check_empty_folder(output)
    with restored_run(run_dir, trust_imports=trust_imports) as run:
        ids = _ids_of(clients, run.dataset, run_dir)
        return _write(run, output, ids, run.config.evaluation.clients_per_call)


def _ids_of(clients, dataset, run_dir) -> list[int]:
    if clients is None:
        return list(range(dataset.num_clients))
    try:
        return list(dict.fromkeys(dataset.ids_of(clients)))
    except IndexError as error:
        raise OutputDirectoryError(f"{os.fspath(run_dir)}: {error}") from error


def _write(run: RestoredRun | _TrainedRun, output, client_ids, at_a_time) -> ExportedRun:
    output, process, dataset, names = pathlib.Path(output), run.process, run.dataset, []
    model = process.evaluated_model or run.model
    saver = ModelSaver(model, dataset.image_shape, dataset.x_dtype)
    output.mkdir(parents=True, exist_ok=True)

    def save(name, weights):
        saver.save(weights, output / name)
        names.append(name)

    if process.global_weights is not None:
        save("global", process.global_weights(run.server_state))
    with progress_bar(total=len(client_ids), desc="models", unit="client") as bar:
        for start in range(0, len(client_ids), at_a_time):
            ids = client_ids[start : start + at_a_time]
            personal = process.personalize(run.server_state, run.source.clients_of_ids(ids))
            for client_id, weights in zip(ids, personal, strict=True):
                name = str(dataset.partition.name_of(client_id))
                save(f"client_{urllib.parse.quote(name, safe='')}", weights)
                bar.update()
    exported = ExportedRun(run.title, run.round_num, names)
    description = {
        **exported._asdict(),
        "input_shape": dataset.image_shape,
        "input_dtype": tree.map_structure(str, dataset.x_dtype),
        "num_classes": dataset.num_classes,
    }
    write_json(str(output / _DESCRIPTION), description)
    return exported


def export_program(
    run_dir: str,
    output: str,
    *,
    clients: Iterable[int | str] | None = None,
    trust_imports: bool | Collection[str] = (),
    set_context: Callable[[], None] = lambda: None,
) -> int:
    """Writes the models of a run and prints how many there are.

    Args:
        run_dir: See `export_run`.
        output: See `export_run`.
        clients: See `export_run`.
        trust_imports: See `config_of_run`.
        set_context: See `evaluate_program`.

    Returns:
        The exit code, see `evaluate_program`.
    """

    def export():
        set_context()
        exported = export_run(run_dir, output, clients, trust_imports=trust_imports)
        print(f"{len(exported.models)} models of round {exported.round_num} of {exported.run}")
        print(f"results: {output}")

    return exit_code_of(export)

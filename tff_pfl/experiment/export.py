"""Exports the trained models of a run for programs without this library."""

import hashlib
import itertools
import os
import pathlib
import urllib.parse
from collections.abc import Callable, Collection, Iterable, Iterator
from typing import NamedTuple

import tree

from tff_pfl import runtime
from tff_pfl.arguments.kinds import check_kind
from tff_pfl.arguments.ranges import takes, whole
from tff_pfl.config.errors import ConfigError
from tff_pfl.data import FederatedDataset
from tff_pfl.evaluation import NewClientsEvaluation
from tff_pfl.experiment.checkpoint import checkpoint_of, client_states, trained_state
from tff_pfl.experiment.interruption import exit_code_of
from tff_pfl.experiment.restored import (
    RestoredRun,
    TrainedRun,
    restored_run,
    trained_run,
    warn_of_other_versions,
)
from tff_pfl.experiment.run_directory import check_empty_folder
from tff_pfl.experiment.run_files import RunFiles
from tff_pfl.local import LocalTraining
from tff_pfl.models import Model, ModelSaver, Weights
from tff_pfl.output.files import write_json
from tff_pfl.output.progress import progress_bar
from tff_pfl.templates import PersonalizedProcess

_DESCRIPTION = "models.json"
_LONGEST_NAME = 200


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


@takes(clients_per_call=whole(1))
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
            `%2F` for a slash; a longer name than 200 characters is cut, and ends in its digest.
        clients: The names of the clients whose models are written, or the ids of clients without
            names; `None`: all clients that train.
        clients_per_call: The number of clients whose models are made at a time, which bounds
            memory.

    Raises:
        OutputDirectoryError: There is no run with a checkpoint, the run is of another process or of
            other data, or the output folder is not empty.
        UnknownNameError: A client does not exist; see `Partition.ids_of`.
        ForeignStateError: The states of the clients are of another type.
    """
    ids = _ids_of(clients, dataset, dataset.num_clients)
    names = map(dataset.partition.name_of, ids)
    check_empty_folder(output)
    with trained_run(process, model, dataset, run_dir) as run:
        return _write(run, output, names, _own_models(run, ids, clients_per_call))


@takes(fine_tune_epochs=whole(0), seed=whole(0), clients_per_call=whole(1))
@runtime.current_or_graph_context()
def export_new_clients(
    process: PersonalizedProcess,
    model: Model,
    local: LocalTraining,
    new_clients: FederatedDataset,
    run_dir: str | os.PathLike,
    output: str | os.PathLike,
    *,
    fine_tune_epochs: int,
    seed: int = 0,
    clients_per_call: int = 25,
) -> ExportedRun:
    """Writes a model of a finished run for each client that did not train in it.

        tff_pfl.export_new_clients(
            process, model, local, newcomers, "runs/sales", "new", fine_tune_epochs=5)

    A new client fine-tunes the global model on its training examples or, if the algorithm has none,
    the model that `NewClientsEvaluation` names. The run's own data are not needed.

    Args:
        process: See `export_models`.
        model: See `export_models`.
        local: The local training, by which the clients fine-tune at the rate of the last round.
        new_clients: The data of the new clients only, prepared as the run's data were. Clients
            without names get the ids after those of the run.
        run_dir: See `export_models`.
        output: See `export_models`.
        fine_tune_epochs: The number of passes over a client's training examples.
        seed: The seed of the order of batches.
        clients_per_call: See `export_models`.

    Raises:
        OutputDirectoryError: There is no run with a checkpoint, the run is of another process, or
            the output folder is not empty.
        ForeignStateError: The states of the clients are of another type.
        TypeError: The data have other types than those of the run.
        ValueError: A new client has the name of a client of the run, or the algorithm has no model
            for new clients.
    """
    check_empty_folder(output)
    tip = "FederatedDataset.from_dataframe makes one of a table."
    check_kind("The data set of new clients", new_clients, FederatedDataset, tip)
    path, trained = checkpoint_of(run_dir), RunFiles(run_dir).partition
    names = _new_names(new_clients, trained)
    warn_of_other_versions(run_dir)
    with client_states(process, path, read_only=True) as store:
        state = trained_state(store, process, None)
    title, rows = os.fspath(run_dir), range(new_clients.num_clients)
    run = TrainedRun(title, int(state.round_num), process, model, new_clients, None, state)
    new = NewClientsEvaluation(
        process,
        model,
        local,
        new_clients,
        epochs=fine_tune_epochs,
        first_id=trained.num_clients,
        clients_per_call=clients_per_call,
        seed=seed,
    )
    return _write(run, output, names, new.models(state, rows))


def _new_names(new_clients, trained) -> list[int | str]:
    """Returns the names of new clients, or the ids after those of the clients that trained."""
    if new_clients.names is None:
        return [trained.num_clients + row for row in range(new_clients.num_clients)]
    names, known = new_clients.names.tolist(), () if trained.names is None else trained.names
    if both := [name for name in names if name in known]:
        raise ValueError(
            f"Client {both[0]!r} trained in the run, so export_models writes its own model. Leave "
            "it out: dataset.of(dataset.ids_of(names)) has the clients of these names."
        )
    return names


def export_run(
    run_dir: str | os.PathLike,
    output: str | os.PathLike,
    clients: Iterable[int | str] | None = None,
    *,
    trust_imports: bool | Collection[str] = (),
) -> ExportedRun:
    """Writes the models of a run by a config, as `export_models` does.

    Clients' own models are fine-tuned for `config.evaluation.fine_tune_epochs`. Clients that the
    run held out get the models that it evaluates as `fine_tuned`.

    Args:
        run_dir: See `export_models`.
        output: See `export_models`.
        clients: See `export_models`; clients that the run held out can be named, too.
        trust_imports: See `config_of_run`.

    Raises:
        OutputDirectoryError: See `export_models`.
        UnknownNameError: See `export_models`.
        ConfigError: The run's config is not a config of this version, or a client was held out with
            `config.new_clients.evaluated=False`.
    """
    check_empty_folder(output)
    with restored_run(run_dir, trust_imports=trust_imports) as run:
        num_trained, everybody = run.dataset.num_clients, run.everybody
        ids = sorted(_ids_of(clients, everybody, num_trained), key=lambda i: i >= num_trained)
        own = [client_id for client_id in ids if client_id < num_trained]
        models = _own_models(run, own, run.config.evaluation.clients_per_call)
        if new := [client_id - num_trained for client_id in ids[len(own) :]]:
            evaluation = run.new_clients_evaluation()
            if evaluation is None:
                raise ConfigError(
                    f"Client {everybody.partition.name_of(num_trained + new[0])!r} was held out "
                    "with config.new_clients.evaluated=False, so it has no model."
                )
            models = itertools.chain(models, evaluation.models(run.server_state, new))
        return _write(run, output, map(everybody.partition.name_of, ids), models)


def _ids_of(clients, dataset, num_trained) -> list[int]:
    if clients is None:
        return list(range(num_trained))
    return list(dict.fromkeys(dataset.ids_of(clients)))


def _own_models(run: RestoredRun | TrainedRun, client_ids, at_a_time) -> Iterator[Weights]:
    """Yields the own models of clients that train."""
    for start in range(0, len(client_ids), at_a_time):
        clients = run.source.clients_of_ids(client_ids[start : start + at_a_time])
        yield from run.process.personalize(run.server_state, clients)


def _write(run: RestoredRun | TrainedRun, output, clients, models) -> ExportedRun:
    """Writes the models of these clients, and the global model."""
    output, process, dataset, names = pathlib.Path(output), run.process, run.dataset, []
    saver = ModelSaver(process.evaluated_model or run.model, dataset.image_shape, dataset.x_dtype)
    output.mkdir(parents=True, exist_ok=True)

    def save(name, weights):
        saver.save(weights, output / name)
        names.append(name)

    if process.global_weights is not None:
        save("global", process.global_weights(run.server_state))
    clients = list(clients)
    with progress_bar(total=len(clients), desc="models", unit="client") as bar:
        for client, weights in zip(clients, models, strict=True):
            save(f"client_{folder_name(str(client))}", weights)
            bar.update()
    exported = ExportedRun(run.title, run.round_num, names)
    description = {
        **exported._asdict(),
        "input_shape": dataset.image_shape,
        "input_dtype": tree.map_structure(str, dataset.x_dtype),
        "num_classes": dataset.num_classes,
    }
    if dataset.class_names is not None:
        description["class_names"] = dataset.class_names.tolist()
    write_json(str(output / _DESCRIPTION), description)
    return exported


def folder_name(client: str) -> str:
    """Returns the name of a client as a part of a path, which has at most 255 bytes."""
    name = urllib.parse.quote(client, safe="")
    if len(name) <= _LONGEST_NAME:
        return name
    return f"{name[:_LONGEST_NAME]}-{hashlib.sha256(client.encode()).hexdigest()[:16]}"


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

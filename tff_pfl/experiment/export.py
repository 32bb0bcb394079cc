"""Exports the trained models of a run for programs without this library."""

import hashlib
import itertools
import os
import pathlib
import shutil
import urllib.parse
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, NamedTuple

import tree

from tff_pfl.arguments.kinds import check_kind
from tff_pfl.arguments.ranges import whole
from tff_pfl.data import FederatedDataset
from tff_pfl.evaluation import NewClientsEvaluation
from tff_pfl.experiment.experiment import check_labels
from tff_pfl.experiment.run_directory import OutputDirectoryError, check_writable
from tff_pfl.models import Model, ModelSaver, Weights
from tff_pfl.models.class_names import check_same_classes
from tff_pfl.output.files import write_json
from tff_pfl.output.progress import progress_bar

if TYPE_CHECKING:
    from tff_pfl.experiment.run import Restored, Run

_DESCRIPTION = "models.json"
_LONGEST_NAME = 200


class Exported(NamedTuple):
    """The exported models of a run.

    Attributes:
        run: The title of the experiment.
        round_num: The number of rounds done.
        models: The names of the models' folders.
    """

    run: str
    round_num: int
    models: list[str]


def check_folder(output: str | os.PathLike, overwrite: bool = False) -> None:
    """Checks that a folder can receive models, before they are made.

    Raises:
        OutputDirectoryError: It has models, and `overwrite` is not set; or other files; or it
            cannot be written.
    """
    folder = pathlib.Path(os.path.abspath(os.path.expanduser(output)))
    check_writable(folder / _DESCRIPTION if folder.exists() else folder)
    if (folder / _DESCRIPTION).exists():
        if not overwrite:
            raise OutputDirectoryError(
                f"{output} already contains models. Pass --overwrite to delete them (in Python, "
                "overwrite=True), or another folder."
            )
    elif folder.exists() and any(folder.iterdir()):
        raise OutputDirectoryError(f"{output} is not empty. Choose an empty or a new folder.")


def write_models(
    run: "Run", output, clients: Iterable[int | str] | None, overwrite: bool
) -> Exported:
    """Writes models of the clients of an experiment; see `Run.export`."""
    check_folder(output, overwrite)
    experiment = run.experiment
    everybody, num_members = experiment.dataset, experiment.members.num_clients
    ids = range(num_members) if clients is None else everybody.ids_of(clients)
    ids = sorted(dict.fromkeys(ids), key=lambda i: i >= num_members)
    members = [client_id for client_id in ids if client_id < num_members]
    with run.restored() as found:
        state = found.server_state
        own_model = experiment.process.evaluated_model
        models = _of(own_model, experiment.evaluator.models(state, found.source, members))
        if new := [client_id - num_members for client_id in ids[len(members) :]]:
            evaluation = experiment.new_clients_evaluation
            if evaluation is None:
                raise ValueError(
                    f"Client {everybody.partition.name_of(num_members + new[0])!r} was held out "
                    "and is not evaluated (new_clients.evaluated=False), so it has no model."
                )
            newcomers = evaluation.models(state, new)
            models = itertools.chain(models, _of(evaluation.model, newcomers))
        names = map(everybody.partition.name_of, ids)
        return _write(run, found, output, names, models)


def write_models_of_others(
    run: "Run",
    new_clients: FederatedDataset,
    output,
    fine_tune_epochs: int,
    seed: int,
    overwrite: bool,
) -> Exported:
    """Writes models of other clients than those of an experiment; see `Run.export_new_clients`."""
    whole(0).check("fine_tune_epochs", fine_tune_epochs)
    check_folder(output, overwrite)
    tip = "FederatedDataset.from_dataframe makes one of a table."
    check_kind("The data set of new clients", new_clients, FederatedDataset, tip)
    experiment = run.experiment
    if (names := new_clients.class_names) is not None:
        classes = experiment.dataset.class_names
        whose = f"the run {run.folder}"
        check_same_classes(() if classes is None else classes, whose, names, new_clients.name)
    check_labels(experiment.model, new_clients)
    trained = experiment.members.partition
    names = _new_names(new_clients, trained)
    with run.restored() as found:
        evaluation = NewClientsEvaluation(
            experiment.process,
            experiment.local,
            new_clients,
            experiment.evaluation,
            seed,
            epochs=fine_tune_epochs,
            first_id=trained.num_clients,
        )
        models = evaluation.models(found.server_state, range(new_clients.num_clients))
        return _write(run, found, output, names, _of(evaluation.model, models))


def _new_names(new_clients, trained) -> list[int | str]:
    """Returns the names of new clients, or the ids after those of the clients that trained."""
    if new_clients.names is None:
        return [trained.num_clients + row for row in range(new_clients.num_clients)]
    names, known = new_clients.names.tolist(), () if trained.names is None else trained.names
    if both := [name for name in names if name in known]:
        raise ValueError(
            f"Client {both[0]!r} trained in the run, so `export` writes its own model. Leave "
            "it out: dataset.of(dataset.ids_of(names)) has the clients of these names."
        )
    return names


def _of(model, weights) -> Iterator[tuple[Model, Weights]]:
    """Yields the model with each of its weights."""
    return ((model, one) for one in weights)


def _write(run: "Run", found: "Restored", output, clients, models) -> Exported:
    """Writes the models of these clients, with their weights, and the global model."""
    output, process, names = pathlib.Path(output).expanduser(), run.experiment.process, []
    dataset = run.experiment.dataset
    output.mkdir(parents=True, exist_ok=True)
    for old in output.glob("*/saved_model.pb"):  # of the export to overwrite
        shutil.rmtree(old.parent)
    (output / _DESCRIPTION).unlink(missing_ok=True)

    savers: dict[int, ModelSaver] = {}  # by the ids of models

    def save(name, model, weights):
        if id(model) not in savers:
            savers[id(model)] = ModelSaver(model, dataset.image_shape, dataset.x_dtype)
        savers[id(model)].save(weights, output / name)
        names.append(name)

    if process.global_weights is not None:
        save("global", process.global_model, process.global_weights(found.server_state))
    clients = list(clients)
    with progress_bar(total=len(clients), desc="models", unit="client") as bar:
        for client, (model, weights) in zip(clients, models, strict=True):
            save(f"client_{in_path(str(client))}", model, weights)
            bar.update()
    exported = Exported(run.experiment.title, found.round_num, names)
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


def in_path(client: str) -> str:
    """Returns the name of a client as a part of a path, which has at most 255 bytes."""
    name = urllib.parse.quote(client, safe="")
    if len(name) <= _LONGEST_NAME:
        return name
    return f"{name[:_LONGEST_NAME]}-{hashlib.sha256(client.encode()).hexdigest()[:16]}"

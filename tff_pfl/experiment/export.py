"""Exports the trained models of a run for programs without this library."""

import os
import pathlib
import urllib.parse
from collections.abc import Callable, Collection, Sequence
from typing import NamedTuple

import tree

from tff_pfl import models
from tff_pfl.experiment.interruption import exit_code_of
from tff_pfl.experiment.restored import restored_run
from tff_pfl.experiment.run_directory import OutputDirectoryError, check_empty_folder
from tff_pfl.files import write_json
from tff_pfl.progress import progress_bar

_DESCRIPTION = "models.json"


class ExportedRun(NamedTuple):
    """The exported models of a run.

    Attributes:
        run: The algorithm and the data set.
        round_num: The number of rounds done.
        models: The names of the models' folders.
    """

    run: str
    round_num: int
    models: Sequence[str]


def export_run(
    run_dir: str | os.PathLike,
    output: str | os.PathLike,
    client_ids: Sequence[int | str] | None = None,
    *,
    trust_imports: bool | Collection[str] = (),
) -> ExportedRun:
    """Writes each model of a run's last checkpoint as a SavedModel in its own folder.

    A client's own model is the model that the run evaluates as `personalized`, fine-tuned for
    `config.evaluation.fine_tune_epochs`. See `tff_pfl.models.ModelSaver` for how to load a model.

    Args:
        run_dir: The run's output directory; nothing in it is changed.
        output: A new or empty folder. It receives `client_ID` or `client_NAME` for each client,
            `global` if the algorithm has a global model, and `models.json` with the run, the round,
            and the shape and type of inputs. Special characters of a name are written as in URLs,
            `%2F` for a slash.
        client_ids: The names or ids of the clients whose models are written; `None`: all clients
            that train.
        trust_imports: See `config_of_run`.

    Raises:
        OutputDirectoryError: There is no run with a checkpoint, the run does not have a client of
            `client_ids`, or the output folder is not empty.
        ConfigError: The run's config is not a config of this version.
    """
    check_empty_folder(output)
    output = pathlib.Path(output)
    with restored_run(run_dir, trust_imports=trust_imports) as run:
        dataset, process = run.dataset, run.process
        client_ids = _checked_ids(client_ids, dataset.partition, run_dir)
        saver = models.ModelSaver(
            process.evaluated_model or run.model, dataset.image_shape, dataset.x_dtype
        )
        names = []

        def save(name, weights):
            saver.save(weights, output / name)
            names.append(name)

        if process.global_weights is not None:
            save("global", process.global_weights(run.server_state))
        at_a_time = run.config.evaluation.clients_per_call
        with progress_bar(total=len(client_ids), desc="models", unit="client") as bar:
            for start in range(0, len(client_ids), at_a_time):
                ids = client_ids[start : start + at_a_time]
                clients = run.source.clients_of_ids(ids)
                personal = process.personalize(run.server_state, clients)
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


def _checked_ids(client_ids, partition, run_dir) -> list[int]:
    if client_ids is None:
        return list(range(partition.num_clients))
    try:
        return list(dict.fromkeys(partition.ids_of(client_ids)))
    except IndexError as error:
        raise OutputDirectoryError(f"{os.fspath(run_dir)}: {error}") from error


def export_program(
    run_dir: str,
    output: str,
    *,
    client_ids: Sequence[int | str] | None = None,
    trust_imports: bool | Collection[str] = (),
    set_context: Callable[[], None] = lambda: None,
) -> int:
    """Writes the models of a run and prints how many there are.

    Args:
        run_dir: See `export_run`.
        output: See `export_run`.
        client_ids: See `export_run`.
        trust_imports: See `config_of_run`.
        set_context: See `evaluate_program`.

    Returns:
        The exit code, see `evaluate_program`.
    """

    def export():
        set_context()
        exported = export_run(run_dir, output, client_ids, trust_imports=trust_imports)
        print(f"{len(exported.models)} models of round {exported.round_num} of {exported.run}")
        print(f"results: {output}")

    return exit_code_of(export)

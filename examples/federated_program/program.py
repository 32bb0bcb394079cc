"""Trains Ditto on handwritten digits in a federated program, with a model for every client.

    python program.py --output_dir=DIR
    python program.py --output_dir=DIR --runtime=cpp
    python program.py --output_dir=DIR --runtime=remote --tff_worker=HOST:PORT

The program makes the context, the data sources and the managers; `program_logic.py` uses them. DIR
receives the metrics of rounds and of the evaluation, the model, and the program's state. After a
failure, the same command resumes. It refuses changed settings, except --rounds, and a second
process that writes to DIR at the same time.
"""

import asyncio

from absl import app, flags

from tff_pfl import config as configs
from tff_pfl.runtime.startup import prepare_process

prepare_process()

import evaluation  # noqa: E402
import program_logic  # noqa: E402
import tensorflow_federated as tff  # noqa: E402

import tff_pfl  # noqa: E402
from tff_pfl.drivers import CheckedStateManager  # noqa: E402
from tff_pfl.runtime import ProgramContext  # noqa: E402
from tff_pfl.runtime.flags import async_context_from_flags  # noqa: E402

_OUTPUT_DIR = flags.DEFINE_string("output_dir", None, "Directory of the program's results.")
_ROUNDS = flags.DEFINE_integer("rounds", 10, "Rounds, including those done.", lower_bound=1)
_CLIENTS = flags.DEFINE_integer("clients", 10, "Clients in the federation.", lower_bound=1)
_COHORT_SIZE = flags.DEFINE_integer("cohort_size", 5, "Clients in a round.", lower_bound=1)
_TABLES = ("train_metrics.csv", "evaluation_metrics.csv")
_FILES = ("program_state", "checksums.json", *_TABLES, "model")


def main(argv):
    if len(argv) > 1:
        raise app.UsageError(f"Unexpected arguments: {argv[1:]}")
    errors = [program_logic.TooFewRoundsError]
    return configs.exit_code_of(_run, errors=errors, advice=lambda: "the same command resumes")


def _run():
    config = tff_pfl.default_config("ditto")
    config.rounds = _ROUNDS.value
    config.data.num_clients = _CLIENTS.value
    config.clients_per_round = _COHORT_SIZE.value
    experiment = configs.experiment_of(config)
    dataset, process = experiment.dataset, experiment.process

    # Client states are in memory; the iterator saves them with the program's state.
    states = tff_pfl.ClientStateStore(process.initialize_clients, process.client_state_type)
    source = tff_pfl.CohortDataSource(
        dataset, states, process.client_type, seed=config.seed, capacity="cohort"
    )
    tff.framework.set_default_context(ProgramContext(async_context_from_flags()))
    where = {"path": _OUTPUT_DIR.value, "settings": experiment.settings}
    with tff_pfl.RunDirectory(**where, resume=True, files=_FILES) as directory:
        directory.write_settings()  # there may be more rounds now
        program_state_manager = tff.program.FileProgramStateManager(
            directory.file("program_state"), keep_total=2, keep_first=False
        )
        asyncio.run(
            program_logic.train_personalized_models(
                initialize=process.initialize,
                train=process.next,
                train_data_source=source,
                evaluation=evaluation.build_mean_accuracy(process),
                evaluation_data_source=evaluation.EvaluatedClients(source),
                total_rounds=config.rounds,
                cohort_size=config.clients_per_round,
                train_metrics_manager=_csv_file(directory, "train_metrics.csv"),
                evaluation_metrics_manager=_csv_file(directory, "evaluation_metrics.csv"),
                model_output_manager=tff.program.SavedModelFileReleaseManager(
                    directory.file("model"), prefix="after_round_"
                ),
                program_state_manager=CheckedStateManager(
                    program_state_manager, directory, _TABLES
                ),
            )
        )


def _csv_file(directory, name):
    """Returns a manager that replaces the whole file, so that no failure leaves half a line."""
    return tff.program.CSVFileReleaseManager(directory.file(name), tff.program.CSVSaveMode.WRITE)


if __name__ == "__main__":
    flags.mark_flags_as_required(["output_dir"])
    app.run(main)

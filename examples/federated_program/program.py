"""A federated program: Ditto on handwritten digits, with a model for every client.

    python program.py --output_dir=DIR
    python program.py --output_dir=DIR --runtime=cpp
    python program.py --output_dir=DIR --runtime=remote --tff_worker=HOST:PORT

The program makes the parts of the system, a context, data sources and managers; what is done with
them is the program logic of `program_logic.py`. DIR receives the metrics of rounds and of the
evaluation, the model, and the program's state, of which the same command goes on after a failure.
"""

import asyncio
import os
import sys

from absl import app, flags

from tff_pfl.runtime.startup import prepare_process

prepare_process()

import evaluation  # noqa: E402
import program_logic  # noqa: E402
import tensorflow_federated as tff  # noqa: E402

import tff_pfl  # noqa: E402
from tff_pfl.runtime import DeviceError, ProgramContext, WorkerDiedError  # noqa: E402
from tff_pfl.runtime.flags import async_context_from_flags  # noqa: E402

_OUTPUT_DIR = flags.DEFINE_string("output_dir", None, "Receives all that the program releases.")
_ROUNDS = flags.DEFINE_integer("rounds", 10, "Rounds in all.", lower_bound=0)
_CLIENTS = flags.DEFINE_integer("clients", 10, "Clients of the federation.", lower_bound=1)
_COHORT_SIZE = flags.DEFINE_integer("cohort_size", 5, "Clients of a round.", lower_bound=1)


def main(argv):
    if len(argv) > 1:
        raise app.UsageError(f"Unexpected arguments: {argv[1:]}")
    config = tff_pfl.default_config("ditto")
    config.data.num_clients = _CLIENTS.value
    config.clients_per_round = _COHORT_SIZE.value
    dataset = tff_pfl.experiment.build_dataset(config)
    model = tff_pfl.experiment.build_model(config, dataset)
    process = tff_pfl.experiment.build_process(config, model, dataset)

    # In memory: the states of clients are saved with the program's state, by the iterator.
    states = tff_pfl.ClientStateStore(process.initialize_clients, process.client_state_type)
    source = tff_pfl.CohortDataSource(
        dataset, states, process.client_type, seed=config.seed, capacity="cohort"
    )
    try:
        context = ProgramContext(async_context_from_flags())
    except (DeviceError, WorkerDiedError) as error:
        sys.exit(f"error: {error}")
    tff.framework.set_default_context(context)
    asyncio.run(
        program_logic.train_personalized_models(
            initialize=process.initialize,
            train=process.next,
            train_data_source=source,
            evaluation=evaluation.build_mean_accuracy(process, model),
            evaluation_data_source=evaluation.EvaluatedClients(source),
            total_rounds=_ROUNDS.value,
            cohort_size=_COHORT_SIZE.value,
            train_metrics_manager=_csv_file("train_metrics.csv"),
            evaluation_metrics_manager=_csv_file("evaluation_metrics.csv"),
            model_output_manager=tff.program.SavedModelFileReleaseManager(
                os.path.join(_OUTPUT_DIR.value, "model"), prefix="after_round_"
            ),
            program_state_manager=tff.program.FileProgramStateManager(
                os.path.join(_OUTPUT_DIR.value, "program_state"), keep_total=2, keep_first=False
            ),
        )
    )


def _csv_file(name):
    """In write mode, files are replaced as a whole: no failure leaves a part of a line."""
    path = os.path.join(_OUTPUT_DIR.value, name)
    return tff.program.CSVFileReleaseManager(path, tff.program.CSVSaveMode.WRITE)


if __name__ == "__main__":
    flags.mark_flags_as_required(["output_dir"])
    app.run(main)

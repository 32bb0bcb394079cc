"""A federated program of `tff.learning`: FedAvg of this library on handwritten digits.

    python fedavg_program.py --output_dir=DIR [--runtime=cpp]

The logic is `tff.learning.programs.train_model`, the context `tff.program.NativeFederatedContext`,
both as TFF has them. Clients keep nothing in FedAvg, so that a view without them suits both. DIR
receives metrics, the model and the program's state, of which the same command goes on after a
failure. A failure while the model is evaluated, after the last round, is the exception: TFF refuses
to begin an evaluation twice.
"""

import asyncio
import datetime

from absl import app, flags

from tff_pfl.runtime.startup import prepare_process

prepare_process()

import tensorflow_federated as tff  # noqa: E402

import tff_pfl  # noqa: E402
from tff_pfl import experiment  # noqa: E402
from tff_pfl.clients import ExamplesDataSource  # noqa: E402
from tff_pfl.evaluation import compose_global_evaluation  # noqa: E402
from tff_pfl.runtime.flags import async_context_from_flags  # noqa: E402

_OUTPUT_DIR = flags.DEFINE_string("output_dir", None, "Receives all that the program releases.")
_ROUNDS = flags.DEFINE_integer("rounds", 10, "Rounds in all.", lower_bound=1)
_CLIENTS = flags.DEFINE_integer("clients", 10, "Clients of the federation.", lower_bound=1)
_COHORT_SIZE = flags.DEFINE_integer("cohort_size", 5, "Clients of a round.", lower_bound=1)
_FILES = ("program_state", "eval_manager", "evaluation_metrics.csv", "model")


def main(argv):
    if len(argv) > 1:
        raise app.UsageError(f"Unexpected arguments: {argv[1:]}")
    return experiment.exit_code_of(_run, advice=lambda: "the same command goes on")


def _run():
    config = tff_pfl.default_config("fedavg")
    config.rounds = _ROUNDS.value
    config.data.num_clients = _CLIENTS.value
    config.clients_per_round = _COHORT_SIZE.value
    dataset = experiment.build_dataset(config)
    model = experiment.build_model(config, dataset)
    process = experiment.build_process(config, model, dataset)

    # TFF's context takes sequences at clients, no structures such as `Examples`.
    states = tff_pfl.ClientStateStore(process.initialize_clients, process.client_state_type)
    source = tff_pfl.CohortDataSource(dataset, states, process.client_type, seed=config.seed)
    train_source = ExamplesDataSource(source, "train", as_sequences=True)
    data_type = train_source.federated_type.member
    process = tff_pfl.compose_with_sequence_data(
        process, data_type.element, capacity=max(dataset.sizes("train"))
    )
    evaluation = compose_global_evaluation(model, data_type)

    context = tff.program.NativeFederatedContext(async_context_from_flags())
    tff.framework.set_default_context(context)
    settings = experiment.resolved(config)
    with tff_pfl.RunDirectory(_OUTPUT_DIR.value, settings, resume=True, files=_FILES) as directory:
        directory.write_settings()  # there may be more rounds now
        asyncio.run(
            tff.learning.programs.train_model(
                train_process=tff_pfl.compose_stateless_view(process),
                train_data_source=train_source,
                train_per_round_clients=config.clients_per_round,
                train_total_rounds=config.rounds,
                program_state_manager=_state_manager(directory, "program_state"),
                model_output_manager=tff.program.SavedModelFileReleaseManager(
                    directory.file("model")
                ),
                train_metrics_manager=tff.program.LoggingReleaseManager(),
                evaluation_manager=tff.learning.programs.EvaluationManager(
                    data_source=ExamplesDataSource(source, "test", as_sequences=True),
                    aggregated_metrics_manager=tff.program.CSVFileReleaseManager(
                        directory.file("evaluation_metrics.csv"), tff.program.CSVSaveMode.WRITE
                    ),
                    create_state_manager_fn=lambda name: _state_manager(directory, name),
                    create_process_fn=lambda name: (evaluation, None),
                    cohort_size=_CLIENTS.value,
                    duration=datetime.timedelta(0),
                ),
                evaluation_periodicity=config.rounds,
            )
        )


def _state_manager(directory, name):
    """Keeps all: states are saved side by side, and two savers would remove the same old one."""
    return tff.program.FileProgramStateManager(directory.file(name), keep_total=0)


if __name__ == "__main__":
    flags.mark_flags_as_required(["output_dir"])
    app.run(main)

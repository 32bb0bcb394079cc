"""Trains FedAvg of this library in a federated program of `tff.learning`, on handwritten digits.

    python fedavg_program.py --output_dir=DIR [--runtime=cpp]

The program logic is `tff.learning.programs.train_model` and the context is
`tff.program.NativeFederatedContext`, both unchanged. FedAvg's clients keep nothing, so both take
its process through `compose_stateless_view`. DIR receives metrics, the model and the program's
state. After a failure, the same command resumes, unless the program failed in the evaluation after
the last round: TFF refuses to start an evaluation twice.
"""

import asyncio
import datetime

from absl import app, flags

from tff_pfl import config as configs
from tff_pfl.runtime.startup import prepare_process

prepare_process()

import tensorflow_federated as tff  # noqa: E402

import tff_pfl  # noqa: E402
from tff_pfl.deployment import compose_global_evaluation  # noqa: E402
from tff_pfl.drivers import ExamplesDataSource  # noqa: E402
from tff_pfl.runtime.flags import async_context_from_flags  # noqa: E402

_OUTPUT_DIR = flags.DEFINE_string("output_dir", None, "Directory of the program's results.")
_ROUNDS = flags.DEFINE_integer("rounds", 10, "Rounds, including those done.", lower_bound=1)
_CLIENTS = flags.DEFINE_integer("clients", 10, "Clients in the federation.", lower_bound=1)
_COHORT_SIZE = flags.DEFINE_integer("cohort_size", 5, "Clients in a round.", lower_bound=1)
_FILES = ("program_state", "eval_manager", "evaluation_metrics.csv", "model")


def main(argv):
    if len(argv) > 1:
        raise app.UsageError(f"Unexpected arguments: {argv[1:]}")
    return configs.exit_code_of(_run, advice=lambda: "the same command resumes")


def _run():
    config = tff_pfl.default_config("fedavg")
    config.rounds = _ROUNDS.value
    config.data.num_clients = _CLIENTS.value
    config.clients_per_round = _COHORT_SIZE.value
    experiment = configs.experiment_of(config)
    dataset, process = experiment.dataset, experiment.process

    # TFF's context takes sequences at clients, but not structures such as `Examples`.
    states = tff_pfl.ClientStateStore(process.initialize_clients, process.client_state_type)
    source = tff_pfl.CohortDataSource(dataset, states, process.client_type, seed=config.seed)
    train_source = ExamplesDataSource(source, "train", as_sequences=True)
    data_type = train_source.federated_type.member
    process = tff_pfl.compose_with_sequence_data(
        process, data_type.element, capacity=max(dataset.sizes("train"))
    )
    evaluation = compose_global_evaluation(experiment.model, data_type)

    context = tff.program.NativeFederatedContext(async_context_from_flags())
    tff.framework.set_default_context(context)
    where = {"path": _OUTPUT_DIR.value, "settings": experiment.settings}
    with tff_pfl.RunDirectory(**where, resume=True, files=_FILES) as directory:
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
    """Returns a manager that keeps all states: two saves at once would remove the same old one."""
    return tff.program.FileProgramStateManager(directory.file(name), keep_total=0)


if __name__ == "__main__":
    flags.mark_flags_as_required(["output_dir"])
    app.run(main)

"""What `programs/train.py` does between its flags and its exit code."""

import sys

import ml_collections

from tff_pfl import clients, data, models, runtime
from tff_pfl.training import config as configs
from tff_pfl.training.loop import train
from tff_pfl.training.run_directory import OutputDirectoryError, RunDirectory, resolved
from tff_pfl.training.summary import read_summary, table, write_summary

# What a user can mend: shown as one message, without a traceback.
_USER_ERRORS = (
    clients.CorruptStateError,
    clients.ForeignStateError,
    clients.StateStoreError,
    configs.ConfigError,
    data.DataNotFoundError,
    data.ExamplesError,
    data.PartitionError,
    data.PartitionFileError,
    models.KerasModelError,
    OutputDirectoryError,
)


def run_program(
    config: ml_collections.ConfigDict,
    output_dir: str,
    *,
    resume: bool = False,
    overwrite: bool = False,
) -> int:
    """Trains and evaluates what a config describes; prints the result and where its files lie.

    A finished run that is resumed is only printed again.

    Args:
        config: See `default_config`.
        output_dir: See `RunDirectory`.
        resume: Whether to go on with the run there.
        overwrite: Whether to delete the run there first.

    Returns:
        The exit code of the program: 0, 1 after an error that the user can mend, 130 after Ctrl-C.
    """
    try:
        configs.check_config(config)
        directory = RunDirectory(output_dir, resolved(config), resume=resume, overwrite=overwrite)
        summary = read_summary(directory)
        if summary is None or summary["final"]["round_num"] < config.rounds:
            summary = _run(config, directory)
    except _USER_ERRORS as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print(f"\ninterrupted; --resume goes on with the run in {output_dir}", file=sys.stderr)
        return 130
    print(f"\n{table(summary)}\n\nresults: {directory.path}")
    for name in directory.FILES:
        print(f"  {name}")
    return 0


def _run(config, directory):
    runtime.set_cpp_context()
    dataset = configs.build_dataset(config)
    model = configs.build_model(config, dataset)
    process = configs.build_process(config, model, dataset)
    title = f"{config.algorithm.name} on {config.data.name}"
    result = train(
        process,
        model,
        dataset,
        directory,
        rounds=config.rounds,
        clients_per_round=config.clients_per_round,
        seed=config.seed,
        evaluate_every=config.evaluation.every,
        split=config.evaluation.split,
        clients_per_call=config.evaluation.clients_per_call,
        checkpoint_every=config.checkpoint_every,
        title=title,
    )
    return write_summary(directory, result, title)

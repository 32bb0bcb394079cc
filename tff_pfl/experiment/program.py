"""Runs `programs/train.py` between its flags and its exit code."""

import math
import os
import sys
from collections.abc import Callable

import ml_collections
import numpy as np
import tensorflow_federated as tff

from tff_pfl import models, runtime
from tff_pfl.clients.padding import shared_capacity
from tff_pfl.data import FederatedDataset
from tff_pfl.experiment import config as configs
from tff_pfl.experiment.interruption import exit_code_of
from tff_pfl.experiment.loop import train
from tff_pfl.experiment.memory import check_server_memory
from tff_pfl.experiment.run_directory import OF_RESULTS, RunDirectory, resolved
from tff_pfl.experiment.summary import finished_summary, read_summary, table

# From cohorts of about this size on, a CPU is faster at all clients at once, padded, than in turn.
_MANY_CLIENTS = 32
# Padding pays on two cores up to: examples times weights in a step; padded rows over own rows.
_SMALL_STEP, _MOST_ROWS = 250_000, 2.0


def run_program(
    config: ml_collections.ConfigDict,
    output_dir: str,
    *,
    resume: bool = False,
    overwrite: bool = False,
    set_context: Callable[[], None] = runtime.set_graph_context,
    restart: Callable[[bool], None] = lambda resume: None,
) -> int:
    """Trains and evaluates what a config describes; prints the result and where its files lie.

    A finished run that is resumed is only printed again.

    Args:
        config: See `default_config`.
        output_dir: See `RunDirectory`.
        resume: Whether to go on with the run there.
        overwrite: Whether to delete the run there first.
        set_context: Sets the context in which TFF computations are executed.
        restart: Called where a worker of the runtime was lost; it may start the program anew. Its
            argument is whether the run can be resumed: not while the run that it was to overwrite
            is still there.

    Returns:
        The exit code of the program: 0, 1 after an error that the user can fix, `os.EX_TEMPFAIL`,
        75, where a worker of the runtime was lost, 130 after Ctrl-C, 143 after SIGTERM.
    """
    directory = None

    def work():
        nonlocal directory
        configs.complete(config)
        configs.check_config(config)
        directory = RunDirectory(output_dir, resolved(config), resume=resume, overwrite=overwrite)
        configs.check_same_promise(config, directory.changes)
        summary = None if overwrite else finished_summary(directory.path, config.rounds)
        is_over = summary is not None and summary.final.round_num <= config.rounds
        if not is_over:
            try:
                set_context()
                devices = ", ".join(runtime.current_devices() or ["the CPU"])
                print(f"clients are computed on {devices}")
                _run(config, directory)
            except runtime.WorkerDiedError as error:
                print(f"error: {error}\n{_advice(directory, output_dir)}", file=sys.stderr)
                return os.EX_TEMPFAIL
            summary = read_summary(directory.path)
        print(f"\n{table(summary)}\n\nresults: {directory.path}")
        for name in filter(directory.has, directory.FILES):
            print(f"  {name}")
        ignored = [change for change in directory.changes if change.startswith(OF_RESULTS)]
        if is_over and ignored:
            print(
                "note: the run was over already, and its results do not follow these changes:\n  "
                + "\n  ".join(ignored)
                + f"\nprograms/evaluate.py --run_dir={directory.path} evaluates it anew.",
                file=sys.stderr,
            )

    code = exit_code_of(work, advice=lambda: _advice(directory, output_dir))
    if code == os.EX_TEMPFAIL:
        restart(directory.resumes)
    return code


def _advice(directory, output_dir) -> str:
    if directory is None or directory.resumes:
        return f"--resume goes on with the run in {output_dir}"
    return f"nothing was begun, and the run in {output_dir} is as it was"


def _run(config, directory):
    dataset, new_clients = configs.hold_out(config, configs.build_dataset(config))
    model = configs.build_model(config, dataset)
    process = configs.build_process(config, model, dataset)
    capacity = suitable_capacity(model, dataset, config.clients_per_round, config.local.batch_size)
    early_stop = configs.build_early_stop(config, process, model, dataset)
    evaluate_new_clients = configs.build_new_clients_evaluation(
        config, process, model, new_clients, capacity
    )
    check_server_memory(process)  # before the run to overwrite is deleted
    with directory:
        train(
            process,
            model,
            dataset,
            directory,
            rounds=config.rounds,
            clients_per_round=config.clients_per_round,
            seed=config.seed,
            evaluate_every=config.evaluation.every,
            evaluate=configs.evaluation_options(config),
            checkpoint_every=config.checkpoint_every,
            participation=configs.participation(config),
            early_stop=early_stop,
            privacy=configs.privacy_loss(config, dataset.num_clients),
            evaluate_new_clients=evaluate_new_clients,
            capacity=capacity,
            title=f"{config.algorithm.name} on {config.data.name}",
        )


def suitable_capacity(
    model: models.Model, dataset: FederatedDataset, clients_at_a_time: int, batch_size: int
) -> str | None:
    """Returns the `CohortDataSource.capacity` for the devices: "cohort" where padding pays.

    On CPUs, clients are computed faster one by one, each with its own rows, unless there are many,
    their steps are small, and padding does not double their rows. Clients of equal sizes are
    computed at once without padding. `benchmarks/benchmark.py --unequal` measures it.

    Args:
        model: The model that clients train.
        dataset: The federation, whose sizes count.
        clients_at_a_time: Clients that are computed together.
        batch_size: Examples a step.
    """
    devices = runtime.current_devices()
    if devices is None:
        return None
    if any(map(runtime.is_gpu, devices)):
        return "cohort"
    sizes = dataset.sizes()
    if clients_at_a_time < _MANY_CLIENTS or not sizes.any():
        return None
    weights = tff.structure.flatten(model.weights_type)
    convolves = any(len(weight.shape) > 2 for weight in weights)
    step = min(batch_size, sizes.mean()) * model.num_weights
    largest = np.quantile(sizes, 1 - 1 / clients_at_a_time)  # of a cohort, typically
    rows = shared_capacity([math.ceil(largest)]) / sizes.mean()
    pays = not convolves and step <= _SMALL_STEP and rows <= _MOST_ROWS
    return "cohort" if pays else None

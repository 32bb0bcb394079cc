"""Measures single parts of a round, and the time that programs take to start."""

import dataclasses
import functools
import pathlib
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from benchmarks.timing import in_new_processes, in_turns, ratio, spread
from benchmarks.workloads import RUNTIMES, SEED, Workload, cohort_of, installed
from tff_pfl import algorithms, runtime
from tff_pfl.aggregators import Stack
from tff_pfl.algorithms.pgfed.server import PGFedServer, Risk
from tff_pfl.compression import COMPRESSORS, compressed
from tff_pfl.numerics.min_norm import min_norm_weights
from tff_pfl.templates import AGGREGATORS, Algorithm, compose, with_aggregator

_ROOT = pathlib.Path(__file__).parents[1]
_IMPORT = [sys.executable, "-c", "import tensorflow, tensorflow_federated"]
# FedPG: every client takes part once in this number of rounds, so the quadratic program has as many
# columns for each client online.
_TURNS = 7
_PGFED = {"mu": 0.1, "alpha_learning_rate": 0.01}


def aggregators(workload: Workload, rounds: int) -> Iterator[dict[str, Any]]:
    """Yields a record of a round of FedAvg with each aggregator and compressor.

    Records compare the round with the plain mean. Every round starts from the same state. The times
    do not include building and tracing.

    Args:
        workload: The model and the data. Aggregators with noise need more than 10 clients.
        rounds: The number of measured rounds of each kind.
    """
    fedavg = algorithms.make("fedavg", workload.model(), workload.training())
    sent = {}

    def run_of(name, algorithm):
        process = compose(algorithm, workload.examples_type(), SEED)
        state, cohort = process.initialize(), cohort_of(process, *workload.data())

        def run():
            output = process.next(state, cohort)
            tf.nest.map_structure(np.asarray, output.state)
            sent[name] = int(output.metrics["bytes_up_per_client"])

        return run

    with installed(runtime.create_graph_context()):
        changed = _changed(fedavg, workload.clients)
        runs = {name: run_of(name, algorithm) for name, algorithm in changed.items()}
        seconds = in_turns("aggregators", runs, rounds=rounds)
    spreads = {name: spread(values) for name, values in seconds.items()}
    for name, round_spread in spreads.items():
        yield {
            "aggregator": name,
            "network": workload.network,
            "clients": workload.clients,
            "bytes_up_per_client": sent[name],
            "seconds_per_round": round_spread,
            "times_mean": ratio(round_spread, spreads["mean"]),
        }


def _changed(fedavg: Algorithm, clients: int) -> dict[str, Algorithm]:
    """Returns FedAvg with each aggregator and with each compressor."""
    changed = {"mean": fedavg}
    for name in AGGREGATORS:
        options = {"clients_per_round": clients, "noise_multiplier": 0.5}
        known = AGGREGATORS.parameters(name)
        options = {key: value for key, value in options.items() if key in known}
        changed[name] = with_aggregator(fedavg, AGGREGATORS[name](**options))
    for name in COMPRESSORS:
        for suffix, feedback in (("", False), (", fed back", True)):
            compressor = COMPRESSORS[name]()
            changed[name + suffix] = compressed(fedavg, compressor, error_feedback=feedback)
    return changed


def descent(
    name: str, workload: Workload, cohort_sizes: Sequence[int], rounds: int
) -> Iterator[dict[str, Any]]:
    """Yields a record of a round of FedPG, and of its quadratic program, for each size of cohort.

    Each size is measured in a new process, once the server has the gradients of all clients.

    Args:
        name: The name of the workload.
        workload: The model and the data. Its number of clients is not used.
        cohort_sizes: The numbers of clients online. The server remembers the gradients of seven
            times as many clients.
        rounds: The number of measured rounds.
    """
    measure = functools.partial(_descent, workload, rounds=rounds)
    for record in in_new_processes(measure, cohort_sizes, f"fedpg {name}"):
        yield {"fedpg": name, **record}


def _descent(workload: Workload, cohort_size: int, rounds: int) -> dict[str, Any]:
    with installed(RUNTIMES["graph_loop"]()):
        population = _TURNS * cohort_size
        process = workload.process("fedpg", memory_size=population)
        clients = cohort_of(process, *dataclasses.replace(workload, clients=population).data())
        state, first = process.initialize(), 0

        def one_round():
            nonlocal state, first
            state = process.next(state, clients[first : first + cohort_size]).state
            first = (first + cohort_size) % population

        seconds = in_turns("rounds", {"round": one_round}, rounds=rounds, warmup=_TURNS + 1)
        gram = np.asarray(state.algorithm.memory.gram)
        norms = np.sqrt(np.diag(gram))
        gram = tf.constant(gram / np.outer(norms, norms))
        solve = tf.function(min_norm_weights)
        run = {"program": lambda: solve(gram).numpy()}
        seconds |= in_turns("programs", run, rounds=max(rounds, 5))
        used = int(np.sum(solve(gram).numpy() > 0))
    round_spread, solver_spread = spread(seconds["round"]), spread(seconds["program"])
    return {
        "clients_online": cohort_size,
        "columns": population,
        "columns_used": used,
        "examples_per_client": workload.examples_per_client,
        "seconds_per_round": round_spread,
        "seconds_of_quadratic_program": solver_spread,
        "share_of_round": ratio(solver_spread, round_spread, 5),
    }


def pgfed_server(
    workload: Workload, rounds: int, population: int = 1000
) -> Iterator[dict[str, Any]]:
    """Yields a record of a round of PGFed and of the server's work in it, in seconds.

    Args:
        workload: The model and the data. Its clients are the cohort.
        rounds: The number of measured rounds, after a first round without a last cohort.
        population: The number of clients in the federation.
    """
    cohort_size = workload.clients
    with installed(RUNTIMES["graph_loop"]()):
        process = workload.process("pgfed", num_clients=population, **_PGFED)
        clients = cohort_of(process, *workload.data())
        state, rng = process.initialize(), np.random.default_rng(SEED)

        def one_round():
            nonlocal state
            ids = np.sort(rng.choice(population, cohort_size, replace=False)).astype(np.int32)
            cohort = [c._replace(client_id=i) for c, i in zip(clients, ids, strict=True)]
            state = process.next(state, cohort).state

        seconds = in_turns("rounds", {"round": one_round}, rounds=rounds)
    run = {"server": _server_of_pgfed(state.algorithm, population, cohort_size)}
    seconds |= in_turns("server", run, rounds=max(rounds, 5))
    round_spread, server_spread = spread(seconds["round"]), spread(seconds["server"])
    yield {
        "pgfed_server": f"{population} clients",
        "clients_online": cohort_size,
        "num_weights": workload.model().num_weights,
        "seconds_per_round": round_spread,
        "seconds_of_server": server_spread,
        "share_of_round": ratio(server_spread, round_spread, 4),
    }


def _server_of_pgfed(state, population, cohort_size):
    """Returns a function that does the server's work: all messages and the new state."""
    server = PGFedServer(population, cohort_size, cohort_size, *_PGFED.values())
    state = tf.nest.map_structure(tf.constant, state)
    last, pairs = state.last, tf.ones([cohort_size, cohort_size])
    risk = Risk(last.client_ids, last.gradients, last.intercepts, pairs)
    uploads = {"change": state.weights, "risk": Stack(risk, tf.ones([cohort_size]))}

    @tf.function
    def work(state, uploads):
        own = [server.own(state, client_id) for client_id in tf.unstack(last.client_ids)]
        return server.shared(state), own, server.finalize(state, uploads, tf.constant(1))

    return lambda: work(state, uploads)


def start(names: Sequence[str], rounds: int) -> Iterator[dict[str, Any]]:
    """Yields a record of the start of programs: help texts, refusals, and each algorithm.

    A record's `seconds` are those of whole processes. Before each process, another one imports
    TensorFlow and TFF alone; `beyond_import` is the median of the difference in seconds.

    Args:
        names: Names of algorithms. Each is trained for a round on handwritten digits, with all
            files of a run.
        rounds: The number of processes of each kind.

    Raises:
        RuntimeError: A process ended with an unexpected exit code.
    """
    digits = f"--config={_ROOT / 'configs' / 'digits.py'}"
    config = f"{digits}:{names[0]}"
    starts = {
        "train --help": (["train.py", "--help"], 1),
        "report --help": (["report.py", "--help"], 0),
        "a refused flag": (["train.py", config, "--restarts=-1"], 1),
        "a refused key of a config": (["train.py", config, "--config.round=1"], 1),
        "a refused option of an algorithm": (["train.py", config, "--config.algorithm.no=1"], 1),
    }
    starts |= {name: (["train.py", f"{digits}:{name}", "--config.rounds=1"], 0) for name in names}
    for name, ((program, *arguments), code) in starts.items():
        command = [sys.executable, str(_ROOT / "programs" / program), *arguments]
        runs = {
            "import": lambda: ended_with(0, _IMPORT),
            "whole": lambda code=code, command=command: _in_a_folder(code, command),
        }
        seconds = in_turns(name, runs, rounds=rounds, warmup=0)
        pairs = zip(seconds["whole"], seconds["import"], strict=True)
        yield {
            "start": name,
            "seconds": spread(seconds["whole"]),
            "beyond_import": round(statistics.median(whole - part for whole, part in pairs), 3),
            "repetitions": rounds,
        }


def _in_a_folder(code, command):
    with tempfile.TemporaryDirectory(prefix="benchmark_") as folder:
        output = [] if "--help" in command else [f"--output_dir={folder}/run"]
        ended_with(code, [*command, *output])


def ended_with(code: int, command: Sequence[str]) -> None:
    """Runs a command; raises RuntimeError if its exit code is not `code`."""
    ended = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True)
    if ended.returncode != code:
        raise RuntimeError(
            f"{' '.join(command)} ended with {ended.returncode}, not {code}:\n{ended.stderr}"
        )

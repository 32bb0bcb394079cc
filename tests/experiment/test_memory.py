"""Tests the growth of server states with clients, and that too large ones are refused."""

import numpy as np
import pytest
import tensorflow as tf

from tests.marks import slow
from tests.runs import run_python
from tff_pfl import testing
from tff_pfl.algorithms import ALGORITHMS, make
from tff_pfl.experiment import memory
from tff_pfl.templates import compose

MODEL = testing.tiny_model()
n = MODEL.num_weights
# The bytes of the server's state with N clients, without the model, as in the runtime's guide. The
# states of the library's other methods do not grow with clients.
OF_CLIENTS = {
    "apple": lambda N: 4 * N * (n + 1),
    "cfl": lambda N: 4 * N,
    "fedamp": lambda N: 4 * N * (n + N),
    "fedcac": lambda N: 5 * N * n,
    "fedfomo": lambda N: N * (4 * n + 4 * N + 1),
    "floco": lambda N: N * (4 * 10 * (5 * 3 + 3 + 1) + 2),
    "heur_fedamp": lambda N: 4 * N * (n + N),
}
OPTIONS = {"pfedme": {"lambda_": 1.0}}  # suits the learning rate of the tiny federation
# Their embeddings have 1 + N // 4 numbers.
HYPERNETWORKS = ("pfedhn", "pfedhn_pc", "plgu_ghn")


def algorithm_for(name, num_clients, **options):
    model = testing.tiny_normalized_model() if name == "fedbn" else MODEL
    options |= {"num_clients": num_clients, "clients_per_round": 5}
    return make(name, model, testing.tiny_local(), **options)


def state_bytes(name, num_clients, **options):
    """Returns the bytes of the initial server state, in which axes of the cohort are empty."""
    algorithm = algorithm_for(name, num_clients, **options)
    specs = tf.function(lambda: algorithm.server_init(0)).get_concrete_function()
    return sum(
        spec.dtype.size * int(np.prod([length or 0 for length in spec.shape]))
        for spec in tf.nest.flatten(specs.structured_outputs)
    )


@pytest.mark.thorough
@pytest.mark.parametrize(
    "name",
    [x if x in ("fedavg", *OF_CLIENTS) else slow(x) for x in ALGORITHMS if x not in HYPERNETWORKS],
)
def test_server_state_grows_with_clients_as_documented(name):
    of_clients = OF_CLIENTS.get(name, lambda N: 0)
    few, many = (state_bytes(name, N, **OPTIONS.get(name, {})) for N in (10, 1000))
    assert many - few == of_clients(1000) - of_clients(10)


@pytest.mark.slow
@pytest.mark.parametrize("name", HYPERNETWORKS)
def test_embeddings_grow_quadratically_unless_their_length_is_given(name):
    few, many = (state_bytes(name, N) for N in (10, 1000))
    assert many - few >= 4 * 1000 * 251 - 4 * 10 * 3
    few, many = (state_bytes(name, N, embedding_dim=8) for N in (10, 1000))
    assert (many - few) % (4 * 990 * 8) == 0 and (many - few) // (4 * 990 * 8) in (1, 2)


@pytest.mark.thorough
def test_limit_counts_all_copies():
    process = compose(algorithm_for("fedamp", 100), testing.EXAMPLES_TYPE)
    size = OF_CLIENTS["fedamp"](100) + 4  # 4 bytes for the number of the round
    memory.check_server_memory(process, 5 * size)
    message = r"state takes 0.00 GiB \(algorithm/.*needs 5 copies or more, but .* has 0.00 GiB of"
    with pytest.raises(MemoryError, match=message):
        memory.check_server_memory(process, 5 * size - 1)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["fedamp", "fedfomo"])
def test_run_holds_at_least_the_assumed_copies(name):
    done = run_python("-m", "tests.experiment.server_memory", name, 6000)
    assert done.returncode == 0, done.stderr
    assert float(done.stdout.split()[-1]) > memory.COPIES


def test_limit_of_a_container_counts(monkeypatch, tmp_path):
    limit, machine = tmp_path / "memory.max", memory.memory_of_machine()
    monkeypatch.setattr(memory, "_LIMITS", (str(tmp_path / "none"), str(limit)))
    for content, expected in {"1048576\n": 2**20, "max\n": machine, "9" * 20: machine}.items():
        limit.write_text(content)
        assert memory.memory_of_machine() == expected

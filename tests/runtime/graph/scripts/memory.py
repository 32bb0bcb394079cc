"""Prints, every ten rounds, the round, resident megabytes and the number of TensorFlow functions.

python -m tests.runtime.graph.scripts.memory 500
"""

import ctypes
import gc
import os
import sys

from tff_pfl.runtime.startup import prepare_process

prepare_process()

# ruff: noqa: E402
import numpy as np
from tensorflow.python.eager import context as eager_context

from tests.federation import EXAMPLES_TYPE, IMAGE_SHAPE, NUM_CLASSES, local_sgd, random_examples
from tff_pfl import models
from tff_pfl.algorithms import build_fedavg
from tff_pfl.runtime import set_graph_context
from tff_pfl.templates import Client

EVERY = 10
MAX_COHORT = 40
CAPACITIES = (8, 12, 20)
# The model has 160 kB, so that leaks in every round become visible.
MODEL = models.build("mlp", IMAGE_SHAPE, NUM_CLASSES, hidden=(2000,))


def resident_megabytes() -> float:
    with open("/proc/self/statm") as statm:
        return int(statm.read().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 1e6


def rounds(number):
    """Runs rounds with cohorts that differ in size and capacity; some have no capacity."""
    process = build_fedavg(MODEL, EXAMPLES_TYPE, local_sgd(epochs=1), personalized="local")
    rng = np.random.default_rng(0)
    clients = [process.initialize_client(i) for i in range(MAX_COHORT)]

    def client(i, capacity, is_padded):
        rows = capacity if is_padded else int(rng.integers(1, capacity + 1))
        examples = random_examples(rows, seed=i)
        examples = examples._replace(size=np.int32(rng.integers(1, rows + 1)))
        return Client(np.int32(i), clients[i], examples)

    def next_state(state, round_num):
        capacity, size = rng.choice(CAPACITIES), rng.integers(1, MAX_COHORT + 1)
        if round_num < 10:  # the largest cohort's memory is allocated early
            capacity, size = max(CAPACITIES), MAX_COHORT
        ids = rng.permutation(MAX_COHORT)[:size].tolist()
        cohort = [client(i, int(capacity), is_padded=round_num % 3 > 0) for i in ids]
        state, states, _ = process.next(state, cohort)
        for i, kept in zip(ids, states, strict=True):
            clients[i] = kept
        return state

    state = process.initialize()
    for round_num in range(number):
        state = next_state(state, round_num)
        yield


def main(number):
    set_graph_context(devices=["CPU:0"])
    for done, _ in enumerate(rounds(int(number)), start=1):
        if done % EVERY == 0:
            gc.collect()  # graphs are reference cycles
            ctypes.CDLL(None).malloc_trim(0)
            num_functions = len(eager_context.context().list_function_names())
            print(done, resident_megabytes(), num_functions)


if __name__ == "__main__":
    main(*sys.argv[1:])

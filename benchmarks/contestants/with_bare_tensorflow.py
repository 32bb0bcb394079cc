"""Runs rounds of `bare_tensorflow` from `benchmark.py`, with the same clients each time.

These are the first clients, or, of unequal clients, those at even distances in the order of sizes.
"""

import common

from tff_pfl.runtime.startup import prepare_process

prepare_process()

import dataclasses

import numpy as np

from benchmarks.contenders import bare_tensorflow
from benchmarks.workloads import UNEQUAL_WORKLOADS


def main():
    turns, work = common.Turns(), common.arguments()
    workload = dataclasses.replace(
        UNEQUAL_WORKLOADS[work.network][0],
        epochs=work.epochs,
        batch_size=work.batch_size,
        learning_rate=work.learning_rate,
    )
    x, y = common.client_data(work)
    order = np.argsort(list(map(len, y)), kind="stable")
    chosen = order[np.arange(work.clients_per_round) * work.clients // work.clients_per_round]
    one_round = bare_tensorflow(workload, *([of[i] for i in chosen] for of in (x, y)))
    turns.ready(workload.model().num_weights, "tensorflow")
    turns.take(one_round)


if __name__ == "__main__":
    main()

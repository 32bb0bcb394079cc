"""Runs rounds of `bare_tensorflow` from `benchmark.py`, with the same clients each time."""

import common

from tff_pfl.runtime.startup import prepare_process

prepare_process()

import dataclasses

from benchmarks.contenders import bare_tensorflow
from benchmarks.workloads import WORKLOADS


def main():
    turns, work = common.Turns(), common.arguments()
    workload = dataclasses.replace(
        WORKLOADS["cnn"],
        epochs=work.epochs,
        batch_size=work.batch_size,
        learning_rate=work.learning_rate,
    )
    x, y = (array[: work.clients_per_round] for array in common.data(work))
    one_round = bare_tensorflow(workload, x, y)
    turns.ready(workload.model().num_weights, "tensorflow")
    turns.take(one_round)


if __name__ == "__main__":
    main()

"""Runs rounds of this library: selects a cohort, computes the round, stores client states.

The execution context and the padding of clients are those of its programs.
"""

import common

from tff_pfl.runtime.startup import prepare_process

prepare_process()

import tensorflow_federated as tff

import tff_pfl
from benchmarks.workloads import UNEQUAL_WORKLOADS
from tff_pfl import algorithms
from tff_pfl.clients import ClientStateStore, CohortDataSource
from tff_pfl.experiment.capacity import suitable_capacity
from tff_pfl.local import LocalTraining


def main():
    turns, work = common.Turns(), common.arguments()
    tff_pfl.set_graph_context(jit_compile=work.jit_compile or None)
    clients = [(x, y, x[:1], y[:1]) for x, y in zip(*common.client_data(work), strict=True)]
    dataset = tff_pfl.FederatedDataset.from_client_arrays(clients, common.NUM_CLASSES)
    model = UNEQUAL_WORKLOADS[work.network][0].model()
    optimizer = tff.learning.optimizers.build_sgdm(work.learning_rate)
    process = algorithms.build(
        work.method,
        model,
        dataset.examples_type,
        LocalTraining(optimizer, epochs=work.epochs, batch_size=work.batch_size),
        num_clients=work.clients,
        clients_per_round=work.clients_per_round,
        seed=work.seed,
    )
    state = process.initialize()
    with ClientStateStore(process.initialize_clients, process.client_state_type, "store") as store:
        capacity = suitable_capacity(model, dataset, work.clients_per_round, work.batch_size)
        source = CohortDataSource(
            dataset, store, process.client_type, seed=work.seed, capacity=capacity
        )
        cohorts = source.iterator()

        def one_round():
            nonlocal state
            output = process.next(state, cohorts.select(work.clients_per_round))
            cohorts.update(output.clients)
            store.commit({"iterator": cohorts.to_bytes()})
            state = output.state

        turns.ready(model.num_weights, "tff_pfl", "tensorflow-federated", "tensorflow")
        turns.take(one_round)


if __name__ == "__main__":
    main()

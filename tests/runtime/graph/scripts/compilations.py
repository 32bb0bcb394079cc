"""Prints how many programs XLA compiles in a run of unequal clients, by what it dumps.

    XLA_FLAGS="--xla_dump_to=FOLDER --xla_dump_hlo_as_text" \
        python -m tests.runtime.graph.scripts.compilations FOLDER METHOD SAMPLING
"""

import os
import pathlib
import re
import sys

from tff_pfl.runtime.startup import prepare_process

prepare_process()

# ruff: noqa: E402

import tff_pfl
from benchmarks.contestants.common import lognormal_sizes
from tests.federation import local_sgd, random_examples, tiny_model

ROUNDS, POPULATION, COHORT = 8, 60, 12


def main(folder, method, sampling):
    sizes = lognormal_sizes(POPULATION, 20).tolist()
    examples = [(random_examples(n, seed=i), random_examples(3, i)) for i, n in enumerate(sizes)]
    dataset = tff_pfl.FederatedDataset.from_client_arrays(
        [(train.x, train.y, test.x, test.y) for train, test in examples], num_classes=3
    )
    made_for = {"num_clients": POPULATION, "clients_per_round": COHORT}
    algorithm = tff_pfl.make(
        method,
        tiny_model(),
        local_sgd(0.05),
        **made_for if method == "pgfed" else {},
    )
    experiment = tff_pfl.Experiment(
        algorithm,
        dataset,
        rounds=ROUNDS,
        clients_per_round=COHORT,
        participation=tff_pfl.Participation(sampling=sampling),
        evaluation=tff_pfl.Evaluation(every=0),
    )
    tff_pfl.set_graph_context(vectorize="always", jit_compile=True)
    tff_pfl.train(experiment, os.path.join(folder, "run"), verbose=False)
    names = [
        re.search(r"\.(\w+?)_\d+", file.name)[1]
        for file in pathlib.Path(folder).glob("*before_optimizations.txt")
    ]
    print(len([name for name in names if "vectorized" in name]))


if __name__ == "__main__":
    main(*sys.argv[1:])
